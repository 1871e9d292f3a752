/* Rows of bf16 in planes of 8 bits. Groups of inputs share a scale; of each group all rows lie together, so that a product
   that holds a group of weights reads them from end to end. With AVX2 alone: planes_avx2.c. */

#include "planes.h"

#include <string.h>

#include "threads.h"

#ifdef HAS_DOTS

#include <immintrin.h>

/* Into `split_group`, where the number of inputs is a constant: their loops become a few instructions each. */
#define ALWAYS static inline __attribute__((always_inline))

/* What belongs to one group of a row. */
typedef struct { int8_t *high, *low, *rest; uint8_t *has_rest; float *scale; int32_t *high_sum, *low_sum, *rest_sum; } group;

/* Of a group: the largest, the sum of sizes, and whether all are numbers. */
typedef struct { float most, all_sizes; int is_finite; } extent;

ALWAYS __m512 sixteen_of(const bf16 *x) {
    return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)x)), 16);
}

ALWAYS extent extent_of(const __m512 *x, const int vectors) {
    __m512 most = _mm512_setzero_ps(), all_sizes = most;
    __mmask16 not_finite = 0;
    for (int i = 0; i < vectors; i++) {
        const __m512 size = _mm512_abs_ps(x[i]);
        most = _mm512_max_ps(size, most);
        all_sizes = _mm512_add_ps(all_sizes, size);
        not_finite |= _mm512_cmp_ps_mask(size, _mm512_set1_ps(INFINITY), _CMP_NLT_UQ);
    }
    return (extent){_mm512_reduce_max_ps(most), _mm512_reduce_add_ps(all_sizes), !not_finite};
}

ALWAYS void store_bytes(__m512i x, int8_t *to) { _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8(x)); }

/* Integers of `x` in steps, in one plane: the largest is 127; or in two of 15 bits together. `x` becomes what rounding lost, of
   which the sum of sizes is returned. */
ALWAYS float round_group(__m512 *x, const int vectors, int planes, float steps, const group *to) {
    __m512 lost = _mm512_setzero_ps();
    __m512i high_sum = _mm512_setzero_si512(), low_sum = high_sum;
    for (int i = 0; i < vectors; i++) {
        const __m512 exact = _mm512_mul_ps(x[i], _mm512_set1_ps(steps));
        const __m512i all = _mm512_cvtps_epi32(exact);
        x[i] = _mm512_sub_ps(exact, _mm512_cvtepi32_ps(all));
        lost = _mm512_add_ps(lost, _mm512_abs_ps(x[i]));
        __m512i high = all;
        if (planes == 2) {
            high = _mm512_srai_epi32(_mm512_add_epi32(all, _mm512_set1_epi32(128)), 8);
            const __m512i low = _mm512_sub_epi32(all, _mm512_slli_epi32(high, 8));
            low_sum = _mm512_add_epi32(low_sum, low);
            store_bytes(low, to->low + i * LANE);
        }
        high_sum = _mm512_add_epi32(high_sum, high);
        store_bytes(high, to->high + i * LANE);
    }
    *to->high_sum = -128 * _mm512_reduce_add_epi32(high_sum);
    if (planes == 2) *to->low_sum = -128 * _mm512_reduce_add_epi32(low_sum);
    return _mm512_reduce_add_ps(lost);
}

ALWAYS void keep_rest(const __m512 *left, const int vectors, const group *to) {
    __m512i sum = _mm512_setzero_si512();
    for (int i = 0; i < vectors; i++) {
        const __m512i part = _mm512_cvtps_epi32(_mm512_mul_ps(left[i], _mm512_set1_ps(REST)));
        sum = _mm512_add_epi32(sum, part);
        store_bytes(part, to->rest + i * LANE);
    }
    *to->rest_sum = -128 * _mm512_reduce_add_epi32(sum);
}

/* Of 16 times `vectors` inputs. What is no number makes the scale NaN. */
ALWAYS void split_group(__m512 *x, const int vectors, int planes, const group *to) {
    const extent found = extent_of(x, vectors);
    const float scale = scale_for(found.most, planes), steps = scale > 0 ? 1.0f / scale : 0.0f;
    const float lost = round_group(x, vectors, planes, steps, to);
    *to->scale = found.is_finite ? scale : NAN;
    *to->has_rest = lost * scale > TOO_ROUGH[planes] * (found.all_sizes - found.most);
    if (*to->has_rest) keep_rest(x, vectors, to);
}

/* Of 32 inputs. */
static __m512i places_of(const matrix *w) {
    uint16_t places[2 * LANE];
    for (int i = 0; i < 2 * LANE; i++) places[i] = place_of(w, i);
    return _mm512_loadu_si512(places);
}

typedef struct { operand *x; const matrix *w; __m512i places; } split;

ALWAYS void split_at(const split *all, const bf16 *x, const int vectors, const group *to) {
    bf16 in_order[GROUP];
    if (has_blocks(all->w)) {
        for (int i = 0; i < vectors / 2; i++) {
            const __m512i some = _mm512_loadu_si512(x + i * 2 * LANE);
            _mm512_storeu_si512(in_order + i * 2 * LANE, _mm512_permutexvar_epi16(all->places, some));
        }
        x = in_order;
    }
    __m512 values[GROUP / LANE];
    for (int i = 0; i < vectors; i++) values[i] = sixteen_of(x + i * LANE);
    split_group(values, vectors, all->x->planes, to);
}

static void split_row(void *shared, long m) {
    const split *all = shared;
    const operand *x = all->x;
    for (long g = 0, k = 0; k < all->w->in; g++, k += x->group) {
        const long at = g * x->rows + m, first = at * GROUP;
        const group to = {x->high + first, x->low + first, x->rest + first, x->has_rest + at, x->scales + at,
                          x->high_sums + at, x->low_sums + at, x->rest_sums + at};
        const bf16 *some = x->x + m * x->stride + k;
        if (x->group == GROUP) split_at(all, some, GROUP / LANE, &to);
        else split_at(all, some, GROUP / 2 / LANE, &to);
    }
}

int split_in_planes(operand *x, const matrix *w) {
    x->group = group_of(w);
    const long groups = x->rows * (w->in / x->group), size = groups * GROUP;
    char *memory = scratch(0, size * (x->planes + 1) + groups * (4 * sizeof(float) + 1));
    if (!memory) return 1;
    x->high = (int8_t *)memory; /* first: where a group begins, a line of the cache does */
    x->rest = x->high + size;
    x->low = x->planes == 2 ? x->rest + size : x->rest; /* of one plane it is not touched */
    x->scales = (float *)(memory + size * (x->planes + 1));
    x->high_sums = (int32_t *)(x->scales + groups);
    x->low_sums = x->high_sums + groups;
    x->rest_sums = x->low_sums + groups;
    x->has_rest = (uint8_t *)(x->rest_sums + groups);
    split all = {x, w, places_of(w)};
    for_each(x->rows, split_row, &all);
    return 0;
}

#endif
