/* `attend` of attention.c for processors without its instructions: causal attention of several texts in one packed row, in
   fp32 by whatever vectors the compiler makes.

   A task is a block of queries of one head. Each key is widened once for all of them; the scores of a query stand in the
   cache, so the softmax is the plain one. */

#include "dots.h"

#ifndef HAS_DOTS

#include <stdlib.h>

#include "layers.h"
#include "threads.h"

enum { QUERIES = 8, AT_ONCE = 4 };

/* What all blocks of a call have in common; `stride`: room for the scores of a query. */
typedef struct {
    const bf16 *q, *k, *v;
    const int64_t *places;
    bf16 *out;
    const packed_text *texts;
    const long *first; /* of each text, its first block */
    long num_texts, heads, kv_heads, size, stride;
    float scale;
    int failed;
} call;

typedef struct { float *scores, *queries, *mixed, *rows; } buffers;

static long blocks_of(const packed_text *one) { return (one->stop - one->start + QUERIES - 1) / QUERIES; }

/* Which row is the c-th key that a text sees: first the `shared` ones of another text, then its own. */
static long row_of(const call *all, const packed_text *text, long shared, long c) {
    const long at = c < shared ? all->texts[text->shared].from + c : text->from + c - shared;
    return all->places ? all->places[at] : at;
}

static void widen(const bf16 *from, long size, float *to) {
#pragma omp simd
    for (long d = 0; d < size; d++) to[d] = wide(from[d]);
}

static float dot(const float *a, const float *b, long size) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (long d = 0; d < size; d++) sum += a[d] * b[d];
    return sum;
}

/* mixed [count][size] += weights [count][..] of `num` <= AT_ONCE values. */
static void mix(const float *rows, long num, const float *weights, long stride, long count, long size, float *mixed) {
    for (long i = 0; i < count; i++, weights += stride, mixed += size) {
        if (num == AT_ONCE) {
            const float *b = rows + size, *c = b + size, *e = c + size;
#pragma omp simd
            for (long d = 0; d < size; d++)
                mixed[d] += weights[0] * rows[d] + weights[1] * b[d] + weights[2] * c[d] + weights[3] * e[d];
            continue;
        }
        for (long j = 0; j < num; j++) {
#pragma omp simd
            for (long d = 0; d < size; d++) mixed[d] += weights[j] * rows[j * size + d];
        }
    }
}

static void attend_block(const call *all, const packed_text *text, long first, long head, const buffers *own) {
    const long size = all->size, kv = head / (all->heads / all->kv_heads), wide_row = all->kv_heads * size;
    const long left = text->stop - first, count = left < QUERIES ? left : QUERIES;
    const long shared = text->shared < 0 ? 0 : all->texts[text->shared].to - all->texts[text->shared].from;
    const long seen = shared + (text->to - text->from) - left + 1, keys = seen + count - 1; /* by the first, by the last */
    for (long i = 0; i < count; i++) widen(all->q + ((first + i) * all->heads + head) * size, size, own->queries + i * size);
    for (long c = 0; c < keys; c++) {
        widen(all->k + row_of(all, text, shared, c) * wide_row + kv * size, size, own->rows);
        for (long i = 0; i < count; i++) own->scores[i * all->stride + c] = dot(own->queries + i * size, own->rows, size);
    }
    float sums[QUERIES], highest;
    for (long i = 0; i < count; i++) {
        float *scores = own->scores + i * all->stride;
        sums[i] = weigh(scores, seen + i, all->scale, &highest);
        for (long c = seen + i; c < keys; c++) scores[c] = 0;
    }
    memset(own->mixed, 0, count * size * sizeof(float));
    for (long c = 0; c < keys; c += AT_ONCE) {
        const long num = keys - c < AT_ONCE ? keys - c : AT_ONCE;
        for (long j = 0; j < num; j++)
            widen(all->v + row_of(all, text, shared, c + j) * wide_row + kv * size, size, own->rows + j * size);
        mix(own->rows, num, own->scores + c, all->stride, count, size, own->mixed);
    }
    for (long i = 0; i < count; i++) {
        bf16 *to = all->out + ((first + i) * all->heads + head) * size;
        for (long d = 0; d < size; d++) to[d] = narrow(own->mixed[i * size + d] / sums[i]);
    }
}

static void one_block(void *shared, long index) {
    call *all = shared;
    const size_t scores = QUERIES * all->stride, rows = QUERIES * all->size;
    float *memory = scratch(3, (scores + 2 * rows + AT_ONCE * all->size) * sizeof(float));
    if (!memory) {
        all->failed = 1;
        return;
    }
    const buffers own = {memory, memory + scores, memory + scores + rows, memory + scores + 2 * rows};
    const long block = index / all->heads;
    long text = 0;
    while (block >= all->first[text + 1]) text++;
    const packed_text *one = all->texts + text; /* late blocks have the most keys and come first */
    attend_block(all, one, one->start + (all->first[text + 1] - 1 - block) * QUERIES, index % all->heads, &own);
}

int attend(const bf16 *q, const bf16 *k, const bf16 *v, const int64_t *places, bf16 *out, long heads, long kv_heads,
           long size, float scale, const packed_text *texts, long num_texts) {
    long *first = malloc((num_texts + 1) * sizeof(long)), most = 0;
    if (!first) return 1;
    first[0] = 0;
    for (long i = 0; i < num_texts; i++) {
        const packed_text *other = texts[i].shared < 0 ? NULL : texts + texts[i].shared;
        const long keys = texts[i].to - texts[i].from + (other ? other->to - other->from : 0);
        most = keys > most ? keys : most;
        first[i + 1] = first[i] + blocks_of(texts + i);
    }
    call all = {q, k, v, places, out, texts, first, num_texts, heads, kv_heads, size, most, scale, 0};
    for_each(first[num_texts] * heads, one_block, &all);
    free(first);
    return all.failed;
}

#endif
