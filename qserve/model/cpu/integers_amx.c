/* Products of planes by tiles (AMX), for many rows: the same exact sums within a group as in integers.c, scaled and added in the
   same order, so that a row's numbers do not depend on how many there are. */

#include "planes.h"

#ifdef HAS_INTEGER_TILES

#include <immintrin.h>

#define ALWAYS static inline __attribute__((always_inline))
/* Groups whose sums are added at once: more of them would fill the nearest cache. */
enum { GROUPS = 2, ROWS = 2 * TILE_ROWS };

/* A group of a panel: signed codes, what its weights are multiplied with (NULL: nothing yet), and its place in an operand. */
typedef struct {
    int8_t codes[GROUP * PANEL] __attribute__((aligned(64)));
    const float *scales;
    float unit;
    long at;
} piece;

/* Of up to ROWS rows and one group; the second plane's, and of the rest where a row has one. */
typedef struct { int32_t high[ROWS * PANEL], low[ROWS * PANEL], rest[ROWS * PANEL]; } sums __attribute__((aligned(64)));

static void take_group(const matrix *w, long index, long g, const operand *x, piece *to) {
    const long first = g * x->group;
    const uint8_t *codes = w->codes + index * panel_bytes(w) + first * PANEL * bits_of(w) / 8;
    const __m512i sign = _mm512_set1_epi8(-128);
    to->scales = has_blocks(w) ? w->scales + (index * (w->in / w->block) + first / w->block) * PANEL : NULL;
    to->unit = w->kind == CODES ? w->unit : 1.0f;
    to->at = g * x->rows;
    if (w->kind == CODES) {
        uint8_t levels[GROUP];
        _mm512_storeu_si512(levels, _mm512_xor_si512(_mm512_loadu_si512(w->levels), sign));
        unpack_levels(codes, levels, x->group, (uint8_t *)to->codes);
        return;
    }
    for (long i = 0; i < x->group * PANEL; i += GROUP) {
        if (i % (2 * GROUP) == 0) fetch_two_lines(codes + i + AHEAD);
        _mm512_store_si512(to->codes + i, _mm512_xor_si512(_mm512_loadu_si512(codes + i), sign));
    }
}

static void sum_group(const piece *one, const operand *x, long first, long rows, sums *to) {
    const long at = one->at + first;
    uint8_t any = 0;
    for (long m = 0; m < rows; m++) any |= x->has_rest[at + m];
    integer_tiles(one->codes, x->group, x->high + at * GROUP, rows, to->high);
    if (x->planes == 2) integer_tiles(one->codes, x->group, x->low + at * GROUP, rows, to->low);
    if (any) integer_tiles(one->codes, x->group, x->rest + at * GROUP, rows, to->rest);
}

ALWAYS __m512 scaled(const int32_t *sum, __m512 scale, __m512 result) {
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_loadu_si512(sum)), scale, result);
}

/* Of one or two planes, with scales of groups or without, and one or two groups. */
ALWAYS void add_sums(const piece *all, const int groups, const operand *x, long first, long rows, const sums *from, const int planes,
                     const int is_scaled, float *result) {
    __m512 scales[GROUPS][2];
    for (int g = 0; g < groups; g++)
        for (int v = 0; v < 2; v++)
            scales[g][v] = is_scaled ? _mm512_mul_ps(_mm512_loadu_ps(all[g].scales + v * LANE), _mm512_set1_ps(all[g].unit))
                                     : _mm512_set1_ps(1.0f);
    for (long m = 0; m < rows; m++, result += PANEL) {
        __m512 sum[2] = {_mm512_loadu_ps(result), _mm512_loadu_ps(result + LANE)};
#pragma GCC unroll 2
        for (int g = 0; g < groups; g++) {
            const long at = all[g].at + first + m;
            const __m512 scale = _mm512_set1_ps(x->scales[at]), rest_scale = _mm512_set1_ps(x->scales[at] / REST);
#pragma GCC unroll 2
            for (int v = 0; v < 2; v++) {
                const long place = m * PANEL + v * LANE;
                __m512i both = _mm512_loadu_si512(from[g].high + place);
                if (planes == 2)
                    both = _mm512_add_epi32(_mm512_slli_epi32(both, 8), _mm512_loadu_si512(from[g].low + place));
                sum[v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(both), is_scaled ? _mm512_mul_ps(scales[g][v], scale) : scale, sum[v]);
                if (__builtin_expect(x->has_rest[at], 0))
                    sum[v] = scaled(from[g].rest + place, _mm512_mul_ps(scales[g][v], rest_scale), sum[v]);
            }
        }
        _mm512_storeu_ps(result, sum[0]);
        _mm512_storeu_ps(result + LANE, sum[1]);
    }
}

int add_by_tiles(const matrix *w, long index, const operand *x, long first, long rows, float *result) {
    if (!has_integer_tiles(rows)) return 0;
    piece pieces[GROUPS];
    sums found[GROUPS];
    for (long g = 0; g < w->in / x->group; g += GROUPS) {
        const int groups = w->in / x->group - g < GROUPS ? 1 : GROUPS;
        for (int i = 0; i < groups; i++) take_group(w, index, g + i, x, pieces + i);
        for (long m = 0; m < rows; m += ROWS) {
            const long some = rows - m < ROWS ? rows - m : ROWS;
            for (int i = 0; i < groups; i++) sum_group(pieces + i, x, first + m, some, found + i);
#define ADD(n, planes, is_scaled) add_sums(pieces, n, x, first + m, some, found, planes, is_scaled, result + m * PANEL)
#define ADD_GROUPS(planes, is_scaled)                                                                                   \
    if (groups == 1) ADD(1, planes, is_scaled);                                                                        \
    else ADD(GROUPS, planes, is_scaled)
            if (x->planes == 2 && has_blocks(w)) {
                ADD_GROUPS(2, 1);
            } else if (x->planes == 2) {
                ADD_GROUPS(2, 0);
            } else if (has_blocks(w)) {
                ADD_GROUPS(1, 1);
            } else {
                ADD_GROUPS(1, 0);
            }
        }
    }
    return 1;
}

#endif
