/* KLs against normal priors, with their gradients. */
#include "ktied.h"

#define MANTISSAS 120 /* so many numbers in [1, 2) can be multiplied */

static int extremes(long size, const float *row, float *low, float *high) {
    *low = INFINITY, *high = 0;
    for (long i = 0; i < size; i++) {
        if (!(row[i] >= 0)) return 0;
        *low = row[i] < *low ? row[i] : *low, *high = row[i] > *high ? row[i] : *high;
    }
    return 1;
}

/* Whether no entry of S, and no square of one, leaves the range of normal numbers. */
static int ordinary(long fan_in, long fan_out, long rank, const float *U, const float *V) {
    double least = 0, most = 0;
    for (long a = 0; a < rank; a++) {
        float low_u, high_u, low_v, high_v;
        if (!extremes(fan_in, U + a * padded(fan_in), &low_u, &high_u)) return 0;
        if (!extremes(fan_out, V + a * padded(fan_out), &low_v, &high_v)) return 0;
        least += (double)low_u * low_v, most += (double)high_u * high_v;
    }
    return least > 4 * FLT_MIN && most * most < FLT_MAX / 4;
}

/* Σ ½ precision (S² + mean²) − log S. Logarithms are taken of products of mantissas; exponents are added up. */
INLINE double divergence(long fan_in, long fan_out, const long rank, const float *U, const float *V, const float *mean,
                         float precision, float *of_U, float *of_fan_out, float *products) {
    long wide = padded(fan_in), high = padded(fan_out);
    double squares = 0, logs = 0;
    long exponents = 0;
    for (long j = 0; j < wide; j++) products[j] = 1;
    for (long i = 0; i < fan_out; i++) {
        many of_V[MOST_COLUMNS] = {{0}}, of_squares = {0}, row[MOST_COLUMNS];
        whole of_exponents = {0};
        broadcast(rank, V, high, i, row);
        for (long j = 0; j < fan_in; j += LANES) {
            many std = combined(rank, row, U, wide, j);
            for (long l = fan_in - j; l < LANES; l++) std[l] = 1; /* beyond the last column, where log 1 = 0 */
            whole bits = (whole)std;
            of_exponents += bits >> 23;
            put(products + j, get(products + j) * (many)((bits & all_whole(0x7fffff)) | all_whole(0x3f800000)));
            of_squares += std * std;
            if (mean) of_squares += get_at(mean, j, fan_in) * get_at(mean, j, fan_in);
            add_slope(rank, all(precision) * std - all(1) / std, row, U, wide, j, of_V, of_U);
        }
        if (mean) mean += fan_in;
        squares += sum(of_squares);
        for (int l = 0; l < LANES; l++) exponents += of_exponents[l];
        for (long a = 0; a < rank; a++) of_fan_out[i * rank + a] = V[a * high + i] * sum(of_V[a]);
        if (i % MANTISSAS == MANTISSAS - 1 || i == fan_out - 1)
            for (long j = 0; j < wide; j++) logs += logf(products[j]), products[j] = 1;
    }
    exponents -= 127 * wide * fan_out;
    squares -= (double)(wide - fan_in) * fan_out;
    return 0.5 * precision * squares - (logs + exponents * M_LN2);
}

/* That sum and its gradients in log U and log V; 0 where an entry is not a normal number, or there is no memory. */
int ktied_divergence(long fan_in, long fan_out, long rank, const float *fan_in_logs, const float *fan_out_logs,
                     const float *mean, double precision, float *of_fan_in, float *of_fan_out, double *value) {
    long wide = rank * padded(fan_in), high = rank * padded(fan_out);
    float *U = calloc(2 * wide + high + padded(fan_in), sizeof(float));
    if (!U) return 0;
    float *V = U + wide, *of_U = V + high, *products = of_U + wide;
    exponentials(fan_in, rank, fan_in_logs, U);
    exponentials(fan_out, rank, fan_out_logs, V);
    int found = ordinary(fan_in, fan_out, rank, U, V);
    if (found) {
#define CALL(r) *value = divergence(fan_in, fan_out, r, U, V, mean, precision, of_U, of_fan_out, products)
        FOR_COLUMNS(rank, CALL)
#undef CALL
        in_logs(fan_in, rank, of_U, U, of_fan_in);
    }
    free(U);
    return found;
}

/* Σ ½ precision (σ² + (mean − centre)²) − log σ, and its gradients in the mean and in log σ. */
double diagonal_divergence(long size, const float *mean, const float *log_std, double centre, double precision,
                           float *of_mean, float *of_log_std) {
    double squares = 0, logs = 0;
    for (long i = 0; i < size; i++) {
        double apart = mean[i] - centre, variance = exp(2 * (double)log_std[i]);
        squares += variance + apart * apart, logs += log_std[i];
        of_mean[i] = precision * apart, of_log_std[i] = precision * variance - 1;
    }
    return 0.5 * precision * squares - logs;
}

/* The KLs of many, but for constants. Of each: its sizes (fan_in, fan_out, rank; a vector's rank is 0), the prior's
 * centre and precision, and its tensors (mean, log U, log V; mean and log σ). Slopes come one after another: in log U and
 * log V; in mean and log σ. 0 where one of them is left to plain operations. */
int divergences(long count, const long *sizes, const double *centres, const double *precisions, float *const *tensors,
                float *slopes, double *value) {
    *value = 0;
    for (long i = 0; i < count; tensors += sizes[2] ? 3 : 2, i++, sizes += 3) {
        long fan_in = sizes[0], fan_out = sizes[1], rank = sizes[2];
        if (!rank) {
            *value += diagonal_divergence(fan_in, tensors[0], tensors[1], centres[i], precisions[i], slopes, slopes + fan_in);
            slopes += 2 * fan_in;
            continue;
        }
        double found;
        float *of_fan_in = slopes, *of_fan_out = of_fan_in + fan_in * rank;
        if (!ktied_divergence(fan_in, fan_out, rank, tensors[1], tensors[2], tensors[0], precisions[i], of_fan_in,
                              of_fan_out, &found))
            return 0;
        *value += found;
        slopes = of_fan_out + fan_out * rank;
    }
    return 1;
}
