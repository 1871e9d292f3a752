/* Attention of sequences that decode one token each. Their keys and values are read where they lie in the pages of the
   cache: nothing is gathered, padded or repeated for the heads that share them.

   A task is a piece of one sequence's keys, for all heads: a token's keys of all heads lie side by side and are read from
   end to end. Pieces are put together afterwards, so that of one long sequence every core gets some. */

#include <stdlib.h>

#include "layers.h"
#include "threads.h"

enum { LONGEST = 256, SHORTEST = 64, AT_ONCE = 4, PIECES_A_CORE = 4 };

typedef struct { long sequence, from, to; } piece;

/* What all pieces of a call have in common; `share` is the number of query heads of a key head. */
typedef struct {
    const bf16 *q, *keys, *values;
    const int64_t *rows, *places;
    long heads, kv_heads, share, size;
    float scale;
} pages;

#ifdef __AVX512BF16__

#include <immintrin.h>

/* Sizes of heads are multiples of 16: a half of 32 is left over at the end, or none. */
static inline __m512bh elements(const bf16 *at, long left) {
    return (__m512bh)(left >= 32 ? _mm512_loadu_si512(at) : _mm512_zextsi256_si512(_mm256_loadu_si256((const __m256i *)at)));
}

static inline float dot(const bf16 *q, const bf16 *key, long size) {
    __m512 sum = _mm512_setzero_ps();
    for (long d = 0; d < size; d += 32) sum = _mm512_dpbf16_ps(sum, elements(q + d, size - d), elements(key + d, size - d));
    return _mm512_reduce_add_ps(sum);
}

#else

static inline float dot(const bf16 *q, const bf16 *key, long size) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (long d = 0; d < size; d++) sum += wide(q[d]) * wide(key[d]);
    return sum;
}

#endif

float weigh(float *scores, long count, float scale, float *highest) {
    float top = scores[0] * scale, sum = 0;
#pragma omp simd reduction(max : top)
    for (long j = 0; j < count; j++) {
        scores[j] *= scale;
        top = scores[j] > top ? scores[j] : top;
    }
#pragma omp simd reduction(+ : sum)
    for (long j = 0; j < count; j++) sum += scores[j] = exponential(scores[j] - top);
    *highest = top;
    return sum;
}

/* to [size] += weights of `count` <= AT_ONCE values of one head, of which `at` has the places. */
static inline void mix(const pages *p, const int64_t *at, long kv, const float *w, long count, float *to) {
    const long size = p->size, stride = p->kv_heads * size;
    const bf16 *v = p->values + kv * size;
    if (count == AT_ONCE) {
        const bf16 *a = v + at[0] * stride, *b = v + at[1] * stride, *c = v + at[2] * stride, *e = v + at[3] * stride;
#pragma omp simd
        for (long d = 0; d < size; d++)
            to[d] += w[0] * wide(a[d]) + w[1] * wide(b[d]) + w[2] * wide(c[d]) + w[3] * wide(e[d]);
        return;
    }
    for (long j = 0; j < count; j++) {
        const bf16 *a = v + at[j] * stride;
#pragma omp simd
        for (long d = 0; d < size; d++) to[d] += w[j] * wide(a[d]);
    }
}

/* A piece to `part` [heads][2 + size]: highest score, sum of weights, mixed values. own: [heads][LONGEST]. */
static void attend_piece(const pages *p, const piece *one, float *own, float *part) {
    const long size = p->size, heads = p->heads, count = one->to - one->from, step = 2 + size;
    const int64_t *at = p->places + one->from;
    const bf16 *q = p->q + p->rows[one->sequence] * heads * size;
    for (long j = 0; j < count; j++) {
        const bf16 *key = p->keys + at[j] * p->kv_heads * size;
        for (long h = 0; h < heads; h++) own[h * LONGEST + j] = dot(q + h * size, key + h / p->share * size, size);
    }
    for (long h = 0; h < heads; h++) {
        float *to = part + h * step;
        to[1] = weigh(own + h * LONGEST, count, p->scale, to);
        for (long d = 0; d < size; d++) to[2 + d] = 0;
    }
    for (long j = 0; j < count; j += AT_ONCE)
        for (long h = 0; h < heads; h++)
            mix(p, at + j, h / p->share, own + h * LONGEST + j, count - j < AT_ONCE ? count - j : AT_ONCE, part + h * step + 2);
}

/* One head of one sequence from its pieces, which are `step` floats apart; the first one is written over. */
static void join(float *part, long num, long step, long size, bf16 *out) {
    float top = part[0], sum = 0;
    float *mixed = part + 2;
    for (long i = 1; i < num; i++) top = part[i * step] > top ? part[i * step] : top;
    for (long i = 0; i < num; i++) {
        const float factor = exponential(part[i * step] - top), *own = part + i * step + 2;
        sum += part[i * step + 1] * factor;
#pragma omp simd
        for (long d = 0; d < size; d++) mixed[d] = i ? mixed[d] + own[d] * factor : own[d] * factor;
    }
#pragma omp simd
    for (long d = 0; d < size; d++) out[d] = narrow(mixed[d] / sum);
}

/* Keys of a piece: so many that every core has some to do, and not so few that putting them together takes longer. By the
   sequence's own keys: its sums, and so what is drawn of them, are the same whoever else is in the step. */
static long piece_length(long keys) {
    const long even = keys / (PIECES_A_CORE * num_threads());
    return even < SHORTEST ? SHORTEST : even > LONGEST ? LONGEST : even / AT_ONCE * AT_ONCE;
}

/* A call: pieces of all sequences in order, those of sequence i from first[i] on; their results lie in `parts`. */
typedef struct {
    const pages *p;
    const piece *pieces;
    const long *first;
    float *parts;
    bf16 *out;
    int failed;
} call;

static void one_piece(void *shared, long i) {
    call *all = shared;
    float *own = scratch(3, all->p->heads * LONGEST * sizeof(float));
    if (!own) all->failed = 1;
    else attend_piece(all->p, all->pieces + i, own, all->parts + i * all->p->heads * (2 + all->p->size));
}

static void one_sequence(void *shared, long i) {
    const call *all = shared;
    const long heads = all->p->heads, size = all->p->size, step = 2 + size;
    for (long h = 0; h < heads; h++)
        join(all->parts + (all->first[i] * heads + h) * step, all->first[i + 1] - all->first[i], heads * step, size,
             all->out + (all->p->rows[i] * heads + h) * size);
}

/* q, out [tokens, heads, size]; keys, values [.., kv_heads, size]. The i-th of `num` sequences has its query in row
   rows[i], and its keys at the places from borders[i][0] to before borders[i][1]. Returns 0, or 1 where memory ran out. */
int attend_pages(const bf16 *q, const bf16 *keys, const bf16 *values, bf16 *out, const int64_t *rows,
                 const int64_t (*borders)[2], const int64_t *places, long num, long heads, long kv_heads, long size,
                 float scale) {
    const pages p = {q, keys, values, rows, places, heads, kv_heads, heads / kv_heads, size, scale};
    const long step = 2 + size;
    long count = 0;
    for (long i = 0; i < num; i++) {
        const long keys = borders[i][1] - borders[i][0], length = piece_length(keys);
        count += (keys + length - 1) / length;
    }
    piece *all = malloc(count * sizeof(piece));
    float *parts = malloc((size_t)count * heads * step * sizeof(float));
    long *first = malloc((num + 1) * sizeof(long));
    call one = {&p, all, first, parts, out, !all || !parts || !first};
    long n = 0;
    for (long i = 0; i < num && !one.failed; i++) {
        const long length = piece_length(borders[i][1] - borders[i][0]);
        first[i] = n;
        for (long from = borders[i][0]; from < borders[i][1]; from += length)
            all[n++] = (piece){i, from, from + length < borders[i][1] ? from + length : borders[i][1]};
        first[i + 1] = n;
    }
    if (!one.failed) for_each(n, one_piece, &one);
    if (!one.failed) for_each(num, one_sequence, &one);
    free(all), free(parts), free(first);
    return one.failed;
}
