/* Products on processors without AVX512-VNNI, in fp32: with AVX2 most laptops, and whatever else there is. A piece of a
   panel is unpacked into the nearest cache and multiplied with all rows; of one row, values stay in registers. With AVX2
   BFLOAT16 is multiplied as it lies in memory (bfloat16_avx2.c), and INT8, CODES and integers of 8 bits in groups as integers
   (integers_avx2.c and codes_avx2.c). */

#include "matrix.h"
#include "panels.h"
#include "planes.h"

#ifndef HAS_DOTS

#include "tiles.h"

enum { PIECE = 64, PARTS = PANEL / EIGHT, WIDE = 3 };
enum { AHEAD = 4096 }; /* bytes: the hardware's own prefetching stops at each page */

int prepare(operand *x, const matrix *w) {
    if (w->order && put_in_order(x, w)) return 1;
#ifdef HAS_PLANES
    x->planes = planes_for(w);
    if (x->planes) return split_in_planes(x, w) || (has_blocks(w) && w->offsets && sum_blocks(x, w->in, w->block));
#endif
    return make_terms(x);
}

long rows_at_once(const operand *x, long rows) {
    (void)x, (void)rows;
    return PLANE_ROWS;
}

long rows_of_a_block(const operand *x) { return x->rows; }

int wants_unpacked(const matrix *w, const operand *x, long rows) {
    (void)w, (void)x, (void)rows;
    return 0;
}

long inputs_of_a_slice(const matrix *w, const operand *x) {
    (void)w, (void)x;
    return 0;
}

void slice_product(const matrix *w, long index, const operand *x, long first, long rows, long from, long count, upcoming next,
                   float *result) {
    (void)w, (void)index, (void)x, (void)first, (void)rows, (void)from, (void)count, (void)next, (void)result;
}

int prompts_apart(const matrix *w) {
    (void)w;
    return 0;
}

int has_fast_products(void) {
#if defined(__AVX2__) && defined(__FMA__)
    return 1;
#else
    return 0;
#endif
}

int has_int8_activations(void) {
#ifdef HAS_PLANES
    return 1;
#else
    return 0;
#endif
}

const bf16 *unpacked(const matrix *w, long index, bf16 *to) {
    (void)w, (void)index, (void)to;
    return NULL;
}

/* Of 256 values, those of the codes in the lowest 8 bits. */
ALWAYS eight one_of_256(const float *values, eight_bits codes) {
    codes &= 255;
    uint32_t at[EIGHT];
    memcpy(at, &codes, sizeof at);
    eight found;
    for (int i = 0; i < EIGHT; i++) found[i] = values[at[i]]; /* a gather takes longer where it is mitigated */
    return found;
}

/* Of 16 values, those of the codes in the four bits from `shift` on. */
ALWAYS eight one_of_16(const float *values, eight_bits codes, const int shift) {
#ifdef __AVX2__
    const __m256i at = _mm256_srli_epi32((__m256i)codes, shift); /* an index has three bits: those above it are ignored */
    const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(values), at);
    const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(values + EIGHT), at);
    return (eight)_mm256_blendv_ps(low, high, (__m256)_mm256_slli_epi32((__m256i)codes, 28 - shift)); /* by the fourth */
#else
    eight found;
    for (int i = 0; i < EIGHT; i++) found[i] = values[codes[i] >> shift & 15];
    return found;
#endif
}

static void unpack_pairs(const uint8_t *codes, long count, float *to) {
    for (long k = 0; k < count; k += 2, to += 2 * PANEL)
        for (long v = 0; v < PARTS; v++, codes += 4 * EIGHT) {
            const eight_bits both = load_bits(codes);
            keep((eight)(both << 16), to + v * EIGHT);
            keep((eight)(both & 0xffff0000u), to + PANEL + v * EIGHT);
        }
}

/* Without their scales. */
static void unpack_integers(const uint8_t *codes, long count, float *to) {
    for (long k = 0; k < count; k += 4, to += 4 * PANEL)
        for (long v = 0; v < PARTS; v++, codes += 4 * EIGHT) {
            const eight_bits four = load_bits(codes);
            for (int t = 0; t < 4; t++) {
                const eight_integers one = (eight_integers)(four >> (8 * t) & 255) - 128;
                keep(__builtin_convertvector(one, eight), to + t * PANEL + v * EIGHT);
            }
        }
}

/* Value times scale, rounded once, plus an offset, rounded once more. `bits` a code. */
ALWAYS void unpack_blocks(const matrix *w, long index, long from, long count, const int bits, float *to) {
    const uint8_t *codes = w->codes + index * panel_bytes(w) + from * PANEL * bits / 8;
    for (long k = from; k < from + count; k += 32 / bits, to += 32 / bits * PANEL) {
        const long block = (index * (w->in / w->block) + k / w->block) * PANEL;
        for (long v = 0; v < PARTS; v++, codes += 4 * EIGHT) {
            const eight_bits some = load_bits(codes);
            const eight scale = load(w->scales + block + v * EIGHT);
#pragma GCC unroll 8
            for (int i = 0; i < 32 / bits; i++) {
                const int shift = i / 2 * bits + i % 2 * 16;
                eight value = bits == 4 ? one_of_16(w->values, some, shift) : one_of_256(w->values, some >> shift);
                value *= scale;
                if (w->offsets) value += load(w->offsets + block + v * EIGHT);
                keep(value, to + i * PANEL + v * EIGHT);
            }
        }
    }
}

static void unpack_piece(const matrix *w, long index, long from, long count, float *to) {
    const long bytes = count * PANEL * bits_of(w) / 8;
    const uint8_t *codes = w->codes + index * panel_bytes(w) + from * PANEL * bits_of(w) / 8;
    for (long at = 0; at < bytes; at += 64) __builtin_prefetch(codes + AHEAD + at);
    if (w->kind == BFLOAT16) unpack_pairs(codes, count, to);
    else if (w->kind == INT8) unpack_integers(codes, count, to);
    else if (w->kind == CODES) unpack_blocks(w, index, from, count, 4, to);
    else unpack_blocks(w, index, from, count, 8, to);
}

/* As many of `rows` rows as there are registers for; returns how many. Half a panel leaves room for twice the rows. */
static long add_some(const float *piece, terms t, long count, long rows, float *result) {
#define HALVES(n)                                                                                                      \
    for (int at = 0; at < PANEL; at += PANEL / 2) add_tile(piece + at, PANEL, t, count, n, PARTS / 2, result + at, PANEL); \
    return n
    if (rows >= TALL) {
        HALVES(TALL);
    }
    if (rows > WIDE) {
        HALVES(4);
    }
    if (rows == 3) add_tile(piece, PANEL, t, count, 3, PARTS, result, PANEL);
    else if (rows == 2) add_tile(piece, PANEL, t, count, 2, PARTS, result, PANEL);
    else add_tile(piece, PANEL, t, count, 1, PARTS, result, PANEL);
    return rows;
}

/* Input t of each four bytes of which 128 was taken away. */
ALWAYS eight one_of_four(eight_bits four, const int t) {
    return __builtin_convertvector((eight_integers)(four << (24 - 8 * t)) >> 24, eight);
}

/* One row: values go from registers into products. */
static void row_of_integers(const matrix *w, long index, const float *x, float *result) {
    const uint8_t *codes = w->codes + index * panel_bytes(w);
    eight sum[PARTS] = {{0}};
    for (long k = 0; k < w->in; k += 4)
        for (int v = 0; v < PARTS; v++, codes += 4 * EIGHT) {
            const eight_bits four = load_bits(codes) ^ 0x80808080u;
            if (v % 2 == 0) __builtin_prefetch(codes + AHEAD);
#pragma GCC unroll 4
            for (int t = 0; t < 4; t++) sum[v] = fused(one_of_four(four, t), x[k + t], sum[v]);
        }
    for (int v = 0; v < PARTS; v++) keep(sum[v] * load(w->scales + index * PANEL + v * EIGHT), result + v * EIGHT);
}

/* As `unpack_blocks` rounds them, so that a row's numbers are the same beside others. */
static void row_of_codes(const matrix *w, long index, const float *x, float *result) {
    const uint8_t *codes = w->codes + index * panel_bytes(w);
    const long first = index * (w->in / w->block) * PANEL;
    eight sum[PARTS] = {{0}};
    for (long k = 0; k < w->in; k += 8)
        for (int v = 0; v < PARTS; v++, codes += 4 * EIGHT) {
            const eight_bits some = load_bits(codes);
            const long at = first + k / w->block * PANEL + v * EIGHT;
            const eight scale = load(w->scales + at);
            if (v % 2 == 0) __builtin_prefetch(codes + AHEAD);
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                eight value = one_of_16(w->values, some, i / 2 * 4 + i % 2 * 16) * scale;
                if (w->offsets) value += load(w->offsets + at);
                sum[v] = fused(value, x[k + i], sum[v]);
            }
        }
    for (int v = 0; v < PARTS; v++) keep(sum[v], result + v * EIGHT);
}

void panel_product(const matrix *w, long index, const bf16 *panel, const operand *x, long first, long rows, upcoming next, float *result) {
    (void)next;
    (void)panel;
#ifdef HAS_PLANES
    if (x->planes && has_codes_product(w, x->planes)) return codes_product(w, index, x, first, rows, result);
    if (x->planes) return planes_product(w, index, x, first, rows, result);
#endif
#ifdef HAS_BFLOAT16_TILES
    if (w->kind == BFLOAT16) return bfloat16_product(w, index, x, first, rows, result);
#endif
    float piece[PIECE * PANEL] __attribute__((aligned(64)));
    const float *at = x->terms + first * x->apart;
    if (rows == 1 && w->kind == INT8) return row_of_integers(w, index, at, result);
    if (rows == 1 && w->kind == CODES) return row_of_codes(w, index, at, result);
    memset(result, 0, rows * PANEL * sizeof(float));
    for (long k = 0; k < w->in; k += PIECE) {
        const long count = w->in - k < PIECE ? w->in - k : PIECE;
        unpack_piece(w, index, k, count, piece);
        for (long m = 0; m < rows;)
            m += add_some(piece, (terms){at + m * x->apart + k, x->apart, 1}, count, rows - m, result + m * PANEL);
    }
    if (w->kind == INT8)
        for (long m = 0; m < rows; m++)
            for (long i = 0; i < PANEL; i++) result[m * PANEL + i] *= w->scales[index * PANEL + i];
}

#endif
