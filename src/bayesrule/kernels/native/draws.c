/* Draws of k-tied matrices, and of all small matrices and vectors of a model. */
#include "ktied.h"

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

/* What the gradient in a drawn weight gives: that in the mean, if anybody wants it, to which the mean is added so many
 * times, and those in the factors. */
INLINE void draw_backward(long fan_in, long fan_out, const long rank, const float *U, const float *V,
                          const float *gradient, Noise noise, const float *mean, float times, float *of_mean,
                          float *of_U, float *of_fan_out) {
    long wide = padded(fan_in), high = padded(fan_out);
    for (long i = 0; i < fan_out; i++, gradient += fan_in) {
        const float *epsilon = next_row(&noise, fan_in);
        many of_V[MOST_COLUMNS] = {{0}}, row[MOST_COLUMNS];
        broadcast(rank, V, high, i, row);
        for (long j = 0; j < fan_in; j += LANES) {
            many slope = get_at(gradient, j, fan_in);
            if (of_mean) put_at(of_mean, slope + all(times) * get_at(mean, j, fan_in), j, fan_in);
            add_slope(rank, slope * get_at(epsilon, j, fan_in), row, U, wide, j, of_V, of_U);
        }
        if (of_mean) mean += fan_in, of_mean += fan_in;
        for (long a = 0; a < rank; a++) of_fan_out[i * rank + a] = V[a * high + i] * sum(of_V[a]);
    }
}

/* The gradients in the mean, if it is asked for, in log U and in log V; 0 where there is no memory. */
static int whole_draw_backward(long fan_in, long fan_out, long rank, const float *factors, const float *gradient,
                               const float *noise, uint64_t seed, const float *mean, float times, float *of_mean,
                               float *of_fan_in, float *of_fan_out) {
    const float *U = factors, *V = factors + rank * padded(fan_in);
    float *of_U = calloc((rank + 1) * padded(fan_in), sizeof(float)), *room = of_U + rank * padded(fan_in);
    if (!of_U) return 0;
#define CALL(r) \
    draw_backward(fan_in, fan_out, r, U, V, gradient, noise_of(noise, seed, room), mean, times, of_mean, of_U, of_fan_out)
    FOR_COLUMNS(rank, CALL)
#undef CALL
    in_logs(fan_in, rank, of_U, U, of_fan_in);
    free(of_U);
    return 1;
}

int ktied_draw_backward(long fan_in, long fan_out, long rank, const float *factors, const float *gradient,
                        const float *noise, uint64_t seed, float *of_fan_in, float *of_fan_out) {
    return whole_draw_backward(fan_in, fan_out, rank, factors, gradient, noise, seed, NULL, 0, NULL, of_fan_in,
                               of_fan_out);
}

/* What follows is of many matrices and vectors together. Of each there are its sizes (fan_in, fan_out, rank; a vector's
 * are its length, 0 and 0), and its place, which with a seed for all gives it a seed of its own. */

static long kept_of(const long *sizes) {
    return sizes[2] ? ktied_factors(sizes[0], sizes[1], sizes[2]) : sizes[0];
}

/* How many numbers `draws` keeps for the gradient: of a matrix its factors, of a vector its draw less its mean. */
long draws_kept(long count, const long *sizes) {
    long found = 0;
    for (long i = 0; i < count; i++) found += kept_of(sizes + 3 * i);
    return found;
}

/* Of each, the mean and the logarithms of its factors, or of its standard deviations, and where the draw is to go. */
void draws(long count, const long *sizes, uint64_t seed, const long *places, float *const *tensors, float *kept,
           float *const *drawn) {
    for (long i = 0; i < count; kept += kept_of(sizes), tensors += sizes[2] ? 3 : 2, i++, sizes += 3) {
        const float *mean = tensors[0], *logs = tensors[1];
        if (sizes[2]) {
            ktied_draw(sizes[0], sizes[1], sizes[2], logs, tensors[2], mean, NULL, seed + places[i], kept, drawn[i]);
            continue;
        }
        standard_normals(seed + places[i], sizes[0], kept);
        for (long e = 0; e < sizes[0]; e++) drawn[i][e] = mean[e] + (kept[e] *= expf(logs[e]));
    }
}

/* The gradients of each: in the mean and the logarithms, where `found` says. Tensors are the mean and the gradient in the
 * draw, null where nobody used it. A KL adds so many times its own slopes, which lie as it finds them, and of a matrix's
 * mean that mean times a precision. 0 without memory. */
int draws_backward(long count, const long *sizes, uint64_t seed, const long *places, const float *kept,
                   float *const *tensors, const float *slopes, const double *precisions, double times,
                   float *const *found) {
    for (long i = 0; i < count; kept += kept_of(sizes), found += sizes[2] ? 3 : 2, i++, sizes += 3, tensors += 2) {
        const float *mean = tensors[0], *gradient = tensors[1];
        long fan_in = sizes[0], fan_out = sizes[1], rank = sizes[2], entries = rank ? fan_in * fan_out : fan_in;
        float by = times, decay = slopes && rank ? times * precisions[i] : 0, *of_mean = found[0];
        if (gradient && rank) {
            if (!whole_draw_backward(fan_in, fan_out, rank, kept, gradient, NULL, seed + places[i], mean, decay, of_mean,
                                     found[1], found[2]))
                return 0;
        } else if (gradient)
            for (long e = 0; e < entries; e++) of_mean[e] = gradient[e], found[1][e] = gradient[e] * kept[e];
        else {
            for (long e = 0; e < entries; e++) of_mean[e] = decay ? decay * mean[e] : 0;
            memset(found[1], 0, (rank ? rank * fan_in : fan_in) * sizeof(float));
            if (rank) memset(found[2], 0, rank * fan_out * sizeof(float));
        }
        if (!slopes) continue;
        if (!rank)
            for (long e = 0; e < entries; e++) of_mean[e] += by * *slopes++;
        for (long e = 0; e < (rank ? rank * fan_in : fan_in); e++) found[1][e] += by * *slopes++;
        for (long e = 0; e < rank * fan_out; e++) found[2][e] += by * *slopes++;
    }
    return 1;
}
