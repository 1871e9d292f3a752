/* Causal attention of several texts in one packed row, texts of one prompt sharing its keys; bf16 with fp32 sums.
   A text may be the end of one whose keys lie elsewhere: it sees all of them, the last query the last key.

   For processors with AVX-512 (dots.h). A block of 8 queries of one head, 16 with tiles (amx.h), is one task: its scores
   stand in the cache in fp32, so the softmax is the plain one, and only keys that some query of the block sees are
   multiplied. The keys of a text lie 16 to a group, pairs of elements side by side, as the dot product instruction reads them. Its last groups are filled
   up with zeros: weights of 0 would not keep another text's infinities out. */

#include "amx.h"

#ifdef HAS_DOTS

#include <stdlib.h>
#include <string.h>

#include "layers.h"
#include "threads.h"

enum { QUERIES = 8, MOST_QUERIES = 16, LANES = 16, MOST_SIZE = 1024 };

typedef struct { long first, groups, keys; } span; /* an even number of groups, of whose keys so many are seen */

DOTS pairs pairs_at(const bf16 *at) { return pairs_of(_mm512_loadu_si512(at)); }

/* 2^x for x <= 0; NaN passes through. Polynomial of degree 5 over [-0.5, 0.5], 2e-7. */
static inline __m512 exp2_of(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-126.0f), x); /* the second operand where one is NaN */
    __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), r = _mm512_sub_ps(x, n);
    __m512 p = _mm512_set1_ps(1.33335581e-3f);
    const float rest[] = {9.61812911e-3f, 5.55041087e-2f, 2.40226507e-1f, 6.93147181e-1f, 1.0f};
    for (int i = 0; i < 5; i++) p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(rest[i]));
    return _mm512_scalef_ps(p, n);
}

static long keys_of(const packed_text *one) { return one->to - one->from; }
static long even_groups(long keys) { return (keys + 2 * LANES - 1) / (2 * LANES) * 2; }

/* Scores of 8 queries against two groups of keys; q [8][size], keys [2][size / 2][16 pairs]. */
static inline void scores_of(const element *q, const bf16 *keys, long size, float *to, long stride) {
    __m512 sum[QUERIES][2];
    for (int i = 0; i < QUERIES; i++) sum[i][0] = sum[i][1] = _mm512_setzero_ps();
    for (long d = 0; d < size / 2; d++) {
        const pairs a = pairs_at(keys + d * 2 * LANES), b = pairs_at(keys + (size / 2 + d) * 2 * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < QUERIES; i++) {
            sum[i][0] = add_pair(sum[i][0], q + i * size + 2 * d, a);
            sum[i][1] = add_pair(sum[i][1], q + i * size + 2 * d, b);
        }
    }
    for (int i = 0; i < QUERIES; i++) {
        _mm512_storeu_ps(to + i * stride, sum[i][0]);
        _mm512_storeu_ps(to + i * stride + LANES, sum[i][1]);
    }
}

/* Scores of one query to weights of which the sum is returned; keys that are not seen weigh 0. */
static float softmax(float *scores, element *weights, const span *spans, float scale) {
    const __m512 never = _mm512_set1_ps(-INFINITY), factor = _mm512_set1_ps(scale);
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512 most = never, sum = _mm512_setzero_ps();
    float *at = scores;
    for (int s = 0; s < 2; s++)
        for (long g = 0; g < spans[s].groups; g++, at += LANES) {
            __mmask16 seen = _mm512_cmplt_epi32_mask(lanes, _mm512_set1_epi32((int)(spans[s].keys - g * LANES)));
            __m512 x = _mm512_mask_mul_ps(never, seen, _mm512_loadu_ps(at), factor);
            _mm512_storeu_ps(at, x);
            most = _mm512_max_ps(most, x);
        }
    const long count = at - scores;
    const __m512 top = _mm512_set1_ps(_mm512_reduce_max_ps(most));
    for (long k = 0; k < count; k += LANES) {
        __m512 x = _mm512_loadu_ps(scores + k);
        __mmask16 seen = _mm512_cmp_ps_mask(x, never, _CMP_NEQ_UQ);
        __m512 e = _mm512_maskz_mov_ps(seen, exp2_of(_mm512_sub_ps(x, top)));
        sum = _mm512_add_ps(sum, e);
        store_sixteen(e, weights + k);
    }
    return _mm512_reduce_add_ps(sum);
}

/* 32 elements of the output of 8 queries: weights times values, values [pair of keys][size][2]. */
static inline void mix(const element *weights, long stride, const bf16 *values, long size, const span *spans, float *to) {
    __m512 out[QUERIES][2];
    for (int i = 0; i < QUERIES; i++) out[i][0] = out[i][1] = _mm512_setzero_ps();
    const element *w = weights;
    for (int s = 0; s < 2; s++)
        for (long k = 0; k < spans[s].groups * LANES / 2; k++, w += 2) {
            const bf16 *v = values + (spans[s].first * LANES / 2 + k) * size * 2;
            const pairs a = pairs_at(v), b = pairs_at(v + 2 * LANES);
#pragma GCC unroll 8
            for (int i = 0; i < QUERIES; i++) {
                out[i][0] = add_pair(out[i][0], w + i * stride, a);
                out[i][1] = add_pair(out[i][1], w + i * stride, b);
            }
        }
    for (int i = 0; i < QUERIES; i++)
        for (int half = 0; half < 2; half++) _mm512_storeu_ps(to + (2 * i + half) * LANES, out[i][half]);
}

/* The same two by tiles, of 16 queries. */
#ifdef HAS_TILES

static void scores_by_tiles(const bf16 *q, const bf16 *keys, long size, float *to, long stride) {
    const halves two = {keys, keys + size * LANES, 2 * LANES, 0};
    tiles_product(two, size, q, size, MOST_QUERIES, to, stride, 0, (upcoming){0});
}

static void mix_by_tiles(const bf16 *weights, long stride, const bf16 *values, long size, const span *spans, float *to) {
    for (int s = 0; s < 2; s++) {
        const bf16 *first = values + spans[s].first * LANES / 2 * size * 2;
        const halves some = {first, first + 2 * LANES, 2 * size, 0};
        tiles_product(some, spans[s].groups * LANES, weights, stride, MOST_QUERIES, to, 2 * LANES, s, (upcoming){0});
        weights += spans[s].groups * LANES;
    }
}

#endif

/* A group of keys and values of one head; those from `to` on are filled with zeros. The i-th key lies at row places[i]
   (NULL: at row i). */
static void pack_group(const bf16 *k, const bf16 *v, const int64_t *places, bf16 *keys, bf16 *values, long from, long to,
                       long heads, long size) {
    static const bf16 nothing[MOST_SIZE];
    for (long lane = 0; lane < LANES; lane += 2) {
        const bf16 *key[2], *value[2];
        for (long i = 0; i < 2; i++) {
            const int is_there = from + lane + i < to;
            const long at = !is_there ? 0 : (places ? places[from + lane + i] : from + lane + i) * heads * size;
            key[i] = is_there ? k + at : nothing, value[i] = is_there ? v + at : nothing;
        }
        for (long d = 0; d < size; d += 2)
            for (long i = 0; i < 2; i++) memcpy(keys + (d / 2 * LANES + lane + i) * 2, key[i] + d, 2 * sizeof(bf16));
        for (long d = 0; d < size; d += LANES) {
            const __m512i even = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(value[0] + d)));
            const __m512i odd = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(value[1] + d)));
            _mm512_storeu_si512(values + (lane / 2 * size + d) * 2, _mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
        }
    }
}

/* What all blocks of a call have in common. `begin` is each text's first group. */
typedef struct {
    const bf16 *q, *keys, *values;
    bf16 *out;
    const packed_text *texts;
    const long *begin;
    long groups, heads, kv_heads, size, stride;
    long queries; /* of a block: MOST_QUERIES where tiles compute, else QUERIES */
    float scale;
} row;

typedef struct { long text, head, first; } block;
typedef struct { float *scores; element *weights, *queries; } buffers;

#ifdef HAS_TILES
#define SCORE(r) (r->queries == MOST_QUERIES ? scores_by_tiles : scores_of)
#define MIX(r) (r->queries == MOST_QUERIES ? mix_by_tiles : mix)
static long queries_of_a_block(void) { return has_tiles() ? MOST_QUERIES : QUERIES; }
#else
#define SCORE(r) scores_of
#define MIX(r) mix
static long queries_of_a_block(void) { return QUERIES; }
#endif

static void attend_block(const row *r, const block *one, const buffers *own) {
    const packed_text *text = r->texts + one->text;
    const long size = r->size, kv = one->head / (r->heads / r->kv_heads), left = text->stop - one->first;
    const long count = left < r->queries ? left : r->queries, shared = text->shared;
    const long before = keys_of(text) - (text->stop - one->first), shared_keys = shared < 0 ? 0 : keys_of(r->texts + shared);
    span spans[2] = {{shared < 0 ? 0 : r->begin[shared], even_groups(shared_keys), shared_keys},
                     {r->begin[one->text], even_groups(before + count), 0}};
    const bf16 *keys = r->keys + kv * r->groups * LANES * size, *values = r->values + kv * r->groups * LANES * size;
    for (long i = 0; i < r->queries; i++) /* a block that is not full repeats its first query */
        store_elements(r->q + ((one->first + (i < count ? i : 0)) * r->heads + one->head) * size, size, own->queries + i * size);
    float *to = own->scores;
    for (int s = 0; s < 2; s++)
        for (long g = 0; g < spans[s].groups; g += 2, to += 2 * LANES)
            SCORE(r)(own->queries, keys + (spans[s].first + g) * LANES * size, size, to, r->stride);
    float part[MOST_QUERIES], mixed[MOST_QUERIES * 2 * LANES];
    for (long i = 0; i < r->queries; i++) {
        spans[1].keys = before + (i < count ? i : 0) + 1;
        part[i] = 1.0f / softmax(own->scores + i * r->stride, own->weights + i * r->stride, spans, r->scale);
    }
    for (long d = 0; d < size; d += 2 * LANES) {
        MIX(r)(own->weights, r->stride, values + d * 2, size, spans, mixed);
        for (long i = 0; i < count; i++) {
            bf16 *at = r->out + ((one->first + i) * r->heads + one->head) * size + d;
            for (int half = 0; half < 2; half++) {
                const __m512 all = _mm512_loadu_ps(mixed + (2 * i + half) * LANES);
                _mm256_storeu_si256((__m256i *)(at + half * LANES), sixteen_bf16s(_mm512_mul_ps(all, _mm512_set1_ps(part[i]))));
            }
        }
    }
}

/* Every block of every text: late ones have the most keys and come first, so that none is left over at the end. */
static long blocks_of(const row *r, long num_texts, block *to) {
    long n = 0;
    for (long i = 0; i < num_texts; i++)
        for (long b = (r->texts[i].stop - r->texts[i].start - 1) / r->queries; b >= 0; b--)
            for (long h = 0; h < r->heads; h++) to[n++] = (block){i, h, r->texts[i].start + b * r->queries};
    return n;
}

/* Blocks and groups of a call, as many to a task as keep threads busy for longer than drawing one takes. */
typedef struct {
    const row *r;
    const block *blocks;
    const bf16 *k, *v;
    const int64_t *places;
    bf16 *keys, *values;
    long num_blocks, num_texts;
    int failed;
} packed_row;

enum { BLOCKS_A_TASK = 8 };

static void some_blocks(void *shared, long index) {
    packed_row *all = shared;
    const row *r = all->r;
    const size_t scores = r->queries * r->stride * sizeof(float), weights = r->queries * r->stride * sizeof(element);
    char *memory = scratch(3, scores + weights + r->queries * r->size * sizeof(element));
    if (!memory) {
        all->failed = 1;
        return;
    }
    const buffers own = {(float *)memory, (element *)(memory + scores), (element *)(memory + scores + weights)};
    const long stop = (index + 1) * BLOCKS_A_TASK < all->num_blocks ? (index + 1) * BLOCKS_A_TASK : all->num_blocks;
    for (long i = index * BLOCKS_A_TASK; i < stop; i++) attend_block(r, all->blocks + i, &own);
    release_tiles();
}

static void pack_text(void *shared, long index) {
    const packed_row *all = shared;
    const row *r = all->r;
    const long i = index / r->kv_heads, h = index % r->kv_heads;
    for (long g = 0; g < even_groups(keys_of(r->texts + i)); g++) {
        const long at = (h * r->groups + r->begin[i] + g) * LANES * r->size;
        pack_group(all->k + h * r->size, all->v + h * r->size, all->places, all->keys + at, all->values + at,
                   r->texts[i].from + g * LANES, r->texts[i].to, r->kv_heads, r->size);
    }
}

/* out, q [tokens, heads, size], k and v [rows, kv_heads, size]; size a multiple of 32, at most MOST_SIZE; scale is that of
   the scores.
   places: the row of each key that the texts count from 0 on (NULL: key i is row i). Of `out`, the texts' queries are
   written. Returns 0, or 1 where memory ran out. */
int attend(const bf16 *q, const bf16 *k, const bf16 *v, const int64_t *places, bf16 *out, long heads, long kv_heads,
           long size, float scale, const packed_text *texts, long num_texts) {
    long *begin = malloc(num_texts * sizeof(long)), groups = 0, num_blocks = 0, most = 0;
    const long queries = queries_of_a_block();
    if (!begin) return 1;
    for (long i = 0; i < num_texts; i++) {
        const long own = even_groups(keys_of(texts + i));
        begin[i] = groups;
        groups += own;
        num_blocks += (texts[i].stop - texts[i].start + queries - 1) / queries;
        const long all = own + (texts[i].shared < 0 ? 0 : even_groups(keys_of(texts + texts[i].shared)));
        most = all > most ? all : most;
    }
    const size_t bytes = (size_t)kv_heads * groups * LANES * size * sizeof(bf16);
    bf16 *keys = malloc(bytes), *values = malloc(bytes);
    block *blocks = malloc((size_t)num_blocks * heads * sizeof(block));
    int failed = !keys || !values || !blocks;
    if (!failed) {
        const float base_2 = scale * 1.44269504f;
        /* A row is a little longer than its scores: at a power of two rows would take each other's places in the cache. */
        const row r = {q, keys, values, out, texts, begin, groups, heads, kv_heads, size, (most + 2) * LANES, queries, base_2};
        packed_row all = {&r, blocks, k, v, places, keys, values, blocks_of(&r, num_texts, blocks), num_texts, 0};
        for_each(num_texts * kv_heads, pack_text, &all);
        for_each((all.num_blocks + BLOCKS_A_TASK - 1) / BLOCKS_A_TASK, some_blocks, &all);
        failed = all.failed;
    }
    free(begin), free(keys), free(values), free(blocks);
    return failed;
}

#endif
