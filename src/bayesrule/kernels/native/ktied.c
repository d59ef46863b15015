/* k-tied matrices on one thread of a CPU: what the plain operations of the Python files compute, each entry read once.
 *
 * S = V Uᵀ has a row for each output and a column for each input, as a layer keeps its weight. log U (fan_in × rank) and
 * log V (fan_out × rank) lie as they are stored. Inside, columns lie as rows, padded with zeros to whole vectors. Noise is
 * either given, or null and made row by row from a seed, again for the gradient.
 */
#include "normals.h"
#include "vectors.h"

/* Calls with the usual numbers of columns, over which loops are then unrolled, and one with any other. */
#define FOR_COLUMNS(count, call) \
    switch (count) { \
        case 1: call(1); break; \
        case 2: call(2); break; \
        case 3: call(3); break; \
        case 6: call(6); break; \
        default: call(count); \
    }
#define MOST_COLUMNS 16
#define MANTISSAS 120 /* so many numbers in [1, 2) can be multiplied */

static void exponentials(long size, long rank, const float *logs, float *rows) {
    long width = padded(size);
    for (long a = 0; a < rank; a++) {
        for (long i = 0; i < size; i++) rows[a * width + i] = expf(logs[i * rank + a]);
        for (long i = size; i < width; i++) rows[a * width + i] = 0;
    }
}

/* Sums over the other side times the rows: gradients in logarithms, as these are stored. */
static void in_logs(long size, long rank, const float *sums, const float *rows, float *gradient) {
    long width = padded(size);
    for (long a = 0; a < rank; a++)
        for (long i = 0; i < size; i++) gradient[i * rank + a] = sums[a * width + i] * rows[a * width + i];
}

INLINE void broadcast(long count, const float *rows, long width, long at, many *found) {
    for (long a = 0; a < count; a++) found[a] = all(rows[a * width + at]);
}

/* Entries of S. */
INLINE many combined(long count, const many *of_row, const float *columns, long width, long at) {
    many found = {0};
    for (long a = 0; a < count; a++) found += of_row[a] * get(columns + a * width + at);
    return found;
}

/* What a slope in an entry of S adds to the gradients in its row's and in its column's factors. */
INLINE void add_slope(long count, many slope, const many *of_row, const float *columns, long width, long at, many *sums,
                      float *column_sums) {
    for (long a = 0; a < count; a++) {
        sums[a] += slope * get(columns + a * width + at);
        float *to = column_sums + a * width + at;
        put(to, get(to) + slope * of_row[a]);
    }
}

/* Rows of noise, one after another. */
typedef struct {
    const float *given; /* the next row, if they are given */
    float *made;        /* room for one, if not */
    Normals normals;
} Noise;

static Noise noise_of(const float *given, uint64_t seed, float *room) {
    Noise noise = {.given = given, .made = room};
    if (!given) noise.normals = normals_of(seed);
    return noise;
}

static const float *next_row(Noise *noise, long size) {
    if (!noise->given) {
        take_normals(&noise->normals, size, noise->made);
        return noise->made;
    }
    const float *row = noise->given;
    noise->given += size;
    return row;
}

/* weight = mean + S ∘ noise */
INLINE void draw(long fan_in, long fan_out, const long rank, const float *U, const float *V, const float *mean,
                 Noise noise, float *weight) {
    long wide = padded(fan_in), high = padded(fan_out);
    for (long i = 0; i < fan_out; i++, mean += fan_in, weight += fan_in) {
        const float *epsilon = next_row(&noise, fan_in);
        many row[MOST_COLUMNS];
        broadcast(rank, V, high, i, row);
        for (long j = 0; j < fan_in; j += LANES) {
            many std = combined(rank, row, U, wide, j);
            put_at(weight, get_at(mean, j, fan_in) + std * get_at(epsilon, j, fan_in), j, fan_in);
        }
    }
}

/* How many numbers `factors` holds: U and V, for the gradient, and room for a row of noise. */
long ktied_factors(long fan_in, long fan_out, long rank) {
    return rank * (padded(fan_in) + padded(fan_out)) + padded(fan_in);
}

void ktied_draw(long fan_in, long fan_out, long rank, const float *fan_in_logs, const float *fan_out_logs,
                const float *mean, const float *noise, uint64_t seed, float *factors, float *weight) {
    float *U = factors, *V = U + rank * padded(fan_in), *room = V + rank * padded(fan_out);
    exponentials(fan_in, rank, fan_in_logs, U);
    exponentials(fan_out, rank, fan_out_logs, V);
#define CALL(r) draw(fan_in, fan_out, r, U, V, mean, noise_of(noise, seed, room), weight)
    FOR_COLUMNS(rank, CALL)
#undef CALL
}

INLINE void draw_backward(long fan_in, long fan_out, const long rank, const float *U, const float *V,
                          const float *gradient, Noise noise, float *of_U, float *of_fan_out) {
    long wide = padded(fan_in), high = padded(fan_out);
    for (long i = 0; i < fan_out; i++, gradient += fan_in) {
        const float *epsilon = next_row(&noise, fan_in);
        many of_V[MOST_COLUMNS] = {{0}}, row[MOST_COLUMNS];
        broadcast(rank, V, high, i, row);
        for (long j = 0; j < fan_in; j += LANES) {
            many slope = get_at(gradient, j, fan_in) * get_at(epsilon, j, fan_in);
            add_slope(rank, slope, row, U, wide, j, of_V, of_U);
        }
        for (long a = 0; a < rank; a++) of_fan_out[i * rank + a] = V[a * high + i] * sum(of_V[a]);
    }
}

/* The gradients in log U and log V; 0 where there is no memory. */
int ktied_draw_backward(long fan_in, long fan_out, long rank, const float *factors, const float *gradient,
                        const float *noise, uint64_t seed, float *of_fan_in, float *of_fan_out) {
    const float *U = factors, *V = factors + rank * padded(fan_in);
    float *of_U = calloc((rank + 1) * padded(fan_in), sizeof(float)), *room = of_U + rank * padded(fan_in);
    if (!of_U) return 0;
#define CALL(r) draw_backward(fan_in, fan_out, r, U, V, gradient, noise_of(noise, seed, room), of_U, of_fan_out)
    FOR_COLUMNS(rank, CALL)
#undef CALL
    in_logs(fan_in, rank, of_U, U, of_fan_in);
    free(of_U);
    return 1;
}

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

/* S² = Σ over pairs of columns of (u_a u_c)(v_a v_c), those of two different ones counted twice. */
static long pairs_of(long rank) { return rank * (rank + 1) / 2; }

static void pair_rows(long size, long rank, const float *rows, float apart, float *pairs) {
    long width = padded(size);
    for (long a = 0; a < rank; a++)
        for (long c = a; c < rank; c++, pairs += width)
            for (long i = 0; i < width; i++)
                pairs[i] = (a == c ? 1 : apart) * rows[a * width + i] * rows[c * width + i];
}

/* From twice the gradients in the pairs to those in the logarithms. */
static void pairs_in_logs(long size, long rank, const float *sums, const float *pairs, float *gradient) {
    long width = padded(size);
    memset(gradient, 0, size * rank * sizeof(float));
    for (long a = 0; a < rank; a++)
        for (long c = a; c < rank; c++, sums += width, pairs += width)
            for (long i = 0; i < size; i++) {
                float half = 0.5f * sums[i] * pairs[i];
                gradient[i * rank + a] += half, gradient[i * rank + c] += half;
            }
}

/* What a layer's noise keeps for the gradient, one after another. */
typedef struct {
    float *fan_in, *fan_out; /* pairs of columns */
    float *narrow;           /* rows × pairs: x² (UU)ᵀ */
    float *spread;           /* the bias less its mean */
} Kept;

static Kept kept_in(float *memory, long fan_in, long fan_out, long rank, long rows) {
    Kept kept;
    long pairs = pairs_of(rank);
    kept.fan_in = memory;
    kept.fan_out = kept.fan_in + pairs * padded(fan_in);
    kept.narrow = kept.fan_out + pairs * padded(fan_out);
    kept.spread = kept.narrow + rows * pairs;
    return kept;
}

long ktied_noise_kept(long fan_in, long fan_out, long rank, long rows) {
    return pairs_of(rank) * (padded(fan_in) + padded(fan_out) + rows) + fan_out;
}

/* A row of x² (UU)ᵀ. */
INLINE void narrow_columns(long fan_in, const long pairs, const float *x, const Kept *kept, float *narrow) {
    many sums[MOST_COLUMNS] = {{0}};
    for (long j = 0; j < fan_in; j += LANES) {
        many square = get_at(x, j, fan_in) * get_at(x, j, fan_in);
        for (long p = 0; p < pairs; p++) sums[p] += square * get(kept->fan_in + p * padded(fan_in) + j);
    }
    for (long p = 0; p < pairs; p++) narrow[p] = sum(sums[p]);
}

/* A row of standard deviations √(x² S²), none of them zero, and of noise over them. Where there is none, as for an input
 * of zeros, neither has a gradient. */
INLINE void ratios(long fan_out, const long pairs, const float *narrow, const Kept *kept, const float *noise,
                   float *std, float *ratio) {
    long high = padded(fan_out);
    many of_row[MOST_COLUMNS];
    for (long p = 0; p < pairs; p++) of_row[p] = all(narrow[p]);
    for (long o = 0; o < fan_out; o += LANES) put(std + o, combined(pairs, of_row, kept->fan_out, high, o));
    for (long o = 0; o < fan_out; o++) {
        float variance = std[o], alive = variance < FLT_MIN ? FLT_MIN : variance;
        std[o] = sqrtf(alive);
        ratio[o] = variance < FLT_MIN ? 0 : noise[o] / std[o];
    }
}

INLINE void add_noise(long fan_in, long fan_out, const long pairs, const float *x, const Kept *kept, float *narrow,
                      const float *noise, const float *shift, float *std, float *ratio, float *output) {
    narrow_columns(fan_in, pairs, x, kept, narrow);
    ratios(fan_out, pairs, narrow, kept, noise, std, ratio);
    for (long o = 0; o < fan_out; o++) output[o] += shift[o] + std[o] * noise[o];
}

/* output += bias + √(x² S²) ∘ noise; there may be no bias, and one that is not random. 0 without memory. */
int ktied_noise(long fan_in, long fan_out, long rank, long rows, const float *x, const float *fan_in_logs,
                const float *fan_out_logs, const float *noise, uint64_t seed, const float *bias,
                const float *bias_logs, const float *bias_noise, float *memory, float *output) {
    long wide = padded(fan_in), high = padded(fan_out), pairs = pairs_of(rank);
    Kept kept = kept_in(memory, fan_in, fan_out, rank, rows);
    float *U = malloc((rank * (wide + high) + 4 * high) * sizeof(float));
    if (!U) return 0;
    float *V = U + rank * wide, *shift = V + rank * high, *std = shift + high, *ratio = std + high;
    Noise source = noise_of(noise, seed, ratio + high);
    exponentials(fan_in, rank, fan_in_logs, U);
    exponentials(fan_out, rank, fan_out_logs, V);
    pair_rows(fan_in, rank, U, 1, kept.fan_in);
    pair_rows(fan_out, rank, V, 2, kept.fan_out);
    for (long o = 0; o < fan_out; o++) {
        kept.spread[o] = bias_logs && bias_noise ? expf(bias_logs[o]) * bias_noise[o] : 0;
        shift[o] = (bias ? bias[o] : 0) + kept.spread[o];
    }
    for (long b = 0; b < rows; b++, x += fan_in, output += fan_out) {
        const float *epsilon = next_row(&source, fan_out);
#define CALL(p) add_noise(fan_in, fan_out, p, x, &kept, kept.narrow + b * p, epsilon, shift, std, ratio, output)
        FOR_COLUMNS(pairs, CALL)
#undef CALL
    }
    free(U);
    return 1;
}

/* Sums over rows of twice the gradients in the pairs, and of those in the bias. */
typedef struct {
    float *fan_in, *fan_out, *bias;
} Sums;

INLINE void noise_backward(long fan_in, long fan_out, const long pairs, const float *x, const float *gradient,
                           const float *narrow, const float *ratio, const Kept *kept, const Sums *sums, float *of_x) {
    long wide = padded(fan_in), high = padded(fan_out);
    many of_narrow[MOST_COLUMNS] = {{0}}, of_row[MOST_COLUMNS];
    for (long p = 0; p < pairs; p++) of_row[p] = all(narrow[p]);
    for (long o = 0; o < fan_out; o += LANES) {
        many slope = get_at(gradient, o, fan_out);
        put(sums->bias + o, get(sums->bias + o) + slope);
        add_slope(pairs, slope * get_at(ratio, o, fan_out), of_row, kept->fan_out, high, o, of_narrow, sums->fan_out);
    }
    for (long p = 0; p < pairs; p++) of_narrow[p] = all(sum(of_narrow[p]));
    for (long j = 0; j < fan_in; j += LANES) {
        many input = get_at(x, j, fan_in), square = input * input;
        for (long p = 0; p < pairs; p++) {
            float *to = sums->fan_in + p * wide + j;
            put(to, get(to) + square * of_narrow[p]);
        }
        if (of_x) {
            many slope = input * combined(pairs, of_narrow, kept->fan_in, wide, j);
            put_at(of_x, get_at(of_x, j, fan_in) + slope, j, fan_in);
        }
    }
}

/* The gradients in the logarithms and the bias, and what noise adds to that in x, if there is one. 0 without memory. */
int ktied_noise_backward(long fan_in, long fan_out, long rank, long rows, const float *x, const float *noise,
                         uint64_t seed, const float *gradient, float *memory, float *of_x, float *of_fan_in_logs,
                         float *of_fan_out_logs, float *of_bias, float *of_bias_logs) {
    long wide = padded(fan_in), high = padded(fan_out), pairs = pairs_of(rank);
    const Kept kept = kept_in(memory, fan_in, fan_out, rank, rows);
    float *scratch = calloc(pairs * (wide + high) + 4 * high, sizeof(float));
    if (!scratch) return 0;
    const Sums sums = {scratch, scratch + pairs * wide, scratch + pairs * (wide + high)};
    float *std = sums.bias + high, *ratio = std + high;
    Noise source = noise_of(noise, seed, ratio + high);
    for (long b = 0; b < rows; b++, x += fan_in, gradient += fan_out) {
        const float *epsilon = next_row(&source, fan_out);
#define CALL(p) \
    ratios(fan_out, p, kept.narrow + b * p, &kept, epsilon, std, ratio); \
    noise_backward(fan_in, fan_out, p, x, gradient, kept.narrow + b * p, ratio, &kept, &sums, of_x)
        FOR_COLUMNS(pairs, CALL)
#undef CALL
        if (of_x) of_x += fan_in;
    }
    pairs_in_logs(fan_in, rank, sums.fan_in, kept.fan_in, of_fan_in_logs);
    pairs_in_logs(fan_out, rank, sums.fan_out, kept.fan_out, of_fan_out_logs);
    for (long o = 0; o < fan_out; o++) {
        if (of_bias) of_bias[o] = sums.bias[o];
        if (of_bias_logs) of_bias_logs[o] = sums.bias[o] * kept.spread[o];
    }
    free(scratch);
    return 1;
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

/* The KLs of many, but for constants. Of each: its sizes (fan_in, fan_out, rank; a vector's rank is 0), its numbers (the
 * prior's centre and precision) and its tensors (mean, log U, log V; mean and log σ). Slopes come one after another: in
 * log U and log V; in mean and log σ. 0 where one of them is left to plain operations. */
int divergences(long count, const long *sizes, const double *numbers, float *const *tensors, float *slopes,
                double *value) {
    *value = 0;
    for (long i = 0; i < count; i++, sizes += 3, numbers += 2, tensors += 3) {
        long fan_in = sizes[0], fan_out = sizes[1], rank = sizes[2];
        if (!rank) {
            *value += diagonal_divergence(fan_in, tensors[0], tensors[1], numbers[0], numbers[1], slopes, slopes + fan_in);
            slopes += 2 * fan_in;
            continue;
        }
        double found;
        float *of_fan_in = slopes, *of_fan_out = of_fan_in + fan_in * rank;
        if (!ktied_divergence(fan_in, fan_out, rank, tensors[1], tensors[2], tensors[0], numbers[1], of_fan_in,
                              of_fan_out, &found))
            return 0;
        *value += found;
        slopes = of_fan_out + fan_out * rank;
    }
    return 1;
}
