/* Rows of states times stored weights, the panels shared among threads. */

#ifndef QSERVE_PRODUCTS_H
#define QSERVE_PRODUCTS_H

#include "matrix.h"

/* One product of several with the same states: y [rows][stride] in bf16, or y32 the same numbers in fp32, or of each panel the
   largest output alone, NaN where there is one, [rows][stride] in fp32. */
typedef struct {
    const matrix *w;
    bf16 *y;
    float *y32;
    long stride;
    float *largest;
} product;

/* Rows [start, stop) of a step: of prompts, or of sequences that decode. */
typedef struct { int64_t start, stop, is_prompt; } row_range;
/* x [rows][stride], of which a product reads the first inputs of each row. ranges: all rows by their kind, in order; NULL: all are
   multiplied as those are that decode. */
typedef struct {
    const bf16 *x;
    long stride, rows;
    const row_range *ranges;
    long num_ranges;
} inputs;

/* result [rows][PANEL] of panel `index`, rows first to first + rows - 1 of what was prepared, as many as there are; a stored
   panel is unpacked once for many. 0, or 1 where memory ran out. */
int panel_rows(const matrix *w, long index, const operand *x, long first, long rows, float *result);
/* All of `num` products of x, whose weights are of one kind and block. 0, or 1 where memory ran out. */
int multiply(const product *all, long num, const inputs *x);
/* y [rows][apart], of which out of gate are written, = silu(x * gate) * (x * up), each rounded to bf16 first. 0, or 1 where memory
   ran out. */
int multiply_gated(const matrix *gate, const matrix *up, const inputs *x, bf16 *y, long apart);

#endif
