/* So many numbers at a time as the machine has lanes for, by the vector types of GCC and Clang. */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __AVX512F__
#define LANES 16
#else
#define LANES 8
#endif
#define INLINE static inline __attribute__((always_inline))

typedef float many __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t whole __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

INLINE many all(float value) {
    many found;
    for (int l = 0; l < LANES; l++) found[l] = value;
    return found;
}

INLINE whole all_whole(int32_t value) {
    whole found;
    for (int l = 0; l < LANES; l++) found[l] = value;
    return found;
}

INLINE float sum(many values) {
    float found = 0;
    for (int l = 0; l < LANES; l++) found += values[l];
    return found;
}

INLINE many get(const float *from) { return *(const many *)from; }

INLINE void put(float *to, many values) { *(many *)to = values; }

INLINE many get_few(const float *from, long count) {
    many found = {0};
    memcpy(&found, from, count * sizeof(float));
    return found;
}

/* From a row of memory that ends where it ends: the last few are read with zeros behind them. */
INLINE many get_at(const float *row, long at, long size) {
    return size - at < LANES ? get_few(row + at, size - at) : get(row + at);
}

INLINE void put_at(float *row, many values, long at, long size) {
    if (size - at < LANES) memcpy(row + at, &values, (size - at) * sizeof(float));
    else put(row + at, values);
}

static inline long padded(long size) { return (size + LANES - 1) / LANES * LANES; }

INLINE many chosen(whole which, many one, many other) {
    return (many)((which & (whole)one) | (~which & (whole)other));
}

/* To the last digit but one, from the smallest number to infinity [Cephes' expf]. */
INLINE many exponential(many x) {
    x = chosen(x < all(-105), all(-105), x), x = chosen(x > all(89), all(89), x); /* what is no number stays so */
    many n = (x * 1.44269504f + 12582912.0f) - 12582912.0f; /* the nearest whole one */
    x -= n * 0.693359375f, x -= n * -2.12194440e-4f;
    many p = x * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * x + 8.3334519073e-3f, p = p * x + 4.1665795894e-2f, p = p * x + 1.6666665459e-1f, p = p * x + 5.0000001201e-1f;
    whole power = __builtin_convertvector(n, whole), half = power >> 1;
    return (p * x * x + x + 1) * (many)((half + 127) << 23) * (many)((power - half + 127) << 23);
}
