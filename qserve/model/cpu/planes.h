/* Activations in planes of 8 bits, and their products with weights of 4 or 8 bits. */

#ifndef QSERVE_PLANES_H
#define QSERVE_PLANES_H

#include "panels.h"

#if defined(HAS_DOTS) && defined(__AVX512VBMI__)
#define HAS_ONE_PLANE /* codes of 4 bits to levels by vpermb */
#endif

/* Inputs that share a scale in planes of products with `w`. */
static inline long group_of(const matrix *w) { return has_blocks(w) && w->block < GROUP ? w->block : GROUP; }
/* Fills the planes of x, `x->planes` of them and the rest; 0, or 1 where memory ran out. */
int split_in_planes(operand *x, const matrix *w);
/* As `panel_product`, of up to PLANE_ROWS rows. */
void planes_product(const matrix *w, long index, const operand *x, long first, long rows, float *result);

#endif
