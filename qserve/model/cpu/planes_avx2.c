/* Rows of bf16 as integers of 8 or 15 bits, as planes.c makes them, for processors with AVX2 and without AVX-512. */

#include "planes.h"

#include <string.h>

#include "threads.h"

#if defined(HAS_PLANES) && !defined(HAS_DOTS)

#include <immintrin.h>

#define ALWAYS static inline __attribute__((always_inline))
enum { EIGHT = 8, MOST_PARTS = GROUP / EIGHT };

/* A group of a row: [parts][8] numbers, and where its integers go; has_pairs: what is taken away is as codes_avx2.c adds it in
   16 bits. */
typedef struct {
    int8_t *high, *rest;
    int16_t *both;
    int has_pairs;
    uint8_t *has_rest;
    float *scale;
    int32_t *sum, *rest_sum;
} group;

ALWAYS __m256 size_of(__m256 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }

ALWAYS float sum_of(__m256 x) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

ALWAYS float largest_of(__m256 x) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

ALWAYS int32_t total_of(__m256i x) {
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

/* 16 integers of 32 bits, those that are too large at the limit. */
ALWAYS __m256i narrowed(__m256i first, __m256i second) {
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(first, second), 0xd8);
}

ALWAYS void store_bytes(__m256i sixteen, int8_t *to) {
    const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(sixteen, sixteen), 0xd8);
    _mm_storeu_si128((__m128i *)to, _mm256_castsi256_si128(bytes));
}

/* Of each four the first, the third, the second and the fourth. */
ALWAYS void store_pairs(__m256i sixteen, int16_t *to) {
    sixteen = _mm256_shufflelo_epi16(_mm256_shufflehi_epi16(sixteen, 0xd8), 0xd8);
    _mm256_storeu_si256((__m256i *)to, sixteen);
}

/* -8 times the sums of bytes 0 and 1, and of 2 and 3, of all fours, in 16 bits each. */
ALWAYS int32_t less_by_pairs(const int8_t *bytes, const int parts) {
    __m256i sum = _mm256_setzero_si256();
    for (int i = 0; i < parts * EIGHT; i += 4 * EIGHT) {
        const __m256i some = _mm256_loadu_si256((const __m256i *)(bytes + i));
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(_mm256_set1_epi8(1), some));
    }
    __m128i four = _mm_add_epi16(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    four = _mm_add_epi16(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_add_epi16(four, _mm_shuffle_epi32(four, 0xb1));
    return _mm_cvtsi128_si32(_mm_mullo_epi16(four, _mm_set1_epi16(-8)));
}

ALWAYS void keep_rest(const __m256 *left, const int parts, const group *to) {
    const __m256 steps = _mm256_set1_ps(REST);
    __m256i sum = _mm256_setzero_si256();
    for (int i = 0; i < parts; i += 2) {
        const __m256i first = _mm256_cvtps_epi32(_mm256_mul_ps(left[i], steps));
        const __m256i second = _mm256_cvtps_epi32(_mm256_mul_ps(left[i + 1], steps));
        sum = _mm256_add_epi32(sum, _mm256_add_epi32(first, second));
        store_bytes(narrowed(first, second), to->rest + i * EIGHT);
    }
    *to->rest_sum = to->has_pairs ? less_by_pairs(to->rest, parts) : -128 * total_of(sum);
}

/* What is no number makes the scale NaN. */
ALWAYS void split_group(__m256 *x, const int parts, int planes, const group *to) {
    __m256 most = _mm256_setzero_ps(), all_sizes = most, finite = _mm256_cmp_ps(most, most, _CMP_EQ_OQ), lost = most;
    for (int i = 0; i < parts; i++) {
        const __m256 size = size_of(x[i]);
        most = _mm256_max_ps(size, most);
        all_sizes = _mm256_add_ps(all_sizes, size);
        finite = _mm256_and_ps(finite, _mm256_cmp_ps(size, _mm256_set1_ps(INFINITY), _CMP_LT_OQ));
    }
    const float largest = largest_of(most), scale = scale_for(largest, planes);
    const __m256 steps = _mm256_set1_ps(scale > 0 ? 1.0f / scale : 0.0f);
    __m256i sum = _mm256_setzero_si256();
    for (int i = 0; i < parts; i += 2) {
        __m256i whole[2];
        for (int j = 0; j < 2; j++) {
            const __m256 exact = _mm256_mul_ps(x[i + j], steps);
            whole[j] = _mm256_cvtps_epi32(exact);
            x[i + j] = _mm256_sub_ps(exact, _mm256_cvtepi32_ps(whole[j]));
            lost = _mm256_add_ps(lost, size_of(x[i + j]));
            sum = _mm256_add_epi32(sum, whole[j]);
        }
        const __m256i sixteen = narrowed(whole[0], whole[1]);
        if (to->both) store_pairs(sixteen, to->both + i * EIGHT);
        else store_bytes(sixteen, to->high + i * EIGHT);
    }
    *to->sum = to->has_pairs ? less_by_pairs(to->high, parts) : (int32_t)(-128 * (uint32_t)total_of(sum));
    *to->scale = _mm256_movemask_ps(finite) == 255 ? scale : NAN;
    *to->has_rest = sum_of(lost) * scale > TOO_ROUGH[planes] * (sum_of(all_sizes) - largest);
    if (*to->has_rest) keep_rest(x, parts, to);
}

/* places: of eight inputs, as bytes of vpshufb. */
typedef struct { operand *x; const matrix *w; __m256i places; int has_pairs; } split;

ALWAYS void split_at(const split *all, const bf16 *x, const int parts, const group *to) {
    __m256 values[MOST_PARTS];
    for (int i = 0; i < parts; i += 2) {
        const __m256i some = _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i *)(x + i * EIGHT)), all->places);
        values[i] = (__m256)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(some)), 16);
        values[i + 1] = (__m256)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_extracti128_si256(some, 1)), 16);
    }
    split_group(values, parts, all->x->planes, to);
}

static void split_row(void *shared, long m) {
    const split *all = shared;
    const operand *x = all->x;
    for (long g = 0, k = 0; k < all->w->in; g++, k += x->group) {
        const long at = g * x->rows + m, first = at * GROUP;
        const group to = {x->high + first, x->rest + first, x->both ? x->both + first : NULL, all->has_pairs,
                          x->has_rest + at, x->scales + at, x->high_sums + at, x->rest_sums + at};
        const bf16 *some = x->x + m * x->stride + k;
        if (x->group == GROUP) split_at(all, some, MOST_PARTS, &to);
        else split_at(all, some, MOST_PARTS / 2, &to);
    }
}

int split_in_planes(operand *x, const matrix *w) {
    x->group = group_of(w);
    const long groups = x->rows * (w->in / x->group), size = groups * GROUP;
    const int is_wide = x->planes == 2;
    char *memory = scratch(0, size * (is_wide ? 3 : 2) + groups * (3 * sizeof(float) + 1));
    if (!memory) return 1;
    x->rest = (int8_t *)memory;
    x->high = x->rest + size;
    x->both = is_wide ? (int16_t *)x->high : NULL;
    x->scales = (float *)(memory + size * (is_wide ? 3 : 2));
    x->high_sums = (int32_t *)(x->scales + groups);
    x->rest_sums = x->high_sums + groups;
    x->has_rest = (uint8_t *)(x->rest_sums + groups);
    uint8_t places[4 * EIGHT];
    for (int i = 0; i < 4 * EIGHT; i++) places[i] = 2 * place_of(w, i / 2 % EIGHT) + i % 2;
    const int has_pairs = x->planes == 1 && has_codes_product(w, x->planes);
    split all = {x, w, _mm256_loadu_si256((const __m256i *)places), has_pairs};
    for_each(x->rows, split_row, &all);
    return 0;
}

#endif
