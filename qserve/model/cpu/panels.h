/* What products on every processor are made of. */

#ifndef QSERVE_PANELS_H
#define QSERVE_PANELS_H

#include "dots.h"
#include "matrix.h"

/* Panel `index`, inputs from to stop - 1, to [stop - from][PANEL]: value times scale, rounded once, plus an offset,
   rounded once more. This is what the format says, bit by bit. */
void unpack_floats(const matrix *w, long index, long from, long stop, float *to);
/* result [rows][PANEL] times the scales of a panel's outputs. */
static inline void scale_outputs(const float *scales, long rows, float *result) {
    for (long m = 0; m < rows; m++)
        for (long i = 0; i < PANEL; i++) result[m * PANEL + i] *= scales[i];
}

/* Parts of `prepare`: 0, or 1 where memory ran out. */
int sum_blocks(operand *x, long in, long block);
int put_in_order(operand *x, const matrix *w);
int make_terms(operand *x);

#if defined(__AVX2__) && defined(__FMA__) && !defined(HAS_DOTS)
#define HAS_BFLOAT16_TILES
/* `panel_product` of BFLOAT16 (bfloat16_avx2.c). */
void bfloat16_product(const matrix *w, long index, const operand *x, long first, long rows, float *result);
#endif

#endif
