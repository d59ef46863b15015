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
