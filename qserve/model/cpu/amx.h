/* Products of rows in bf16 with a panel in bf16 by tiles (AMX), ten times as many a cycle as vectors of 512 bits multiply. */

#ifndef QSERVE_AMX_H
#define QSERVE_AMX_H

#include "dots.h"
#include "matrix.h"

#if defined(HAS_DOTS) && defined(__AVX512BF16__) && defined(__AMX_BF16__) && defined(__linux__)
#define HAS_TILES

/* Whether the processor's tiles may be used: Linux lends their registers to who asks. Sandboxes may refuse. */
int has_tiles(void);

/* result [rows][PANEL] of rows of x, `stride` elements apart, and a panel [in / 2][PANEL][2]; `in` is a multiple of
   TILE_INPUTS. What a row gives does not depend on those beside it. Who calls it ends its task by `release_tiles`. */
enum { TILE_INPUTS = 32 };
void tiles_product(const bf16 *panel, long in, const bf16 *x, long stride, long rows, float *result);

#endif

/* Gives this thread's tiles back: others set them up for themselves, and registers that are in use are kept at each
   switch of threads. Nothing where there are none. */
void release_tiles(void);

#endif
