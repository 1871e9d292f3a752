/* Vectors of eight floats, which are the compiler's (one register of AVX2, two of SSE or NEON), and the tile that products
   and attention in fp32 are made of. */

#ifndef QSERVE_TILES_H
#define QSERVE_TILES_H

#include <string.h>

#include "bf16.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

#define ALWAYS static inline __attribute__((always_inline))
enum { EIGHT = 8, TALL = 6, MOST_PARTS = 4 };

typedef float eight __attribute__((vector_size(4 * EIGHT)));
typedef uint32_t eight_bits __attribute__((vector_size(4 * EIGHT)));
typedef int32_t eight_integers __attribute__((vector_size(4 * EIGHT)));

ALWAYS eight load(const float *at) {
    eight all;
    memcpy(&all, at, sizeof all);
    return all;
}

ALWAYS void keep(eight all, float *at) { memcpy(at, &all, sizeof all); }

ALWAYS eight_bits load_bits(const void *at) {
    eight_bits all;
    memcpy(&all, at, sizeof all);
    return all;
}

/* a * b + c; without FMA rounded twice. */
ALWAYS eight fused(eight a, float b, eight c) {
#ifdef __FMA__
    return (eight)_mm256_fmadd_ps((__m256)a, _mm256_set1_ps(b), (__m256)c);
#else
    return a * b + c;
#endif
}

ALWAYS eight fused_all(eight a, eight b, eight c) {
#ifdef __FMA__
    return (eight)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

ALWAYS float total(eight a) {
    typedef float four __attribute__((vector_size(16)));
    four both[2];
    memcpy(both, &a, sizeof both);
    const four sum = both[0] + both[1];
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

ALWAYS eight widened(const bf16 *at) {
    typedef bf16 eight_halves __attribute__((vector_size(2 * EIGHT)));
    eight_halves some;
    memcpy(&some, at, sizeof some);
    return (eight)(__builtin_convertvector(some, eight_bits) << 16);
}

/* Element k of row m lies at x[m * apart + k * next]. */
typedef struct { const float *x; long apart, next; } terms;

/* result [rows][parts eighths], rows `stride` floats apart, += `rows` rows of `count` terms times piece [count][parts eighths],
   whose rows are `width` floats apart. */
ALWAYS void add_tile(const float *piece, long width, terms t, long count, const int rows, const int parts, float *result, long stride) {
    eight sum[TALL][MOST_PARTS];
#pragma GCC unroll 6
    for (int m = 0; m < rows; m++)
        for (int v = 0; v < parts; v++) sum[m][v] = load(result + m * stride + v * EIGHT);
    for (long k = 0; k < count; k++, piece += width, t.x += t.next) {
        eight w[MOST_PARTS];
        for (int v = 0; v < parts; v++) w[v] = load(piece + v * EIGHT);
#pragma GCC unroll 6
        for (int m = 0; m < rows; m++)
            for (int v = 0; v < parts; v++) sum[m][v] = fused(w[v], t.x[m * t.apart], sum[m][v]);
    }
#pragma GCC unroll 6
    for (int m = 0; m < rows; m++)
        for (int v = 0; v < parts; v++) keep(sum[m][v], result + m * stride + v * EIGHT);
}

#endif
