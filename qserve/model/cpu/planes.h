/* Activations in planes of 8 bits, and their products with weights of 4 or 8 bits. */

#ifndef QSERVE_PLANES_H
#define QSERVE_PLANES_H

#include "amx.h"
#include "panels.h"

#include <string.h>

#if defined(HAS_DOTS) || (defined(__AVX2__) && defined(__FMA__))
#define HAS_PLANES
#endif
/* Products of four bytes at once, of 256 bits: AVX-VNNI's, or AVX-512's of the same size. */
#if defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
#define HAS_DPBUSD 1
#else
#define HAS_DPBUSD 0
#endif

/* Rounding of all others than the largest, as a share of them, from which on a rest is worth its time: one plane is there
   for speed, two are there to be exact. */
static const float TOO_ROUGH[] = {0, 1.0f / 32, 1.0f / 1024};
enum { REST = 254, ONE_PLANE = 127, WORTH_TILES = 16 };

/* Inputs that share a scale in planes of products with `w`. */
static inline long group_of(const matrix *w) { return has_blocks(w) && w->block < GROUP ? w->block : GROUP; }

/* Whether planes' groups of inputs lie within blocks of weights. */
static inline int has_groups(const matrix *w) { return has_blocks(w) && (w->block % GROUP == 0 || w->block == GROUP / 2); }

/* Whether the 256 values of BYTES are -128 to 127. */
static inline int has_integers(const matrix *w) {
    int others = 0;
    for (int i = 0; i < 256; i++) others |= w->values[i] != (float)(i - 128);
    return !others;
}

#if defined(HAS_DOTS)

/* Planes of products with `w`, however many rows there are: 0 where they are multiplied in bf16 or fp32. */
static inline long planes_for(const matrix *w) {
    if (w->activation_bits == 8) return 1;
    return w->kind == INT8 || (w->kind == BYTES && has_groups(w) && has_integers(w)) ? 2 : 0;
}

#else

/* Whether codes stand for -8 to 7, and activations may be rounded. */
static inline int has_small_codes(const matrix *w) {
    static const uint8_t levels[] = {120, 121, 122, 123, 124, 125, 126, 127, 128, 129, 130, 131, 132, 133, 134, 135};
    return w->kind == CODES && w->levels && !memcmp(w->levels, levels, sizeof levels);
}

/* As above. Without AVX-VNNI products of 8 bits take as long as those of 15, but for codes that stand for -8 to 7, so that
   activations of all others are exact. */
static inline long planes_for(const matrix *w) {
    if (w->activation_bits == 8 && (HAS_DPBUSD || has_small_codes(w))) return 1;
    if (w->kind == INT8) return 2;
    return has_groups(w) && (w->kind == CODES || has_integers(w)) ? 2 : 0;
}

/* Whether a product in these planes is `codes_product`. */
static inline int has_codes_product(const matrix *w, long planes) {
    return w->kind == CODES && (planes == 2 || !HAS_DPBUSD);
}
/* As `planes_product`, of CODES. */
void codes_product(const matrix *w, long index, const operand *x, long first, long rows, float *result);
/* Of weights with zero points: what is added to all weights of a block, times the sum of its activations. */
void add_block_offsets(const matrix *w, long index, const operand *x, long first, long rows, float *result);

#endif

/* Of a group whose largest is `most`; of two planes a power of two, so that what is no more than 64 times smaller than the
   largest keeps all its bits. */
static inline float scale_for(float most, int planes) {
    union { float f; uint32_t i; } power = {most};
    power.i &= 0x7f800000u;
    return most < 1e-30f ? 0.0f : planes == 1 ? most / ONE_PLANE : power.f / 8192.0f;
}

/* The place of input i as the codes of a weight lie in its 4 bytes (matrix.h): unpacked, CODES are those of the lower
   halves of 4 bytes, then of the upper. */
static inline long place_of(const matrix *w, long i) {
    const uint64_t of_codes = 0x73625140, of_bytes = 0x75643120; /* which of 8 inputs, from the right */
    if (!has_blocks(w)) return i;
    return i / 8 * 8 + ((w->kind == CODES ? of_codes : of_bytes) >> i % 8 * 4 & 7);
}

/* Fills the planes of x, `x->planes` of them and the rest; 0, or 1 where memory ran out. */
int split_in_planes(operand *x, const matrix *w);
/* Codes of 4 bits to levels. */
void unpack_levels(const uint8_t *codes, const uint8_t *levels, long inputs, uint8_t *to);
/* As `panel_product`, of up to PLANE_ROWS rows. */
void planes_product(const matrix *w, long index, const operand *x, long first, long rows, float *result);

#ifdef HAS_INTEGER_TILES
/* Whether so many rows are multiplied by tiles: the numbers are the same. */
static inline int has_integer_tiles(long rows) { return rows >= WORTH_TILES && has_tiles(); }
/* result += rows times all groups of a panel, where that is so; whether it was. */
int add_by_tiles(const matrix *w, long index, const operand *x, long first, long rows, float *result);
#else
#define has_integer_tiles(rows) 0
#define add_by_tiles(w, index, x, first, rows, result) 0
#endif

#endif
