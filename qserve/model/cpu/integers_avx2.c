/* Products of integers of 8 or 15 bits with stored weights, as integers.c makes them, for processors with AVX2 and without
   AVX-512: by vpmaddwd, or with AVX-VNNI by vpdpbusd and vpdpwssd. Sums within a group are exact. Those of 4-bit codes:
   codes_avx2.c.

   vpmaddubsw adds two products of 8 bits in 16, where 2 x 255 x 127 has no room; hence 16 bits for both. */

#include "planes.h"

#if defined(HAS_PLANES) && !defined(HAS_DOTS)

#include "integers.h"

#include <immintrin.h>

#define ALWAYS static inline __attribute__((always_inline))
/* Outputs of a tile: two registers of eight. */
enum { AHEAD = 4096, STEP = 4 * PANEL, EIGHT = 8, HALF = 2 * EIGHT };

ALWAYS __m256i load(const void *at) { return _mm256_loadu_si256(at); }

ALWAYS __m256i four_bytes(const void *at) {
    int32_t all;
    memcpy(&all, at, sizeof all);
    return _mm256_set1_epi32(all);
}

/* Of each four codes the first and the third, and the second and the fourth, in 16 bits. */
ALWAYS __m256i evens(__m256i codes) { return _mm256_and_si256(codes, _mm256_set1_epi16(255)); }
ALWAYS __m256i odds(__m256i codes) { return _mm256_srli_epi16(codes, 8); }

ALWAYS __m256i add_pairs(__m256i sum, __m256i codes, __m256i x) {
#if defined(__AVXVNNI__)
    sum = _mm256_dpwssd_avx_epi32(sum, codes, x);
#elif HAS_DPBUSD
    sum = _mm256_dpwssd_epi32(sum, codes, x);
#else
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(codes, x));
#endif
    __asm__("" : "+x"(sum)); /* else GCC 12 adds in another order, for which there are not enough registers */
    return sum;
}

#if HAS_DPBUSD
ALWAYS __m256i add_fours(__m256i sum, __m256i codes, __m256i x) {
#ifdef __AVXVNNI__
    sum = _mm256_dpbusd_avx_epi32(sum, codes, x);
#else
    sum = _mm256_dpbusd_epi32(sum, codes, x);
#endif
    __asm__("" : "+x"(sum));
    return sum;
}
#endif

ALWAYS void add_scaled(__m256i sum, const tile *t, long at, float by, float *result) {
    __m256 scale = _mm256_set1_ps(by);
    if (t->scales) scale = _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(t->scales + at), _mm256_set1_ps(t->unit)), scale);
    _mm256_storeu_ps(result + at, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, _mm256_loadu_ps(result + at)));
}

/* What the rest of a row adds where it has one. */
static __attribute__((noinline)) void add_rest(const tile *t, const operand *x, long at, float *result) {
    for (long i = 0; i < PANEL; i += EIGHT) {
        __m256i sum = _mm256_set1_epi32(x->rest_sums[at]);
        for (long k = 0; k < t->inputs; k += 4) {
            const __m256i codes = load(t->codes + k * PANEL + 4 * i), four = four_bytes(x->rest + at * GROUP + k);
            sum = add_pairs(sum, evens(codes), _mm256_srai_epi16(_mm256_slli_epi16(four, 8), 8));
            sum = add_pairs(sum, odds(codes), _mm256_srai_epi16(four, 8));
        }
        add_scaled(sum, t, i, x->scales[at] / REST, result);
    }
}

/* `rows` rows from `at`, `is_wide`: in 16 bits; half a panel after the other, so that sums stay in registers. */
ALWAYS void add_tile(const tile *t, const operand *x, long at, const int rows, const int is_wide, float *result) {
    for (long half = 0; half < PANEL; half += HALF) {
        __m256i sum[6][2];
#pragma GCC unroll 6
        for (int m = 0; m < rows; m++) sum[m][0] = sum[m][1] = _mm256_set1_epi32(x->high_sums[at + m]);
        const uint8_t *codes = t->codes + 4 * half, *end = codes + t->inputs * PANEL;
        const int16_t *both = x->both + at * GROUP;
        const int8_t *bytes = x->high + at * GROUP;
        (void)is_wide;
        for (; codes < end; codes += STEP, both += 4, bytes += 4) {
            _mm_prefetch((const char *)codes + AHEAD, _MM_HINT_T0);
#if HAS_DPBUSD
            if (!is_wide) { /* without vpdpbusd all are: planes.h */
                const __m256i a = load(codes), b = load(codes + 4 * EIGHT);
#pragma GCC unroll 6
                for (int m = 0; m < rows; m++) {
                    const __m256i four = four_bytes(bytes + m * GROUP);
                    sum[m][0] = add_fours(sum[m][0], a, four);
                    sum[m][1] = add_fours(sum[m][1], b, four);
                }
                continue;
            }
#endif
#pragma GCC unroll 2
            for (int odd = 0; odd < 2; odd++) {
                const __m256i a = odd ? odds(load(codes)) : evens(load(codes));
                const __m256i b = odd ? odds(load(codes + 4 * EIGHT)) : evens(load(codes + 4 * EIGHT));
#pragma GCC unroll 6
                for (int m = 0; m < rows; m++) {
                    const __m256i pair = four_bytes(both + m * GROUP + 2 * odd);
                    sum[m][0] = add_pairs(sum[m][0], a, pair);
                    sum[m][1] = add_pairs(sum[m][1], b, pair);
                }
            }
        }
#pragma GCC unroll 6
        for (int m = 0; m < rows; m++)
            for (int v = 0; v < 2; v++)
                add_scaled(sum[m][v], t, half + v * EIGHT, x->scales[at + m], result + m * PANEL);
    }
    for (int m = 0; m < rows; m++)
        if (__builtin_expect(x->has_rest[at + m], 0)) add_rest(t, x, at + m, result + m * PANEL);
}

static long add_some(const tile *t, const operand *x, long at, long rows, float *result) {
#define TAKE(n)                                                                                                        \
    if (rows >= n) {                                                                                                   \
        if (x->both) add_tile(t, x, at, n, 1, result);                                                                 \
        else add_tile(t, x, at, n, 0, result);                                                                         \
        return n;                                                                                                      \
    }
    if (rows != 8) { TAKE(6) } /* 4 and 4 take less than 6 and 2 */
    TAKE(4) TAKE(3) TAKE(2) TAKE(1)
    return rows;
}

void unpack_levels(const uint8_t *codes, const uint8_t *levels, long inputs, uint8_t *to) {
    const __m256i table = load(levels), low = _mm256_set1_epi8(15); /* the table is once in each 128 bits */
    for (long k = 0; k < inputs; k += 8, to += STEP)
        for (long i = 0; i < STEP; i += 4 * EIGHT, codes += 4 * EIGHT, to += 4 * EIGHT) {
            const __m256i some = load(codes), upper = _mm256_srli_epi16(some, 4);
            _mm256_storeu_si256((__m256i *)to, _mm256_shuffle_epi8(table, _mm256_and_si256(some, low)));
            _mm256_storeu_si256((__m256i *)(to + STEP), _mm256_shuffle_epi8(table, _mm256_and_si256(upper, low)));
        }
}

void add_block_offsets(const matrix *w, long index, const operand *x, long first, long rows, float *result) {
    const long blocks = w->in / w->block;
    const float *offsets = w->offsets + index * blocks * PANEL, *sums = x->sums + first * blocks;
    for (long m = 0; m < rows; m++, result += PANEL, sums += blocks)
        for (long g = 0; g < blocks; g++)
            for (long i = 0; i < PANEL; i++) result[i] += offsets[g * PANEL + i] * sums[g];
}

static void add_offsets(const matrix *w, long index, const operand *x, long first, long rows, float *result) {
    add_block_offsets(w, index, x, first, rows, result);
}

static inline void fetch_scales(const float *scales) { (void)scales; }

#endif
