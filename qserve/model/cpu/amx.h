/* Products in bf16 by tiles (AMX), ten times as many a cycle as vectors of 512 bits multiply. */

#ifndef QSERVE_AMX_H
#define QSERVE_AMX_H

#include "dots.h"
#include "matrix.h"

#if defined(HAS_DOTS) && defined(__AVX512BF16__) && defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__linux__)
#define HAS_TILES

/* Whether the processor's tiles may be used: Linux lends their registers to who asks. Sandboxes may refuse. */
int has_tiles(void);

/* 32 outputs, the first half of them in `left`: pairs of inputs [in / 2][16][2], `stride` elements from pair to pair. Those of
   a weight come from memory, end to end, and are fetched ahead. */
typedef struct { const bf16 *left, *right; long stride; int is_in_memory; } halves;

static inline halves halves_of(const bf16 *panel) { return (halves){panel, panel + 2 * LANE, 2 * PANEL, 1}; }

/* result [rows][32], `apart` elements from row to row, = or, if it `adds`, += rows of x, `stride` elements apart, times w; `in` is
   a multiple of TILE_INPUTS. With more than 16 rows what is `next` is fetched meanwhile, evenly. What a row gives does not depend on those beside it. Who calls it ends its task by `release_tiles`. */
enum { TILE_INPUTS = 32, TILE_ROWS = 16 };
void tiles_product(halves w, long in, const bf16 *x, long stride, long rows, float *result, long apart, int adds, upcoming next);

#ifdef __AMX_INT8__
#define HAS_INTEGER_TILES
/* sums [rows][PANEL] = up to 2 TILE_ROWS rows of `inputs` bytes (32 or 64), 64 apart, times codes [inputs / 4][PANEL][4]. */
void integer_tiles(const int8_t *codes, long inputs, const int8_t *x, long rows, int32_t *sums);
#endif

#endif

/* Gives this thread's tiles back: others set them up for themselves, and registers that are in use are kept at each
   switch of threads. Nothing where there are none. */
void release_tiles(void);

#endif
