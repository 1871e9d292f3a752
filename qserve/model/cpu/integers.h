/* The walk of a product in planes over the groups of a panel. Included once by each file that multiplies integers, which
   defines what is declared here by the instructions that it has. */

#ifndef QSERVE_INTEGERS_H
#define QSERVE_INTEGERS_H

#include "planes.h"

#include <string.h>

/* A group of a panel: codes + 128, [group / 4][32][4], and what its weights are multiplied with, NULL: nothing yet; whether
   they come from memory, or have been unpacked into the nearest cache. */
typedef struct { const uint8_t *codes; long inputs; const float *scales; float unit; int is_in_memory; } tile;

/* As many of `rows` rows as there are registers for; returns how many. */
static long add_some(const tile *t, const operand *x, long at, long rows, float *result);
/* Of weights with zero points: what is added to all weights of a block, times the sum of its activations. */
static void add_offsets(const matrix *w, long index, const operand *x, long first, long rows, float *result);
/* Scales of a block further on, where that gains anything. */
static inline void fetch_scales(const float *scales);

void planes_product(const matrix *w, long index, const operand *x, long first, long rows, float *result) {
    const uint8_t *panel = w->codes + index * panel_bytes(w);
    const long group = x->group;
    uint8_t unpacked[GROUP * PANEL] __attribute__((aligned(64)));
    memset(result, 0, rows * PANEL * sizeof(float));
    const int is_added = add_by_tiles(w, index, x, first, rows, result);
    for (long g = 0; g < w->in / group && !is_added; g++) {
        tile t = {panel + g * group * PANEL, group, NULL, 1.0f, 1};
        if (has_blocks(w)) {
            t.scales = w->scales + (index * (w->in / w->block) + g * group / w->block) * PANEL;
            fetch_scales(t.scales);
        }
        if (w->kind == CODES) {
            unpack_levels(panel + g * group * PANEL / 2, w->levels, group, unpacked);
            t.codes = unpacked, t.unit = w->unit, t.is_in_memory = 0;
        }
        for (long m = 0; m < rows;) m += add_some(&t, x, g * x->rows + first + m, rows - m, result + m * PANEL);
    }
    if (!has_blocks(w)) scale_outputs(w->scales + index * PANEL, rows, result);
    else if (w->offsets) add_offsets(w, index, x, first, rows, result);
}

#endif
