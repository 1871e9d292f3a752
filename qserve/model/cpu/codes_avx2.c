/* Products of planes with codes of 4 bits, for processors with AVX2 and without AVX-512. Sums within a group are exact.

   Two planes: values become integers of 12 bits, so that a group's sums have room in 32: 64 x 1920 x 16384 < 2^31. Integers
   and FP4's are exact in steps of the largest / 1920, NF4's are off by at most half a step, less than in bf16. The two
   bytes of each come out of tables by vpshufb.

   One plane: codes that stand for -8 to 7 are multiplied as they are by vpmaddubsw and added in 16 bits, which may wrap
   around: with 8 times the activations taken away a sum of 32 is at most 32 x 8 x 127 = 32512. */

#include "planes.h"

#if defined(HAS_PLANES) && !defined(HAS_DOTS)

#include <immintrin.h>
#include <string.h>

#define ALWAYS static inline __attribute__((always_inline))
enum { AHEAD = 4096, STEP = 4 * PANEL, EIGHT = 8, HALF = 2 * EIGHT, PARTS = PANEL / EIGHT, STEPS = 1920, FUSED_ROWS = 2 };

ALWAYS __m256i load(const void *at) { return _mm256_loadu_si256(at); }

ALWAYS __m256i four_bytes(const void *at) {
    int32_t all;
    memcpy(&all, at, sizeof all);
    return _mm256_set1_epi32(all);
}

ALWAYS __m256i in_this_order(__m256i sum) {
    __asm__("" : "+x"(sum)); /* as in integers_avx2.c */
    return sum;
}

ALWAYS __m256i add_pairs(__m256i sum, __m256i words, __m256i x) {
#if defined(__AVXVNNI__)
    return in_this_order(_mm256_dpwssd_avx_epi32(sum, words, x));
#elif HAS_DPBUSD
    return in_this_order(_mm256_dpwssd_epi32(sum, words, x));
#else
    return in_this_order(_mm256_add_epi32(sum, _mm256_madd_epi16(words, x)));
#endif
}

ALWAYS void add_scaled(__m256i sum, const float *scales, float by, float *result) {
    const __m256 scale = _mm256_mul_ps(_mm256_loadu_ps(scales), _mm256_set1_ps(by));
    _mm256_storeu_ps(result, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, _mm256_loadu_ps(result)));
}

/* The lower and the upper bytes of 16 values in units, in both halves. */
typedef struct { __m256i lower, upper; float unit; } table;

static table table_of(const float *values) {
    float most = 0;
    for (int i = 0; i < 16; i++) most = fabsf(values[i]) > most ? fabsf(values[i]) : most;
    const float whole = floorf(STEPS / (most > 0 ? most : 1)), steps = most > 1 && whole > 0 ? whole : STEPS / (most > 0 ? most : 1);
    uint8_t lower[16], upper[16];
    for (int i = 0; i < 16; i++) {
        const int16_t level = (int16_t)rintf(values[i] * steps);
        lower[i] = (uint8_t)level, upper[i] = (uint8_t)((uint16_t)level >> 8);
    }
    return (table){_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)lower)),
                   _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)upper)), 1.0f / steps};
}

/* Of eight outputs two inputs each: those of the first and the third byte, and of the second and the fourth. */
typedef struct { __m256i even, odd; } words;

ALWAYS words words_of(__m256i codes, const table *t) {
    const __m256i lower = _mm256_shuffle_epi8(t->lower, codes), upper = _mm256_shuffle_epi8(t->upper, codes);
    const __m256i is_upper = _mm256_set1_epi16((int16_t)0xff00);
    return (words){_mm256_blendv_epi8(lower, _mm256_slli_epi16(upper, 8), is_upper),
                   _mm256_blendv_epi8(_mm256_srli_epi16(lower, 8), upper, is_upper)};
}

ALWAYS __m256i lower_codes(__m256i codes) { return _mm256_and_si256(codes, _mm256_set1_epi8(15)); }
ALWAYS __m256i upper_codes(__m256i codes) { return lower_codes(_mm256_srli_epi16(codes, 4)); }

/* A group of a panel, [inputs / 8][4][8 outputs], and the scales of its outputs. */
typedef struct { const uint8_t *codes; long inputs; const float *scales; } tile;

/* One row or two: values go from the table into products. */
ALWAYS void add_few(const tile *t, const table *values, const operand *x, long at, const int rows, float *result) {
    __m256i sum[FUSED_ROWS][PARTS];
#pragma GCC unroll 2
    for (int m = 0; m < rows; m++)
#pragma GCC unroll 4
        for (int v = 0; v < PARTS; v++) sum[m][v] = _mm256_setzero_si256();
    const int16_t *both = x->both + at * GROUP;
    const uint8_t *codes = t->codes, *end = codes + t->inputs * PANEL / 2;
    for (; codes < end; codes += STEP, both += 8) {
        _mm_prefetch((const char *)codes + AHEAD, _MM_HINT_T0);
        _mm_prefetch((const char *)codes + AHEAD + 64, _MM_HINT_T0);
#pragma GCC unroll 4
        for (int v = 0; v < PARTS; v++) {
            const __m256i some = load(codes + v * 4 * EIGHT);
            const words a = words_of(lower_codes(some), values), b = words_of(upper_codes(some), values);
#pragma GCC unroll 2
            for (int m = 0; m < rows; m++) {
                sum[m][v] = add_pairs(sum[m][v], a.even, four_bytes(both + m * GROUP));
                sum[m][v] = add_pairs(sum[m][v], a.odd, four_bytes(both + m * GROUP + 2));
                sum[m][v] = add_pairs(sum[m][v], b.even, four_bytes(both + m * GROUP + 4));
                sum[m][v] = add_pairs(sum[m][v], b.odd, four_bytes(both + m * GROUP + 6));
            }
        }
    }
#pragma GCC unroll 2
    for (int m = 0; m < rows; m++)
#pragma GCC unroll 4
        for (int v = 0; v < PARTS; v++)
            add_scaled(sum[m][v], t->scales + v * EIGHT, x->scales[at + m] * values->unit, result + m * PANEL + v * EIGHT);
}

/* To [2][inputs / 2][16 outputs][2]. */
static void unpack_words(const tile *t, const table *values, int16_t *to) {
    const uint8_t *codes = t->codes;
    for (long k = 0; k < t->inputs; k += 8, codes += STEP, to += 8 * HALF)
        for (int v = 0; v < PARTS; v++) {
            const __m256i some = load(codes + v * 4 * EIGHT);
            const words a = words_of(lower_codes(some), values), b = words_of(upper_codes(some), values);
            __m256i *place = (__m256i *)(to + v / 2 * GROUP * HALF) + v % 2;
            if (v % 2 == 0) _mm_prefetch((const char *)codes + AHEAD + v * 4 * EIGHT, _MM_HINT_T0);
            _mm256_storeu_si256(place, a.even), _mm256_storeu_si256(place + 2, a.odd);
            _mm256_storeu_si256(place + 4, b.even), _mm256_storeu_si256(place + 6, b.odd);
        }
}

/* `rows` rows from `at` times words; half a panel after the other, so that sums stay in registers. */
ALWAYS void add_words(const int16_t *all, const tile *t, float unit, const operand *x, long at, const int rows, float *result) {
    for (long half = 0; half < PANEL; half += HALF, all += GROUP * HALF) {
        __m256i sum[6][2];
#pragma GCC unroll 6
        for (int m = 0; m < rows; m++) sum[m][0] = sum[m][1] = _mm256_setzero_si256();
        const int16_t *both = x->both + at * GROUP, *end = both + t->inputs, *some = all;
        for (; both < end; both += 2, some += 2 * HALF) {
            const __m256i a = load(some), b = load(some + HALF);
#pragma GCC unroll 6
            for (int m = 0; m < rows; m++) {
                const __m256i pair = four_bytes(both + m * GROUP);
                sum[m][0] = add_pairs(sum[m][0], a, pair);
                sum[m][1] = add_pairs(sum[m][1], b, pair);
            }
        }
#pragma GCC unroll 6
        for (int m = 0; m < rows; m++)
            for (int v = 0; v < 2; v++)
                add_scaled(sum[m][v], t->scales + half + v * EIGHT, x->scales[at + m] * unit,
                           result + m * PANEL + half + v * EIGHT);
    }
}

/* What the rest of a row adds where it has one. */
static __attribute__((noinline)) void add_rest(const tile *t, const table *values, const operand *x, long at, float *result) {
    const float by = x->scales[at] / REST * values->unit;
    for (int v = 0; v < PARTS; v++) {
        __m256i sum = _mm256_setzero_si256();
        const uint8_t *codes = t->codes + v * 4 * EIGHT;
        for (long k = 0; k < t->inputs; k += 8, codes += STEP)
            for (int half = 0; half < 2; half++) {
                const __m256i four = four_bytes(x->rest + at * GROUP + k + 4 * half);
                const words some = words_of(half ? upper_codes(load(codes)) : lower_codes(load(codes)), values);
                sum = add_pairs(sum, some.even, _mm256_srai_epi16(_mm256_slli_epi16(four, 8), 8));
                sum = add_pairs(sum, some.odd, _mm256_srai_epi16(four, 8));
            }
        add_scaled(sum, t->scales + v * EIGHT, by, result + v * EIGHT);
    }
}

#define TAKE(n, call)                                                                                                  \
    if (rows - m >= n) {                                                                                               \
        call(n);                                                                                                       \
        m += n;                                                                                                        \
        continue;                                                                                                      \
    }

static void add_exact(const tile *t, const table *values, const operand *x, long at, long rows, float *result) {
#define FEW(n) add_few(t, values, x, at, n, result)
#define WORDS(n) add_words(all, t, values->unit, x, at + m, n, result + m * PANEL)
    if (rows == 1) FEW(1);
    else if (rows == 2) FEW(2);
    else {
        int16_t all[GROUP * PANEL] __attribute__((aligned(64)));
        unpack_words(t, values, all);
        for (long m = 0; m < rows;) {
            if (rows - m != 8) { TAKE(6, WORDS) } /* 4 and 4 take less than 6 and 2 */
            TAKE(4, WORDS) TAKE(3, WORDS) TAKE(2, WORDS) TAKE(1, WORDS)
        }
    }
    for (long m = 0; m < rows; m++)
        if (__builtin_expect(x->has_rest[at + m], 0)) add_rest(t, values, x, at + m, result + m * PANEL);
}

#if !HAS_DPBUSD

/* `rows` rows of `bytes`, [rows][GROUP], times -8 to 7; less: -8 times the sums of a row's inputs, as vpmaddubsw pairs them. */
ALWAYS void add_small(const tile *t, const int8_t *bytes, const int32_t *less, const float *scales, const float unit,
                      const int rows, float *result) {
    const __m256i ones = _mm256_set1_epi16(1);
    for (long half = 0; half < PANEL; half += 2 * EIGHT) {
        __m256i sum[6][2];
#pragma GCC unroll 6
        for (int m = 0; m < rows; m++) sum[m][0] = sum[m][1] = four_bytes(less + m);
        const uint8_t *codes = t->codes + 4 * half, *end = codes + t->inputs * PANEL / 2;
        const int8_t *at = bytes;
        for (; codes < end; codes += STEP, at += 8) {
            _mm_prefetch((const char *)codes + AHEAD, _MM_HINT_T0);
#pragma GCC unroll 2
            for (int upper = 0; upper < 2; upper++) {
                const __m256i a = upper ? upper_codes(load(codes)) : lower_codes(load(codes));
                const __m256i b = upper ? upper_codes(load(codes + 4 * EIGHT)) : lower_codes(load(codes + 4 * EIGHT));
#pragma GCC unroll 6
                for (int m = 0; m < rows; m++) {
                    const __m256i four = four_bytes(at + m * GROUP + 4 * upper);
                    sum[m][0] = in_this_order(_mm256_add_epi16(sum[m][0], _mm256_maddubs_epi16(a, four)));
                    sum[m][1] = in_this_order(_mm256_add_epi16(sum[m][1], _mm256_maddubs_epi16(b, four)));
                }
            }
        }
#pragma GCC unroll 6
        for (int m = 0; m < rows; m++)
            for (int v = 0; v < 2; v++)
                add_scaled(_mm256_madd_epi16(sum[m][v], ones), t->scales + half + v * EIGHT, scales[m] * unit,
                           result + m * PANEL + half + v * EIGHT);
    }
}

static __attribute__((noinline)) void add_small_rest(const tile *t, const operand *x, long at, float unit, float *result) {
    add_small(t, x->rest + at * GROUP, x->rest_sums + at, x->scales + at, unit / REST, 1, result);
}

static void add_rounded(const tile *t, float unit, const operand *x, long at, long rows, float *result) {
#define SMALL(n)                                                                                                       \
    add_small(t, x->high + (at + m) * GROUP, x->high_sums + at + m, x->scales + at + m, unit, n, result + m * PANEL)
    for (long m = 0; m < rows;) {
        if (rows - m != 8) { TAKE(6, SMALL) }
        TAKE(4, SMALL) TAKE(3, SMALL) TAKE(2, SMALL) TAKE(1, SMALL)
    }
    for (long m = 0; m < rows; m++)
        if (__builtin_expect(x->has_rest[at + m], 0)) add_small_rest(t, x, at + m, unit, result + m * PANEL);
}

#endif

void codes_product(const matrix *w, long index, const operand *x, long first, long rows, float *result) {
    const uint8_t *panel = w->codes + index * panel_bytes(w);
    const table values = table_of(w->values);
    memset(result, 0, rows * PANEL * sizeof(float));
    for (long g = 0; g < w->in / x->group; g++) {
        const float *scales = w->scales + (index * (w->in / w->block) + g * x->group / w->block) * PANEL;
        const tile t = {panel + g * x->group * PANEL / 2, x->group, scales};
#if !HAS_DPBUSD
        if (x->planes == 1) {
            add_rounded(&t, w->unit, x, g * x->rows + first, rows, result);
            continue;
        }
#endif
        add_exact(&t, &values, x, g * x->rows + first, rows, result);
    }
    if (w->offsets) add_block_offsets(w, index, x, first, rows, result);
}

#endif
