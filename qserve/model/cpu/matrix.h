/* A weight of a linear layer as the products of this folder read it, in the format that its checkpoint stores.

   Outputs lie in panels of 32, filled up with zeros; within a panel, inputs come one after the other, so that a product
   reads memory from end to end. 64 bytes hold 16 outputs, and of each
     BFLOAT16  2 inputs;
     INT8      4 inputs, + 128;
     CODES     8 inputs, 4 bit each: in 16-bit piece j of an output, bits 4 t hold the code of input 2 t + j;
     BYTES     4 inputs, 8 bit each: in 16-bit piece j of an output, bits 8 t hold the code of input 2 t + j.
   The weight is value(code) * scale: scales of INT8 are one an output, those of CODES and BYTES
   [panel][in / block][32]. */

#ifndef QSERVE_MATRIX_H
#define QSERVE_MATRIX_H

#include "bf16.h"

enum { PANEL = 32, LANE = 16, BFLOAT16 = 0, INT8 = 1, CODES = 2, BYTES = 3, GROUP = 64, MOST_ROWS = 12, FEW_ROWS = 8 };

typedef struct {
    int64_t kind, out, in, block; /* block: inputs that share a scale, of CODES and BYTES */
    const uint8_t *codes;
    const float *scales;
    const float *offsets; /* like scales of blocks: added to every weight of the block; NULL: none */
    const float *values;  /* of CODES: 16; of BYTES: 256, each of which bf16 holds */
    const bf16 *bias;     /* [out], NULL: none */
    const int32_t *order; /* [in]: which element of the states input k is multiplied with; NULL: element k */
} matrix;

/* What is multiplied: `rows` rows of `x`, `stride` elements apart; the rest is made by `prepare` for few rows.
   INT8: x = (256 high + low + rest / 254) * scale of its GROUP, `rest` where has_rest; sums = -128 * those of each plane,
   to take the + 128 of the weights out.
   Offsets: sums over each block. An order: x is a copy in that order. */
typedef struct {
    const bf16 *x;
    long rows, stride;
    int8_t *high, *low, *rest;
    uint8_t *has_rest;
    float *scales, *sums;
    int32_t *high_sums, *low_sums, *rest_sums;
} operand;

static inline long panels_of(const matrix *w) { return (w->out + PANEL - 1) / PANEL; }
static inline long bits_of(const matrix *w) { return w->kind == BFLOAT16 ? 16 : w->kind == CODES ? 4 : 8; }
static inline int has_blocks(const matrix *w) { return w->kind == CODES || w->kind == BYTES; }
/* Bytes of a panel. */
static inline long panel_bytes(const matrix *w) { return w->in * PANEL * bits_of(w) / 8; }

/* Makes what products with `w` read beside x, in memory of the calling thread; 0, or 1 where there is none. */
int prepare(operand *x, const matrix *w);
/* result [rows][PANEL] of panel `index`, rows first to first + rows - 1 <= first + MOST_ROWS - 1, without bias. `panel`: what
   `unpacked` returned, or NULL. */
void panel_product(const matrix *w, long index, const bf16 *panel, const operand *x, long first, long rows, float *result);
/* Whether products with many rows want a panel unpacked. */
int has_unpacked(void);
/* Panel `index` in bf16, [in / 2][PANEL][2], scales of INT8 left to the product; in memory of the calling thread until its
   next call. NULL: there is none. */
const bf16 *unpacked(const matrix *w, long index);

#endif
