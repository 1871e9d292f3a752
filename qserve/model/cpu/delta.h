/* Gated DeltaNet between its first products and its last one (delta.c). */

#ifndef QSERVE_DELTA_H
#define QSERVE_DELTA_H

#include <stdint.h>

/* Of a token's row: where the first key head's part begins, and how many elements further the next one's. */
typedef struct { int64_t first, step; } part;

/* A layer. conv [taps][channels] over the channels of all queries, keys and values, in this order; rates: exp(A_log). */
typedef struct {
    int64_t key_heads, value_heads, key_size, value_size, taps, width, is_bf16;
    part query, key, value, gate, beta, decay;
    const float *conv, *rates, *dt_bias, *norm;
    float eps, unused;
} delta_layer;

/* Tokens [start, stop), whose window and states lie in row `row` and are those of the tokens before if there are any. */
typedef struct { int64_t start, stop, row, has_past; } delta_text;

/* rows [tokens][width], what the first products gave, to out [tokens][value_heads * value_size], what the last one reads.
   windows [rows][channels][taps] and states [rows][value_heads][key_size][value_size] are those after the text's last
   token then. bf16 or fp32, as the layer says; states are fp32. Each row has one text at most. Returns 0, or 1 where
   memory ran out. */
int delta_rule(const delta_layer *layer, const void *rows, void *windows, float *states, const delta_text *texts,
               long num_texts, void *out);

#endif
