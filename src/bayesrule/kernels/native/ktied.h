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

static inline void exponentials(long size, long rank, const float *logs, float *rows) {
    long width = padded(size);
    for (long a = 0; a < rank; a++, rows += width) {
        for (long i = 0; i < size; i++) rows[i] = logs[i * rank + a];
        for (long i = 0; i < size; i += LANES) put(rows + i, exponential(get(rows + i)));
        for (long i = size; i < width; i++) rows[i] = 0;
    }
}

/* Sums over the other side times the rows: gradients in logarithms, as these are stored. */
static inline void in_logs(long size, long rank, const float *sums, const float *rows, float *gradient) {
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

static inline Noise noise_of(const float *given, uint64_t seed, float *room) {
    Noise noise = {.given = given, .made = room};
    if (!given) noise.normals = normals_of(seed);
    return noise;
}

static inline const float *next_row(Noise *noise, long size) {
    if (!noise->given) {
        take_normals(&noise->normals, size, noise->made);
        return noise->made;
    }
    const float *row = noise->given;
    noise->given += size;
    return row;
}
