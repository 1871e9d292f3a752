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

enum { PANEL = 32, LANE = 16, BFLOAT16 = 0, INT8 = 1, CODES = 2, BYTES = 3, GROUP = 64 };
/* Rows of one `panel_product`: at most; of weights as they are stored; of activations in planes or by tiles; of weights as they
   are stored where others have tiles. */
enum { MOST_ROWS = 12, FEW_ROWS = 8, PLANE_ROWS = 132, TILES_ROWS = 128, RARE_ROWS = 2 };

typedef struct {
    int64_t kind, out, in, block; /* block: inputs that share a scale, of CODES and BYTES */
    const uint8_t *codes;
    const float *scales;
    const float *offsets; /* like scales of blocks: added to every weight of the block; NULL: none */
    const float *values;  /* of CODES: 16; of BYTES: 256, each of which bf16 holds */
    const bf16 *bias;     /* [out], NULL: none */
    const int32_t *order; /* [in]: which element of the states input k is multiplied with; NULL: element k */
    const uint8_t *levels; /* of CODES with 8-bit activations: values in steps of `unit`, + 128, [4][16] times the same */
    float unit;
    int32_t activation_bits; /* 16, or 8: may be rounded to 8 bits in groups of 64 inputs, however many rows there are */
} matrix;

/* What is multiplied: `rows` rows of `x`, `stride` (the weight's inputs or more) elements apart; the rest is made by `prepare`.
   Planes: of each group of inputs x = (high + rest / 254) * scale, or with two (256 high + low + rest / 254) * scale, `rest`
   where has_rest. Planes are [in / group][rows][GROUP], what belongs to a group [in / group][rows]; sums = -128 * those of
   a plane, to take the + 128 of the weights out. Without AVX-512 two planes are int16_t in `both`, of each four inputs the
   first, the third, the second and the fourth.
   Offsets: sums over each block. An order: x is a copy in that order. */
typedef struct {
    const bf16 *x;
    const element *terms; /* the same, where there are no planes, `apart` elements from row to row */
    long rows, stride, apart, planes, group; /* planes: 0, 1 or 2 */
    int is_prompt; /* of rows that are told apart (`prompts_apart`) */
    int8_t *high, *low, *rest;
    int16_t *both;
    uint8_t *has_rest;
    float *scales, *sums;
    int32_t *high_sums, *low_sums, *rest_sums;
} operand;

/* Memory that is read after what is computed now, and may be fetched meanwhile; {NULL, NULL}: none that is known. */
typedef struct { const uint8_t *at, *stop; } upcoming;

static inline long panels_of(const matrix *w) { return (w->out + PANEL - 1) / PANEL; }
static inline long bits_of(const matrix *w) { return w->kind == BFLOAT16 ? 16 : w->kind == CODES ? 4 : 8; }
static inline int has_blocks(const matrix *w) { return w->kind == CODES || w->kind == BYTES; }
/* Bytes of a panel. */
static inline long panel_bytes(const matrix *w) { return w->in * PANEL * bits_of(w) / 8; }

/* Whether rows of prompts are multiplied otherwise than those of sequences that decode: with tiles nothing is rounded that is
   many rows' anyway. What a row gives depends on its kind then, and not on how many others there are. */
int prompts_apart(const matrix *w);
/* Makes what products with `w` read beside x, in memory of the calling thread; 0, or 1 where there is none. */
int prepare(operand *x, const matrix *w);
/* result [rows][PANEL] of panel `index`, rows first to first + rows - 1, without bias; `rows` at most `rows_at_once`. `panel`:
   what `unpacked` returned, where `wants_unpacked`. */
void panel_product(const matrix *w, long index, const bf16 *panel, const operand *x, long first, long rows, upcoming next, float *result);
/* How many of `rows` rows one `panel_product` takes. */
long rows_at_once(const operand *x, long rows);
/* How many of all rows meet several panels before others do, so that they stay in the second cache. */
long rows_of_a_block(const operand *x);
/* Inputs of a slice, where panels are so long that few of them would meet a row while both are in the second cache; 0: products
   are not sliced. */
long inputs_of_a_slice(const matrix *w, const operand *x);
/* result [rows][PANEL] = or, but for the first slice, += rows first to first + rows - 1 times inputs from to from + count - 1 of a
   panel. In the order of `panel_product`: the sums are the same. */
void slice_product(const matrix *w, long index, const operand *x, long first, long rows, long from, long count, upcoming next,
                   float *result);
/* Whether products of so many rows read a panel in bf16. */
int wants_unpacked(const matrix *w, const operand *x, long rows);
/* Whether products with many rows are faster than with the whole weight in bf16 by torch. */
int has_fast_products(void);
/* Whether products with 8-bit activations are there. */
int has_int8_activations(void);
/* Panel `index` in bf16, [in / 2][PANEL][2], into `to`; of INT8 without its scales. Of BFLOAT16 it is the weight itself. */
const bf16 *unpacked(const matrix *w, long index, bf16 *to);

#endif
