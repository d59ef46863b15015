/* Standard normals from a seed, a few at a time. */
#include <stdint.h>

#define STREAMS 16
#define PAIRS (2 * STREAMS)

typedef struct { uint32_t a[STREAMS], b[STREAMS], c[STREAMS], d[STREAMS]; } Streams;

typedef struct {
    Streams streams;
    float spare[PAIRS]; /* made, but not taken */
    long left;          /* how many of these, at the end */
} Normals;

Normals normals_of(uint64_t seed);

/* The next ones, however they are portioned. */
void take_normals(Normals *normals, long count, float *found);

/* Always the same ones for a seed, in the same order. */
void standard_normals(uint64_t seed, long count, float *found);
