/* `attend` of attention.c for processors without its instructions: causal attention of several texts in one packed row, in
   fp32 by tiles of the compiler's vectors (tiles.h).

   A task is a block of queries of the heads that share a key head. Queries stand side by side, a lane each and 16 lanes to
   a strip, so that a key is multiplied with all of them once it is widened, and the softmax needs no sum across a register.
   Keys come in pieces that stay in the caches: of each lane the highest score so far and the sum of weights are kept, and
   what was mixed is weighed again where a higher one comes. */

#include "dots.h"

#ifndef HAS_DOTS

#include <stdlib.h>

#include "layers.h"
#include "threads.h"
#include "tiles.h"

enum { STRIP = 16, STRIPS = 4, LANES = STRIP * STRIPS, KEYS = 96, PARTS = STRIP / EIGHT };

/* What all blocks of a call have in common; `share`: heads of a key head. */
typedef struct {
    const bf16 *q, *k, *v;
    const int64_t *places;
    bf16 *out;
    const packed_text *texts;
    const long *first; /* of each text, its first block */
    long num_texts, heads, kv_heads, share, size;
    float scale;
    int failed;
} call;

/* A strip of lanes, what it has seen so far: of each lane how many keys it sees, the highest score, the sum of weights. */
typedef struct {
    int32_t seen[STRIP];
    float highest[STRIP], sums[STRIP];
    long keys; /* of the lane that sees the most */
} strip;

/* queries [strip][size][STRIP], scores [KEYS][STRIP] of one strip, mixed [strip][STRIP][size], keys [KEYS][size], values
   [size / STRIP][KEYS][STRIP]. */
typedef struct { float *queries, *scores, *mixed, *keys, *values; } buffers;

static long lanes_of(const call *all, const packed_text *one) { return (one->stop - one->start) * all->share; }

/* Which row is the c-th key that a text sees: first the `shared` ones of another text, then its own. */
static long row_of(const call *all, const packed_text *text, long shared, long c) {
    const long at = c < shared ? all->texts[text->shared].from + c : text->from + c - shared;
    return all->places ? all->places[at] : at;
}

/* Keys and values from `from` on, in fp32. */
static void widen(const call *all, const packed_text *text, long shared, long kv, long from, long count, const buffers *own) {
    const long size = all->size;
    for (long c = 0; c < count; c++) {
        const long at = (row_of(all, text, shared, from + c) * all->kv_heads + kv) * size;
        const bf16 *key = all->k + at, *value = all->v + at;
#pragma omp simd
        for (long d = 0; d < size; d++) own->keys[c * size + d] = wide(key[d]);
        for (long d = 0; d < size; d += STRIP) {
            float *to = own->values + d * KEYS + c * STRIP;
#pragma omp simd
            for (long i = 0; i < STRIP; i++) to[i] = wide(value[d + i]);
        }
    }
}

/* to [rows][stride], 16 wide, += terms times piece [count][STRIP]. */
static void add_rows(const float *piece, terms t, long rows, long count, float *to, long stride) {
#define TAKE(n)                                                                                                        \
    add_tile(piece, STRIP, t, count, n, PARTS, to, stride);                                                            \
    rows -= n, t.x += n * t.apart, to += n * stride
    while (rows > 0)
        if (rows == 6 || rows > 10) {
            TAKE(6);
        } else if (rows >= 5) {
            TAKE(5);
        } else if (rows == 4) {
            TAKE(4);
        } else if (rows == 3) {
            TAKE(3);
        } else if (rows == 2) {
            TAKE(2);
        } else {
            TAKE(1);
        }
#undef TAKE
}

/* Scores of keys from `from` on to weights, in place, `mixed` to the highest score that there is now. */
static void weigh_strip(strip *s, float *scores, long from, long count, float scale, float *mixed, long size) {
    float top[STRIP], factor[STRIP], sum[STRIP] = {0};
    memcpy(top, s->highest, sizeof top);
    for (long c = 0; c < count; c++, scores += STRIP) {
#pragma omp simd
        for (long i = 0; i < STRIP; i++) {
            scores[i] = from + c < s->seen[i] ? scores[i] * scale : -INFINITY;
            top[i] = scores[i] > top[i] ? scores[i] : top[i];
        }
    }
    scores -= count * STRIP;
    for (long c = 0; c < count; c++, scores += STRIP) {
#pragma omp simd
        for (long i = 0; i < STRIP; i++) {
            const float weight = exponential(scores[i] - top[i]);
            scores[i] = from + c < s->seen[i] ? weight : 0.0f; /* e to minus infinity is not quite 0 */
            sum[i] += scores[i];
        }
    }
    for (long i = 0; i < STRIP; i++) {
        factor[i] = from ? exponential(s->highest[i] - top[i]) : 0.0f;
        s->sums[i] = s->sums[i] * factor[i] + sum[i];
        s->highest[i] = top[i];
    }
    for (long i = 0; from && i < STRIP; i++)
#pragma omp simd
        for (long d = 0; d < size; d++) mixed[i * size + d] *= factor[i];
}

/* The queries of lanes `first` and on, side by side; lanes after the last repeat it. */
static void place_queries(const call *all, const packed_text *text, long first, long kv, strip *s, float *to) {
    const long share = all->share, size = all->size, last = lanes_of(all, text) - 1, shared_keys =
        text->shared < 0 ? 0 : all->texts[text->shared].to - all->texts[text->shared].from;
    const long before = shared_keys + (text->to - text->from) - (text->stop - text->start); /* keys, of the first query */
    for (long i = 0; i < STRIP; i++) {
        const long lane = first + i < last ? first + i : last;
        const bf16 *q = all->q + ((text->start + lane / share) * all->heads + kv * share + lane % share) * size;
        for (long d = 0; d < size; d++) to[d * STRIP + i] = wide(q[d]);
        s->seen[i] = (int32_t)(before + lane / share + 1);
        s->highest[i] = -INFINITY;
        s->sums[i] = 0;
    }
    s->keys = s->seen[STRIP - 1];
}

static void attend_block(const call *all, const packed_text *text, long first, long kv, const buffers *own) {
    const long size = all->size, share = all->share, lanes = lanes_of(all, text) - first;
    const long num = lanes < LANES ? (lanes + STRIP - 1) / STRIP : STRIPS;
    const long shared = text->shared < 0 ? 0 : all->texts[text->shared].to - all->texts[text->shared].from;
    strip strips[STRIPS];
    for (long s = 0; s < num; s++) place_queries(all, text, first + s * STRIP, kv, strips + s, own->queries + s * STRIP * size);
    memset(own->mixed, 0, num * STRIP * size * sizeof(float));
    const long keys = strips[num - 1].keys;
    for (long c = 0; c < keys; c += KEYS) {
        widen(all, text, shared, kv, c, keys - c < KEYS ? keys - c : KEYS, own);
        for (long s = 0; s < num; s++) {
            const long left = strips[s].keys - c, count = left < KEYS ? left : KEYS;
            if (count <= 0) continue;
            float *mixed = own->mixed + s * STRIP * size;
            memset(own->scores, 0, count * STRIP * sizeof(float));
            add_rows(own->queries + s * STRIP * size, (terms){own->keys, size, 1}, count, size, own->scores, STRIP);
            weigh_strip(strips + s, own->scores, c, count, all->scale, mixed, size);
            for (long d = 0; d < size; d += STRIP)
                add_rows(own->values + d * KEYS, (terms){own->scores, 1, STRIP}, STRIP, count, mixed + d, size);
        }
    }
    for (long i = 0; i < lanes && i < LANES; i++) {
        const long lane = first + i;
        bf16 *to = all->out + ((text->start + lane / share) * all->heads + kv * share + lane % share) * size;
        const float part = 1.0f / strips[i / STRIP].sums[i % STRIP], *mixed = own->mixed + i * size;
#pragma omp simd
        for (long d = 0; d < size; d++) to[d] = narrow(mixed[d] * part);
    }
}

static void one_block(void *shared, long index) {
    call *all = shared;
    const long size = all->size;
    float *memory = scratch(3, (2 * LANES * size + KEYS * STRIP + 2 * KEYS * size) * sizeof(float));
    if (!memory) {
        all->failed = 1;
        return;
    }
    buffers own = {.queries = memory};
    own.mixed = own.queries + LANES * size;
    own.scores = own.mixed + LANES * size;
    own.keys = own.scores + KEYS * STRIP;
    own.values = own.keys + KEYS * size;
    const long block = index / all->kv_heads;
    long text = 0;
    while (block >= all->first[text + 1]) text++;
    attend_block(all, all->texts + text, (all->first[text + 1] - 1 - block) * LANES, index % all->kv_heads, &own);
}

int attend(const bf16 *q, const bf16 *k, const bf16 *v, const int64_t *places, bf16 *out, long heads, long kv_heads,
           long size, float scale, const packed_text *texts, long num_texts) {
    long *first = malloc((num_texts + 1) * sizeof(long));
    if (!first) return 1;
    call all = {q, k, v, places, out, texts, first, num_texts, heads, kv_heads, heads / kv_heads, size, scale, 0};
    first[0] = 0; /* late blocks of a text have the most keys and come first */
    for (long i = 0; i < num_texts; i++) first[i + 1] = first[i] + (lanes_of(&all, texts + i) + LANES - 1) / LANES;
    for_each(first[num_texts] * kv_heads, one_block, &all);
    free(first);
    return all.failed;
}

#endif
