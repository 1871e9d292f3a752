#include "panels.h"

#include "threads.h"

/* One input of 16 outputs, not scaled yet. */
static inline void values_of(const matrix *w, const uint8_t *panel, long k, long v, float *to) {
    if (w->kind == BFLOAT16) {
        const bf16 *at = (const bf16 *)panel + (k / 2 * PANEL + v * LANE) * 2 + k % 2;
        for (long i = 0; i < LANE; i++) to[i] = wide(at[2 * i]);
    } else if (w->kind == INT8) {
        const uint8_t *at = panel + k / 4 * 4 * PANEL + v * 4 * LANE + k % 4;
        for (long i = 0; i < LANE; i++) to[i] = (float)at[4 * i] - 128.0f;
    } else {
        const long bits = bits_of(w), count = 32 / bits, place = k % count / 2 * bits;
        const uint8_t *at = panel + k / count * 4 * PANEL + v * 4 * LANE + k % 2 * 2 + place / 8;
        for (long i = 0; i < LANE; i++) to[i] = w->values[at[4 * i] >> place % 8 & ((1 << bits) - 1)];
    }
}

void unpack_floats(const matrix *w, long index, long from, long stop, float *to) {
    const uint8_t *panel = w->codes + index * panel_bytes(w);
    for (long k = from; k < stop; k++, to += PANEL) {
        for (long v = 0; v < 2; v++) values_of(w, panel, k, v, to + v * LANE);
        if (w->kind == BFLOAT16) continue;
        const long at = has_blocks(w) ? (index * (w->in / w->block) + k / w->block) * PANEL : index * PANEL;
        for (long i = 0; i < PANEL; i++) to[i] *= w->scales[at + i];
        if (has_blocks(w) && w->offsets)
            for (long i = 0; i < PANEL; i++) to[i] += w->offsets[at + i];
    }
}

typedef struct { const operand *x; long blocks, block; } blocks_of;

static void sum_row(void *shared, long m) {
    const blocks_of *all = shared;
    const bf16 *at = all->x->x + m * all->x->stride;
    for (long g = 0; g < all->blocks; g++, at += all->block) {
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (long i = 0; i < all->block; i++) sum += wide(at[i]);
        all->x->sums[m * all->blocks + g] = sum;
    }
}

int sum_blocks(operand *x, long in, long block) {
    x->sums = scratch(2, x->rows * (in / block) * sizeof(float));
    if (!x->sums) return 1;
    blocks_of all = {x, in / block, block};
    for_each(x->rows, sum_row, &all);
    return 0;
}

typedef struct { const bf16 *from; bf16 *to; const matrix *w; long stride; } reordered;

static void reorder_row(void *shared, long m) {
    const reordered *all = shared;
    const bf16 *from = all->from + m * all->stride;
    bf16 *to = all->to + m * all->w->in;
    for (long k = 0; k < all->w->in; k++) to[k] = from[all->w->order[k]];
}

int put_in_order(operand *x, const matrix *w) {
    reordered all = {x->x, scratch(4, x->rows * w->in * sizeof(bf16)), w, x->stride};
    if (!all.to) return 1;
    for_each(x->rows, reorder_row, &all);
    x->x = all.to;
    x->stride = w->in;
    return 0;
}

#ifdef __AVX512BF16__

int make_terms(operand *x) {
    x->terms = x->x;
    x->apart = x->stride;
    return 0;
}

#else

/* Elements for which it pays to share the work; between rows: at a power of two they would take each other's places in the
   nearest cache. */
enum { WORTH_SHARING = 16384, BETWEEN = 16 };

typedef struct { const operand *x; element *to; } widening;

static void widen_row(void *shared, long m) {
    const widening *all = shared;
    const long stride = all->x->stride;
    const bf16 *from = all->x->x + m * stride;
    element *to = all->to + m * all->x->apart;
#pragma omp simd
    for (long k = 0; k < stride; k++) to[k] = wide(from[k]);
}

int make_terms(operand *x) {
    x->apart = x->stride + BETWEEN;
    widening all = {x, scratch(0, x->rows * x->apart * sizeof(element))};
    if (!all.to) return 1;
    if (x->rows * x->stride > WORTH_SHARING) for_each(x->rows, widen_row, &all);
    else
        for (long m = 0; m < x->rows; m++) widen_row(&all, m);
    x->terms = all.to;
    return 0;
}

#endif
