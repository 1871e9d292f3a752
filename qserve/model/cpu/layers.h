/* What a step of layers has beside its products: norms and rotary angles (row.c), attention over pages (pages.c) and over
   texts (attention.c, texts.c), and the cache. Shared by dense models (layers.c) and hybrids (hybrid.c). */

#ifndef QSERVE_LAYERS_H
#define QSERVE_LAYERS_H

#include <string.h>

#include "bf16.h"

void add_rms_norm(bf16 *x, const bf16 *delta, const bf16 *weight, bf16 *out, long num, long width, long apart,
                  float eps);
void add_centred_norm(bf16 *x, const bf16 *delta, const bf16 *weight, bf16 *out, long num, long width, long apart,
                      float eps);
void norm_and_rotate(bf16 *x, const bf16 *weight, const bf16 *cos, const bf16 *sin, long num, long heads, long size,
                     float eps);
void norm_and_turn(const bf16 *from, long stride, bf16 *out, const bf16 *weight, const bf16 *cos, const bf16 *sin, long num,
                   long heads, long size, long turned, float eps);
void multiply_by_sigmoid(bf16 *x, const bf16 *gates, long stride, long num, long heads, long size);
int attend_pages(const bf16 *q, const bf16 *keys, const bf16 *values, bf16 *out, const int64_t *rows,
                 const int64_t (*borders)[2], const int64_t *places, long num, long heads, long kv_heads, long size,
                 float scale);

/* Scores to weights, in place; returns their sum, and the highest score. */
float weigh(float *scores, long count, float scale, float *highest);

/* One text of a packed row: queries [start, stop) of the row, keys [from, to) of the list; `shared`: the text whose keys it
   sees as well, by its number (-1: none). */
typedef struct { int64_t start, stop, from, to, shared; } packed_text;
int attend(const bf16 *q, const bf16 *k, const bf16 *v, const int64_t *places, bf16 *out, long heads, long kv_heads,
           long size, float scale, const packed_text *texts, long num_texts);

/* Rows [tokens][width] of new keys and values to the cache's rows `written`. */
static inline void write_cache(bf16 *keys, bf16 *values, const bf16 *key, const bf16 *value, const int64_t *written,
                               long tokens, long width) {
    for (long t = 0; t < tokens; t++) {
        memcpy(keys + written[t] * width, key + t * width, width * sizeof(bf16));
        memcpy(values + written[t] * width, value + t * width, width * sizeof(bf16));
    }
}

#endif
