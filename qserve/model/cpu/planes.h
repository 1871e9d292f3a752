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
enum { REST = 254, ONE_PLANE = 127, MOST_PLANE_ROWS = 32 };

/* Inputs that share a scale in planes of products with `w`. */
static inline long group_of(const matrix *w) { return has_blocks(w) && w->block < GROUP ? w->block : GROUP; }

#if defined(HAS_DOTS)

/* Planes of products in which a weight meets `met` rows: 0 where they are multiplied in bf16 or fp32. Tiles multiply many
   rows in bf16 faster than vectors do in 8 bits, the more so in two planes. */
static inline long planes_for(const matrix *w, long met) {
    const long planes = w->activation_bits == 8 && met > RARE_ROWS ? 1 : w->kind == INT8 ? 2 : 0;
#ifdef HAS_TILES
    if (planes && met > MOST_PLANE_ROWS / planes && w->in % TILE_INPUTS == 0 && has_tiles()) return 0;
#endif
    return planes;
}

#else

/* Whether codes stand for -8 to 7, and activations may be rounded. */
static inline int has_small_codes(const matrix *w) {
    static const uint8_t levels[] = {120, 121, 122, 123, 124, 125, 126, 127, 128, 129, 130, 131, 132, 133, 134, 135};
    return w->kind == CODES && w->levels && !memcmp(w->levels, levels, sizeof levels);
}

/* Whether the 256 values of BYTES are -128 to 127. */
static inline int has_integers(const matrix *w) {
    int others = 0;
    for (int i = 0; i < 256; i++) others |= w->values[i] != (float)(i - 128);
    return !others;
}

/* As above. Without AVX-VNNI products of 8 bits take as long as those of 15, but for codes that stand for -8 to 7, so that
   activations of all others are exact. */
static inline long planes_for(const matrix *w, long met) {
    if (w->activation_bits == 8 && met > RARE_ROWS && (HAS_DPBUSD || has_small_codes(w))) return 1;
    if (w->kind == INT8) return 2;
    const int has_groups = has_blocks(w) && (w->block % GROUP == 0 || w->block == GROUP / 2);
    return has_groups && (w->kind == CODES || has_integers(w)) ? 2 : 0;
}

/* Whether a product of `rows` rows in these planes is `codes_product`. With a few rows levels of 8 bits, where they may be
   taken, are unpacked sooner. */
static inline int has_codes_product(const matrix *w, long planes, long rows) {
    if (w->kind != CODES) return 0;
    if (planes == 1) return !HAS_DPBUSD;
    return !w->levels || w->activation_bits != 8 || rows <= RARE_ROWS || rows > FEW_ROWS;
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
/* As `panel_product`, of up to PLANE_ROWS rows. */
void planes_product(const matrix *w, long index, const operand *x, long first, long rows, float *result);

#endif
