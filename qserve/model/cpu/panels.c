#include "panels.h"

#include <math.h>

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

/* Rounding of all others than the largest, as a share of them, from which on a third plane is worth its time. */
static const float TOO_ROUGH = 1.0f / 1024;
enum { REST = 254 };

/* What belongs to row m of an operand. */
typedef struct { int8_t *high, *low, *rest; uint8_t *has_rest; float *scales; int32_t *high_sums, *low_sums, *rest_sums; } planes;

/* A group of bf16 in integers of 15 bits with a scale that is a power of two: what is no more than 64 times smaller than
   the largest keeps all its bits. Where the others are small beside it, what they lack lies in a third plane. NaN and
   infinity make the scale NaN. */
static void split_group(const bf16 *x, const planes *to, long g) {
    int8_t *high = to->high + g * GROUP, *low = to->low + g * GROUP, *rest = to->rest + g * GROUP;
    float most = 0, poison = 0, all_sizes = 0, lost = 0, left[GROUP];
#pragma omp simd reduction(max : most) reduction(+ : poison, all_sizes)
    for (long i = 0; i < GROUP; i++) {
        const float value = wide(x[i]), size = fabsf(value);
        most = size > most ? size : most;
        all_sizes += size;
        poison += value * 0.0f;
    }
    union { float f; uint32_t i; } power = {most};
    power.i &= 0x7f800000u;
    const float scale = most < 1e-30f ? 0.0f : power.f / 8192.0f, inverse = scale > 0 ? 1.0f / scale : 0.0f;
    int32_t high_sum = 0, low_sum = 0, rest_sum = 0;
#pragma omp simd reduction(+ : high_sum, low_sum, lost)
    for (long i = 0; i < GROUP; i++) {
        const float exact = wide(x[i]) * inverse, whole = rintf(exact);
        const int32_t all = (int32_t)whole, upper = (all + 128) >> 8, lower = all - 256 * upper;
        high[i] = (int8_t)upper;
        low[i] = (int8_t)lower;
        high_sum += upper;
        low_sum += lower;
        left[i] = exact - whole;
        lost += fabsf(left[i]);
    }
    to->scales[g] = scale + poison;
    to->high_sums[g] = -128 * high_sum;
    to->low_sums[g] = -128 * low_sum;
    to->has_rest[g] = lost * scale > TOO_ROUGH * (all_sizes - most);
    if (!to->has_rest[g]) return;
#pragma omp simd reduction(+ : rest_sum)
    for (long i = 0; i < GROUP; i++) {
        const int32_t part = (int32_t)rintf(left[i] * REST);
        rest[i] = (int8_t)part;
        rest_sum += part;
    }
    to->rest_sums[g] = -128 * rest_sum;
}

typedef struct { operand *x; long in; } rows_of;

static void split_row(void *shared, long m) {
    const rows_of *all = shared;
    operand *x = all->x;
    const long in = all->in, groups = in / GROUP;
    const planes to = {x->high + m * in, x->low + m * in, x->rest + m * in, x->has_rest + m * groups,
                       x->scales + m * groups, x->high_sums + m * groups, x->low_sums + m * groups,
                       x->rest_sums + m * groups};
    for (long g = 0; g < groups; g++) split_group(x->x + m * x->stride + g * GROUP, &to, g);
}

int split_in_planes(operand *x, long in) {
    const long groups = x->rows * (in / GROUP), size = x->rows * in;
    char *memory = scratch(0, size * 3 + groups * (4 * sizeof(float) + 1));
    if (!memory) return 1;
    x->scales = (float *)memory;
    x->high_sums = (int32_t *)(x->scales + groups);
    x->low_sums = x->high_sums + groups;
    x->rest_sums = x->low_sums + groups;
    x->high = (int8_t *)(x->rest_sums + groups);
    x->low = x->high + size;
    x->rest = x->low + size;
    x->has_rest = (uint8_t *)(x->rest + size);
    rows_of all = {x, in};
    for_each(x->rows, split_row, &all);
    return 0;
}

int sum_blocks(operand *x, long in, long block) {
    const long blocks = in / block;
    x->sums = scratch(0, x->rows * blocks * sizeof(float));
    if (!x->sums) return 1;
    for (long m = 0; m < x->rows; m++)
        for (long g = 0; g < blocks; g++) {
            const bf16 *at = x->x + m * x->stride + g * block;
            float sum = 0;
#pragma omp simd reduction(+ : sum)
            for (long i = 0; i < block; i++) sum += wide(at[i]);
            x->sums[m * blocks + g] = sum;
        }
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
