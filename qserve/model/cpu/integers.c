/* Products of planes with stored weights: groups of 64 inputs x 32 outputs of a panel, which stay in the nearest cache for
   all rows, multiplied by vpdpbusd; by tiles where there are many rows (integers_amx.c). Sums within a group are exact. */

#include "planes.h"

#ifdef HAS_DOTS

#include "integers.h"

#include <immintrin.h>

#define ALWAYS static inline __attribute__((always_inline))
enum { BLOCKS_AHEAD = 8, STEP = 4 * PANEL, MOST_OF_ONE = 12, MOST_OF_TWO = 6 };

/* Sums are of this type from end to end: between it and __m512i GCC 12 copies registers. */
typedef int32_t sixteen __attribute__((vector_size(64)));

ALWAYS sixteen everywhere(int32_t value) { return (sixteen)_mm512_set1_epi32(value); }

ALWAYS __m512i four_bytes(const void *at) {
    int32_t all;
    memcpy(&all, at, sizeof all);
    return _mm512_set1_epi32(all);
}

ALWAYS sixteen add_products(sixteen sum, __m512i codes, __m512i x) {
    return (sixteen)_mm512_dpbusd_epi32((__m512i)sum, codes, x);
}

ALWAYS void add_scaled(sixteen sum, __m512 scale, float *result) {
    _mm512_storeu_ps(result, _mm512_fmadd_ps(_mm512_cvtepi32_ps((__m512i)sum), scale, _mm512_loadu_ps(result)));
}

/* Lane v of the weights' own scales. */
ALWAYS __m512 scales_of(const tile *t, long v) {
    return t->scales ? _mm512_mul_ps(_mm512_loadu_ps(t->scales + v * LANE), _mm512_set1_ps(t->unit)) : _mm512_set1_ps(1.0f);
}

/* What the rest of a row adds where it has one. */
static __attribute__((noinline)) void add_rest(const tile *t, const operand *x, long at, float *result) {
    for (long v = 0; v < 2; v++) {
        sixteen sum = everywhere(x->rest_sums[at]);
        const uint8_t *codes = t->codes + 4 * LANE * v;
        for (long k = 0; k < t->inputs; k += 4)
            sum = add_products(sum, _mm512_loadu_si512(codes + k * PANEL), four_bytes(x->rest + at * GROUP + k));
        add_scaled(sum, _mm512_mul_ps(scales_of(t, v), _mm512_set1_ps(x->scales[at] / REST)), result + v * LANE);
    }
}

/* `rows` rows from `at`, in one plane or two. */
ALWAYS void add_tile(const tile *t, const operand *x, long at, const int rows, const int planes, const int is_scaled,
                     float *result) {
    sixteen high[MOST_OF_ONE][2], low[MOST_OF_TWO][2];
#pragma GCC unroll 12
    for (int m = 0; m < rows; m++) {
        high[m][0] = high[m][1] = everywhere(x->high_sums[at + m]);
        if (planes == 2) low[m][0] = low[m][1] = everywhere(x->low_sums[at + m]);
    }
    const int8_t *upper = x->high + at * GROUP, *lower = x->low + at * GROUP;
    const uint8_t *codes = t->codes, *end = codes + t->inputs * PANEL;
    const long ahead = t->is_in_memory ? AHEAD : 0;
    for (; codes < end; codes += STEP, upper += 4, lower += 4) {
        const __m512i a = _mm512_loadu_si512(codes), b = _mm512_loadu_si512(codes + 4 * LANE);
        fetch_two_lines(codes + ahead);
#pragma GCC unroll 12
        for (int m = 0; m < rows; m++) {
            const __m512i h = four_bytes(upper + m * GROUP);
            high[m][0] = add_products(high[m][0], a, h);
            high[m][1] = add_products(high[m][1], b, h);
            if (planes == 1) continue;
            const __m512i l = four_bytes(lower + m * GROUP);
            low[m][0] = add_products(low[m][0], a, l);
            low[m][1] = add_products(low[m][1], b, l);
        }
    }
    const __m512 scales[2] = {scales_of(t, 0), scales_of(t, 1)};
    const float *row_scales = x->scales + at;
#pragma GCC unroll 12
    for (int m = 0; m < rows; m++) {
        const __m512 row_scale = _mm512_set1_ps(row_scales[m]);
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) {
            const sixteen sum = planes == 2 ? (high[m][v] << 8) + low[m][v] : high[m][v];
            add_scaled(sum, is_scaled ? _mm512_mul_ps(scales[v], row_scale) : row_scale, result + m * PANEL + v * LANE);
        }
    }
    for (int m = 0; m < rows; m++) /* apart: around a call there are no registers for sums */
        if (__builtin_expect(x->has_rest[at + m], 0)) add_rest(t, x, at + m, result + m * PANEL);
}

/* As many of `rows` rows as a kernel takes at once; returns how many. */
#define TAKE(n, planes, is_scaled)                                                                                                \
    if (rows >= n) {                                                                                                   \
        add_tile(t, x, at, n, planes, is_scaled, result);                                                              \
        return n;                                                                                                      \
    }

static long add_some(const tile *t, const operand *x, long at, long rows, float *result) {
    if (x->planes == 2 && t->scales) {
        TAKE(6, 2, 1) TAKE(4, 2, 1) TAKE(3, 2, 1) TAKE(2, 2, 1) TAKE(1, 2, 1)
    } else if (x->planes == 2) {
        TAKE(6, 2, 0) TAKE(4, 2, 0) TAKE(3, 2, 0) TAKE(2, 2, 0) TAKE(1, 2, 0)
    } else if (t->scales) {
        TAKE(12, 1, 1) TAKE(8, 1, 1) TAKE(6, 1, 1) TAKE(4, 1, 1) TAKE(3, 1, 1) TAKE(2, 1, 1) TAKE(1, 1, 1)
    } else {
        TAKE(12, 1, 0) TAKE(8, 1, 0) TAKE(6, 1, 0) TAKE(4, 1, 0) TAKE(3, 1, 0) TAKE(2, 1, 0) TAKE(1, 1, 0)
    }
    return rows;
}

/* An index of vpermb has six bits, and the table is the same whatever the upper two are; one of vpshufb is four bits of
   eight, and the table there is once in each 128 bits. */
ALWAYS __m512i levels_at(__m512i codes, __m512i table) {
#ifdef __AVX512VBMI__
    return _mm512_permutexvar_epi8(codes, table);
#else
    return _mm512_shuffle_epi8(table, _mm512_and_si512(codes, _mm512_set1_epi8(15)));
#endif
}

void unpack_levels(const uint8_t *codes, const uint8_t *levels, long inputs, uint8_t *to) {
    const __m512i table = _mm512_loadu_si512(levels);
    for (long k = 0; k < inputs; k += 8, codes += STEP, to += 2 * STEP) {
        fetch_two_lines(codes + AHEAD);
        for (int v = 0; v < 2; v++) {
            const __m512i eight = _mm512_loadu_si512(codes + 4 * LANE * v);
            _mm512_storeu_si512(to + 4 * LANE * v, levels_at(eight, table));
            _mm512_storeu_si512(to + STEP + 4 * LANE * v, levels_at(_mm512_srli_epi16(eight, 4), table));
        }
    }
}

static void add_offsets(const matrix *w, long index, const operand *x, long first, long rows, float *result) {
    const long blocks = w->in / w->block;
    const float *offsets = w->offsets + index * blocks * PANEL, *sums = x->sums + first * blocks;
    for (long m = 0; m < rows; m++, result += PANEL, sums += blocks) {
        __m512 low = _mm512_loadu_ps(result), high = _mm512_loadu_ps(result + LANE);
        for (long g = 0; g < blocks; g++) {
            const __m512 sum = _mm512_set1_ps(sums[g]);
            low = _mm512_fmadd_ps(_mm512_loadu_ps(offsets + g * PANEL), sum, low);
            high = _mm512_fmadd_ps(_mm512_loadu_ps(offsets + g * PANEL + LANE), sum, high);
        }
        _mm512_storeu_ps(result, low);
        _mm512_storeu_ps(result + LANE, high);
    }
}

static inline void fetch_scales(const float *scales) { fetch_two_lines(scales + BLOCKS_AHEAD * PANEL); }

#endif
