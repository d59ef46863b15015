/* Local noise: of a layer's outputs, in place of its weight's. */
#include "ktied.h"

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
