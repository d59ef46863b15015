/* Standard normals from a seed: sixteen streams of xoshiro128++ side by side [Blackman and Vigna 2021], whatever the
 * machine's lanes, turned into normals in pairs [Box and Muller 1958].
 */
#include <math.h>
#include <string.h>

#include "normals.h"

#define EACH for (int i = 0; i < STREAMS; i++)
#define ROTATED(x, by) ((x) << (by) | (x) >> (32 - (by)))

/* splitmix64, by which the authors fill the state. */
static uint64_t mixed(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

static Streams seeded(uint64_t seed) {
    Streams s;
    EACH {
        uint64_t first = mixed(&seed), second = mixed(&seed);
        s.a[i] = first, s.b[i] = first >> 32, s.c[i] = second, s.d[i] = second >> 32;
    }
    return s;
}

static inline void next(Streams *s, uint32_t *bits) {
    EACH {
        uint32_t a = s->a[i], b = s->b[i], c = s->c[i], d = s->d[i], total = a + d;
        bits[i] = ROTATED(total, 7) + a;
        c ^= a, d ^= b;
        s->b[i] = b ^ c, s->a[i] = a ^ d, s->c[i] = c ^ (b << 9), s->d[i] = ROTATED(d, 11);
    }
}

/* −2 log u for u = (bits + ½) / 2³¹, of 31 bits. */
static inline void lengths(const uint32_t *bits, float *found) {
    EACH {
        float u = ((int32_t)(bits[i] >> 1) + 0.5f) * 0x1p-31f;
        int32_t word;
        memcpy(&word, &u, 4);
        /* u = 2^exponent · (1 + z), 1 + z between √½ and √2 */
        int32_t exponent = (word - 0x3f3504f3) >> 23;
        word -= exponent * 0x800000;
        float z;
        memcpy(&z, &word, 4);
        z -= 1;
        float p = 7.0376836292e-2f;
        p = p * z - 1.1514610310e-1f, p = p * z + 1.1676998740e-1f, p = p * z - 1.2420140846e-1f;
        p = p * z + 1.4249322787e-1f, p = p * z - 1.6668057665e-1f, p = p * z + 2.0000714765e-1f;
        p = p * z - 2.4999993993e-1f, p = p * z + 3.3333331174e-1f;
        float log = z + z * z * (z * p - 0.5f) + exponent * 0.693147180559945f;
        found[i] = sqrtf(-2 * log);
    }
}

/* The cosine and the sine of 2π · bits / 2³². */
static inline void directions(const uint32_t *bits, float *cosine, float *sine) {
    EACH {
        uint32_t quarter = (bits[i] + 0x20000000u) >> 30;
        float x = (int32_t)(bits[i] - (quarter << 30)) * 1.4629180792671596e-9f; /* between −π/4 and π/4 */
        float z = x * x;
        float s = x + x * z * ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f);
        float c = 1 - 0.5f * z + z * z * ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f);
        float along = quarter & 1 ? s : c, across = quarter & 1 ? c : s;
        cosine[i] = (quarter + 1) & 2 ? -along : along;
        sine[i] = quarter & 2 ? -across : across;
    }
}

static inline void next_pairs(Streams *streams, float *found) {
    uint32_t bits[PAIRS];
    float length[STREAMS];
    next(streams, bits);
    next(streams, bits + STREAMS);
    lengths(bits, length);
    directions(bits + STREAMS, found, found + STREAMS);
    EACH found[i] *= length[i], found[i + STREAMS] *= length[i];
}

Normals normals_of(uint64_t seed) {
    Normals normals = {.streams = seeded(seed), .left = 0};
    return normals;
}

void take_normals(Normals *normals, long count, float *found) {
    long spare = count < normals->left ? count : normals->left;
    memcpy(found, normals->spare + PAIRS - normals->left, spare * sizeof(float));
    normals->left -= spare, count -= spare, found += spare;
    for (; count >= PAIRS; count -= PAIRS, found += PAIRS) next_pairs(&normals->streams, found);
    if (count) {
        next_pairs(&normals->streams, normals->spare);
        memcpy(found, normals->spare, count * sizeof(float));
        normals->left = PAIRS - count;
    }
}

void standard_normals(uint64_t seed, long count, float *found) {
    Normals normals = normals_of(seed);
    take_normals(&normals, count, found);
}
