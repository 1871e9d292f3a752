/* bitsandbytes' formats of weights in bf16, made as bitsandbytes 0.50 makes them on a CPU, bit by bit: NF4 and FP4 with
   their scales, quantized again or not, and LLM.int8 (backends/default/ops.py, csrc/cpu_ops.cpp: quantize_cpu). */

#include <string.h>

#include "bf16.h"
#include "threads.h"

/* Of 4 bits: values between two neighbours; the largest block; blocks and rows of a task; scales that share one; see below. */
enum { BOUNDS = 15, MOST_BLOCK = 4096, BLOCKS_AT_ONCE = 512, ROWS_AT_ONCE = 16, SCALES = 256, STEPS = 65535 };

typedef struct {
    const bf16 *x;
    int64_t num, size;    /* blocks of so many; rows of so many */
    const float *bounds;  /* [15], ascending */
    const uint8_t *codes; /* [16]: of what lies below bound 0, between 0 and 1, .. */
    uint8_t *packed;      /* [num][size / 2]: the first one in the upper half */
    int8_t *rounded;      /* [num][size] */
    float *largest;       /* [num] */
} weights;

/* NaN where there is one: without their signs, bits are ordered as numbers are, and NaN above all. */
static float largest_of(const bf16 *x, long size) {
    int16_t most = 0;
    for (long i = 0; i < size; i++) {
        const int16_t bits = (int16_t)(x[i] & 0x7fff);
        most = bits > most ? bits : most;
    }
    return wide((bf16)most);
}

static void code_block(const weights *w, long index) {
    const bf16 *x = w->x + index * w->size;
    const float largest = largest_of(x, w->size), factor = 1.0f / (largest < 1e-38f ? 1e-38f : largest);
    int32_t below[MOST_BLOCK];
    for (long i = 0; i < w->size; i++) {
        const float value = wide(x[i]) * factor;
        int32_t count = 0;
#pragma GCC unroll 15
        for (int b = 0; b < BOUNDS; b++) count += !(w->bounds[b] >= value); /* NaN lies above all */
        below[i] = count;
    }
    uint8_t *to = w->packed + index * (w->size / 2);
    for (long i = 0; i < w->size / 2; i++) to[i] = (uint8_t)(w->codes[below[2 * i]] << 4 | w->codes[below[2 * i + 1]]);
    w->largest[index] = largest;
}

static void code_some(void *shared, long index) {
    const weights *w = shared;
    const long stop = (index + 1) * BLOCKS_AT_ONCE;
    for (long i = index * BLOCKS_AT_ONCE; i < (stop < w->num ? stop : w->num); i++) code_block(w, i);
}

/* 1 for a size that is odd or larger than MOST_BLOCK, else 0. */
int quantize_4_bit(const weights *w) {
    if (w->size % 2 || w->size > MOST_BLOCK) return 1;
    for_each((w->num + BLOCKS_AT_ONCE - 1) / BLOCKS_AT_ONCE, code_some, (void *)w);
    return 0;
}

/* To fp16 and back, which bitsandbytes does first: numbers in bf16 lose bits where fp16 has steps of 2^-24. */
static inline float through_half(float x) {
    const float steps = (x + 0.75f) - 0.75f;
    return fabsf(x) < 0x1p-14f ? steps : fabsf(x) >= 65520.0f ? x * INFINITY : x;
}

static void round_rows(void *shared, long index) {
    const weights *w = shared;
    const long stop = (index + 1) * ROWS_AT_ONCE;
    for (long row = index * ROWS_AT_ONCE; row < (stop < w->num ? stop : w->num); row++) {
        const bf16 *x = w->x + row * w->size;
        int8_t *to = w->rounded + row * w->size;
        const float largest = through_half(largest_of(x, w->size)), factor = 1.0f / largest * 127.0f;
        w->largest[row] = largest;
        if (!(largest > 0 && largest < INFINITY)) {
            memset(to, 0, w->size);
            continue;
        }
        for (long i = 0; i < w->size; i++) to[i] = (int8_t)(int32_t)rintf(through_half(wide(x[i])) * factor);
    }
}

/* Rows, each by its largest; one without numbers or with infinite ones becomes zeros. */
void quantize_int8(const weights *w) { for_each((w->num + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE, round_rows, (void *)w); }

/* `scales` [num], less `mean`, quantized to `map` [256] times the largest of each 256, and back. places [STEPS + 1]: of the
   value in `map` that is nearest to -1, .., 1 in as many steps, which is how close bitsandbytes looks. */
void requantize_scales(float *scales, int64_t num, float mean, const float *map, const uint8_t *places) {
    for (int64_t first = 0; first < num; first += SCALES) {
        const int64_t stop = first + SCALES < num ? first + SCALES : num;
        float largest = 0;
        for (int64_t i = first; i < stop; i++) {
            scales[i] -= mean;
            largest = fabsf(scales[i]) > largest ? fabsf(scales[i]) : largest;
        }
        const float factor = 1.0f / largest;
        for (int64_t i = first; i < stop; i++) {
            const float value = largest > 0 ? scales[i] * factor : -1.0f;
            const float step = (value + 1.0f) * (STEPS / 2.0f) + 0.5f;
            const int at = step >= STEPS ? STEPS : step >= 0 ? (int)step : 0; /* NaN: 0 */
            const float nearest = map[places[at]] * largest;
            scales[i] = nearest + mean;
        }
    }
}
