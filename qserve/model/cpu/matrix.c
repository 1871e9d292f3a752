/* Products of a few or many rows in bf16 with a panel of a stored weight, for processors with AVX512-VNNI (dots.h).
   Those of integers of 8 bits, and of weights whose activations are rounded to 8 bits: integers.c.

   Up to 8 rows the weights are read as they are stored: the time is that of memory.
     BFLOAT16  pairs of inputs;
     CODES     values in bf16 out of a table of 16 (vpermw), pairs of them, the scale in fp32 once a block;
     BYTES     the same with a table of 256 (vpermi2w).
   For more rows a panel is unpacked once to bf16 and stays in the cache for all of them, which rounds otherwise. With tiles
   (amx.c) that is from three rows on, and they multiply BFLOAT16 whatever the rows are. For processors without these: portable.c. */

#include "amx.h"
#include "matrix.h"
#include "panels.h"
#include "planes.h"
#include "threads.h"

#include <string.h>

#ifdef HAS_DOTS

#include <immintrin.h>

#define ALWAYS static inline __attribute__((always_inline))
/* Of scales; rows of codes that memory is slower than; of rows that are multiplied with several panels by tiles: 256 KB and what
   lies between them. */
enum { BLOCKS_AHEAD = 8, MEMORY_ROWS = 4, BLOCK_BYTES = (1 << 18) + (1 << 14), SLICE_INPUTS = 1024, LONG_INPUTS = 4096 };

int prepare(operand *x, const matrix *w) {
    if (w->order && put_in_order(x, w)) return 1;
    x->planes = x->is_prompt && prompts_apart(w) ? 0 : planes_for(w);
    if (x->planes ? split_in_planes(x, w) : make_terms(x)) return 1;
    return has_blocks(w) && w->offsets ? sum_blocks(x, w->in, w->block) : 0;
}

/* Two inputs of 16 outputs in fp32 to pairs in bf16. */
ALWAYS void store_pairs(__m512 even, __m512 odd, bf16 *to) { _mm512_storeu_si512(to, to_bf16s(even, odd)); }

static void unpack_codes(const matrix *w, long index, bf16 *to) {
    const uint8_t *panel = w->codes + index * panel_bytes(w);
    const long blocks = w->in / w->block;
    const __m512 table = _mm512_loadu_ps(w->values);
    for (long k = 0; k < w->in; k += 8, panel += 4 * PANEL)
        for (int v = 0; v < 2; v++) {
            const __m512i eight = _mm512_loadu_si512(panel + v * 4 * LANE);
            const long at = (index * blocks + k / w->block) * PANEL + v * LANE;
            const __m512 scale = _mm512_loadu_ps(w->scales + at);
            const __m512 offset = w->offsets ? _mm512_loadu_ps(w->offsets + at) : _mm512_setzero_ps();
            for (int t = 0; t < 4; t++) { /* an index of vpermps has four bits: those above it are ignored */
                __m512 even = _mm512_permutexvar_ps(_mm512_srli_epi32(eight, 4 * t), table);
                __m512 odd = _mm512_permutexvar_ps(_mm512_srli_epi32(eight, 16 + 4 * t), table);
                even = _mm512_mul_ps(even, scale), odd = _mm512_mul_ps(odd, scale);
                if (w->offsets) even = _mm512_add_ps(even, offset), odd = _mm512_add_ps(odd, offset);
                store_pairs(even, odd, to + ((k / 2 + t) * PANEL + v * LANE) * 2);
            }
        }
}

enum { MOST_TABLE = 8 };

/* The values in bf16, 32 a register; those of CODES twice: an index of vpermw has five bits, and the fifth belongs to the
   next code. */
ALWAYS void load_table(const matrix *w, const int bits, __m512i *table) {
    bf16 values[MOST_TABLE * 2 * LANE];
    const int count = bits == 4 ? 2 * LANE : MOST_TABLE * 2 * LANE;
    for (int i = 0; i < count; i++) values[i] = narrow(w->values[bits == 4 ? i % LANE : i]);
    for (int i = 0; i < count / (2 * LANE); i++) table[i] = _mm512_loadu_si512(values + i * 2 * LANE);
}

/* The values of the codes in the lowest `bits` of each 16. */
ALWAYS __m512i values_at(__m512i at, const __m512i *table, const int bits) {
    if (bits == 4) return _mm512_permutexvar_epi16(at, table[0]);
    const __mmask32 odd = _mm512_test_epi16_mask(at, _mm512_set1_epi16(64));
    const __mmask32 upper = _mm512_test_epi16_mask(at, _mm512_set1_epi16(128));
    const __m512i low = _mm512_mask_blend_epi16(odd, _mm512_permutex2var_epi16(table[0], at, table[1]),
                                                _mm512_permutex2var_epi16(table[2], at, table[3]));
    const __m512i high = _mm512_mask_blend_epi16(odd, _mm512_permutex2var_epi16(table[4], at, table[5]),
                                                 _mm512_permutex2var_epi16(table[6], at, table[7]));
    return _mm512_mask_blend_epi16(upper, low, high);
}

static void unpack_integers(const matrix *w, long index, bf16 *to) {
    const uint8_t *panel = w->codes + index * panel_bytes(w);
    const __m512i byte = _mm512_set1_epi32(255);
    const __m512 zero = _mm512_set1_ps(128.0f);
    for (long k = 0; k < w->in; k += 4, panel += 4 * PANEL)
        for (int v = 0; v < 2; v++) {
            const __m512i four = _mm512_loadu_si512(panel + v * 4 * LANE);
            for (int t = 0; t < 2; t++) {
                const __m512i even = _mm512_and_si512(_mm512_srli_epi32(four, 16 * t), byte);
                const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(four, 16 * t + 8), byte);
                store_pairs(_mm512_sub_ps(_mm512_cvtepi32_ps(even), zero), _mm512_sub_ps(_mm512_cvtepi32_ps(odd), zero),
                            to + ((k / 2 + t) * PANEL + v * LANE) * 2);
            }
        }
}

static void unpack_bytes(const matrix *w, long index, bf16 *to) {
    const uint8_t *panel = w->codes + index * panel_bytes(w);
    const long blocks = w->in / w->block;
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    __m512i table[MOST_TABLE];
    load_table(w, 8, table);
    for (long k = 0; k < w->in; k += 4, panel += 4 * PANEL)
        for (int v = 0; v < 2; v++) {
            const __m512i four = _mm512_loadu_si512(panel + v * 4 * LANE);
            const long at = (index * blocks + k / w->block) * PANEL + v * LANE;
            const __m512 scale = _mm512_loadu_ps(w->scales + at);
            const __m512 offset = w->offsets ? _mm512_loadu_ps(w->offsets + at) : _mm512_setzero_ps();
            for (int t = 0; t < 2; t++) {
                const __m512i pair = values_at(_mm512_srli_epi16(four, 8 * t), table, 8);
                __m512 even = _mm512_mul_ps((__m512)_mm512_slli_epi32(pair, 16), scale);
                __m512 odd = _mm512_mul_ps((__m512)_mm512_and_si512(pair, upper), scale);
                if (w->offsets) even = _mm512_add_ps(even, offset), odd = _mm512_add_ps(odd, offset);
                store_pairs(even, odd, to + ((k / 2 + t) * PANEL + v * LANE) * 2);
            }
        }
}

/* Whether these rows are multiplied by tiles. */
static int by_tiles(const operand *x) {
#ifdef HAS_TILES
    return !x->planes && x->stride % TILE_INPUTS == 0 && has_tiles();
#else
    (void)x;
    return 0;
#endif
}

long rows_at_once(const operand *x, long rows) {
    if (x->planes) return has_integer_tiles(rows) ? TILES_ROWS : PLANE_ROWS;
    return by_tiles(x) ? TILES_ROWS : rows > FEW_ROWS ? MOST_ROWS : FEW_ROWS;
}

long rows_of_a_block(const operand *x) {
    if (!(x->planes ? has_integer_tiles(x->rows) : by_tiles(x))) return x->rows;
    const long bytes = x->planes ? x->planes : (long)sizeof(bf16), rows = BLOCK_BYTES / (x->stride * bytes) / (2 * LANE) * (2 * LANE);
    return rows < 2 * LANE ? 2 * LANE : rows > TILES_ROWS ? TILES_ROWS : rows;
}

long inputs_of_a_slice(const matrix *w, const operand *x) {
    return by_tiles(x) && w->kind == BFLOAT16 && w->in > LONG_INPUTS && x->rows > 2 * LANE ? SLICE_INPUTS : 0;
}

void slice_product(const matrix *w, long index, const operand *x, long first, long rows, long from, long count, upcoming next,
                   float *result) {
#ifdef HAS_TILES
    const bf16 *panel = (const bf16 *)(w->codes + index * panel_bytes(w)) + from * PANEL;
    tiles_product(halves_of(panel), count, x->x + first * x->stride + from, x->stride, rows, result, PANEL, from > 0, next);
#else
    (void)w, (void)index, (void)x, (void)first, (void)rows, (void)from, (void)count, (void)next, (void)result;
#endif
}

int wants_unpacked(const matrix *w, const operand *x, long rows) {
    if (x->planes || w->kind == BFLOAT16) return 0;
    return (x->is_prompt && by_tiles(x)) || rows > (by_tiles(x) ? RARE_ROWS : FEW_ROWS);
}

int prompts_apart(const matrix *w) {
#ifdef HAS_TILES
    return planes_for(w) && w->in % TILE_INPUTS == 0 && has_tiles();
#else
    (void)w;
    return 0;
#endif
}

int has_fast_products(void) { return 1; }

int has_int8_activations(void) { return 1; }

const bf16 *unpacked(const matrix *w, long index, bf16 *to) {
    if (w->kind == BFLOAT16) return (const bf16 *)(w->codes + index * panel_bytes(w));
    if (w->kind == CODES) unpack_codes(w, index, to);
    if (w->kind == BYTES) unpack_bytes(w, index, to);
    if (w->kind == INT8) unpack_integers(w, index, to);
    return to;
}

/* rows x 32 of a panel in bf16, [in / 2][32][2]. */
ALWAYS void by_pairs(const bf16 *panel, long in, const element *x, long stride, const int rows, float *result) {
    __m512 sum[MOST_ROWS][2];
    for (int m = 0; m < rows; m++) sum[m][0] = sum[m][1] = _mm512_setzero_ps();
    for (long k = 0; k < in; k += 2, panel += 2 * PANEL) {
        const pairs a = pairs_of(_mm512_loadu_si512(panel)), b = pairs_of(_mm512_loadu_si512(panel + 2 * LANE));
        fetch_two_lines((const uint8_t *)panel + AHEAD);
#pragma GCC unroll 12
        for (int m = 0; m < rows; m++) {
            sum[m][0] = add_pair(sum[m][0], x + m * stride + k, a);
            sum[m][1] = add_pair(sum[m][1], x + m * stride + k, b);
        }
    }
    for (int m = 0; m < rows; m++)
        for (int v = 0; v < 2; v++) _mm512_storeu_ps(result + m * PANEL + v * LANE, sum[m][v]);
}

/* Up to 8 rows x 32 of a panel of codes; one row has two sums an output, or it would wait for each product. */
ALWAYS void coded(const matrix *w, long index, const operand *x, long first, const int rows, const int bits, float *result) {
    __m512i table[MOST_TABLE];
    load_table(w, bits, table);
    const long blocks = w->in / w->block;
    const uint8_t *panel = w->codes + index * panel_bytes(w);
    const float *scales = w->scales + index * blocks * PANEL;
    const float *offsets = w->offsets ? w->offsets + index * blocks * PANEL : NULL;
    memset(result, 0, rows * PANEL * sizeof(float));
    for (long g = 0; g < blocks; g++, scales += PANEL) {
        __m512 sum[FEW_ROWS][2], more[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        for (int m = 0; m < rows; m++) sum[m][0] = sum[m][1] = _mm512_setzero_ps();
        if (rows <= MEMORY_ROWS) fetch_two_lines(scales + BLOCKS_AHEAD * PANEL);
        for (long k = g * w->block; k < (g + 1) * w->block; k += 32 / bits, panel += 128) {
            const __m512i a = _mm512_loadu_si512(panel), b = _mm512_loadu_si512(panel + 64);
            if (rows <= MEMORY_ROWS) fetch_two_lines(panel + AHEAD);
            else fetch_into_nearest(panel + AHEAD_IN_NEAREST);
#pragma GCC unroll 4
            for (int t = 0; t < 16 / bits; t++) {
                const pairs p = pairs_of(values_at(_mm512_srli_epi16(a, bits * t), table, bits));
                const pairs q = pairs_of(values_at(_mm512_srli_epi16(b, bits * t), table, bits));
#pragma GCC unroll 8
                for (int m = 0; m < rows; m++) {
                    const element *at = x->terms + (first + m) * x->apart + k + 2 * t;
                    if (rows == 1 && t % 2) {
                        more[0] = add_pair(more[0], at, p);
                        more[1] = add_pair(more[1], at, q);
                    } else {
                        sum[m][0] = add_pair(sum[m][0], at, p);
                        sum[m][1] = add_pair(sum[m][1], at, q);
                    }
                }
            }
        }
        for (int v = 0; v < 2; v++) {
            const __m512 scale = _mm512_loadu_ps(scales + v * LANE);
            if (rows == 1) sum[0][v] = _mm512_add_ps(sum[0][v], more[v]);
            for (int m = 0; m < rows; m++) {
                float *at = result + m * PANEL + v * LANE;
                __m512 all = _mm512_fmadd_ps(sum[m][v], scale, _mm512_loadu_ps(at));
                if (offsets)
                    all = _mm512_fmadd_ps(_mm512_loadu_ps(offsets + g * PANEL + v * LANE),
                                          _mm512_set1_ps(x->sums[(first + m) * blocks + g]), all);
                _mm512_storeu_ps(at, all);
            }
        }
    }
}

#define FOR_ROWS(call)                                                                                                 \
    switch (rows) {                                                                                                    \
    case 1: call(1); break;                                                                                            \
    case 2: call(2); break;                                                                                            \
    case 3: call(3); break;                                                                                            \
    case 4: call(4); break;                                                                                            \
    case 5: call(5); break;                                                                                            \
    case 6: call(6); break;                                                                                            \
    case 7: call(7); break;                                                                                            \
    default: call(8);                                                                                                  \
    }

static void few_coded(const matrix *w, long index, const operand *x, long first, long rows, float *result) {
#define CODED(n) coded(w, index, x, first, n, 4, result)
    FOR_ROWS(CODED)
}

static void few_bytes(const matrix *w, long index, const operand *x, long first, long rows, float *result) {
#define OF_BYTES(n) coded(w, index, x, first, n, 8, result)
    FOR_ROWS(OF_BYTES)
}

static void in_pairs(const bf16 *panel, long in, const element *x, long stride, long rows, float *result) {
#define PAIRS(n) by_pairs(panel, in, x, stride, n, result)
    if (rows == 12) PAIRS(12);
    else if (rows > 8) {
        PAIRS(8);
        in_pairs(panel, in, x + 8 * stride, stride, rows - 8, result + 8 * PANEL);
    } else
        FOR_ROWS(PAIRS)
}

void panel_product(const matrix *w, long index, const bf16 *panel, const operand *x, long first, long rows, upcoming next, float *result) {
    if (x->planes) return planes_product(w, index, x, first, rows, result);
    if (w->kind == CODES && !panel) return few_coded(w, index, x, first, rows, result);
    if (w->kind == BYTES && !panel) return few_bytes(w, index, x, first, rows, result);
    if (!panel) panel = unpacked(w, index, NULL);
#ifdef HAS_TILES
    if (by_tiles(x)) tiles_product(halves_of(panel), w->in, x->x + first * x->stride, x->stride, rows, result, PANEL, 0, next);
    else
#else
    (void)next;
#endif
        in_pairs(panel, w->in, x->terms + first * x->apart, x->apart, rows, result);
    if (w->kind == INT8) scale_outputs(w->scales + index * PANEL, rows, result);
}

#endif
