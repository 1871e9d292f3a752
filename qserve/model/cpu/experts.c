/* Experts of a layer: of each token the few that its router has chosen. Tokens of one expert are multiplied together, so
   that its weights are read once. */

#include <stdlib.h>
#include <string.h>

#include "bf16.h"
#include "products.h"
#include "threads.h"

/* A call; pairs of a token and one of its experts are in the order of the experts. */
typedef struct {
    const bf16 *x;
    const float *shares;
    const int64_t *pairs; /* token * top + place among the token's experts */
    bf16 *rows, *out;
    float *results, *sums;
    long hidden, top;
} call;

/* Expert `index` of `num` whose outputs lie one after the other, whole panels each; bf16 has no scales to be found too. */
static matrix expert_of(const matrix *all, long num, long index) {
    matrix one = *all;
    one.out = all->out / num;
    one.codes += index * panels_of(&one) * panel_bytes(all);
    return one;
}

static void gather(void *shared, long i) {
    const call *all = shared;
    memcpy(all->rows + i * all->hidden, all->x + all->pairs[i] / all->top * all->hidden, all->hidden * sizeof(bf16));
}

static void add_up(void *shared, long i) {
    const call *all = shared;
    float *to = all->sums + all->pairs[i] / all->top * all->hidden;
    const float *from = all->results + i * all->hidden, share = all->shares[all->pairs[i]];
    for (long k = 0; k < all->hidden; k++) to[k] += share * from[k];
}

static void round_row(void *shared, long t) {
    const call *all = shared;
    for (long k = 0; k < all->hidden; k++) all->out[t * all->hidden + k] = narrow(all->sums[t * all->hidden + k]);
}

/* Pairs in the order of their experts; ends[e]: behind the last of expert e. Experts from `num` on are nobody's. */
static void sort_pairs(const int64_t *chosen, long count, long num, int64_t *pairs, int64_t *ends) {
    memset(ends, 0, (num + 1) * sizeof(int64_t));
    for (long i = 0; i < count; i++)
        if (chosen[i] < num) ends[chosen[i] + 1]++;
    for (long e = 0; e < num; e++) ends[e + 1] += ends[e];
    for (long i = 0; i < count; i++)
        if (chosen[i] < num) pairs[ends[chosen[i]]++] = i;
}

static int mix_one(call *all, const matrix *gate, const matrix *up, const matrix *down, long count, bf16 *inner) {
    for_each(count, gather, all);
    if (multiply_gated(gate, up, all->rows, count, inner)) return 1;
    const product last = {.w = down, .y32 = all->results, .stride = all->hidden};
    if (multiply(&last, 1, inner, count)) return 1;
    for_each(count, add_up, all); /* a token has an expert once */
    return 0;
}

/* out [tokens][hidden] = the sum of shares [tokens][top] times what experts chosen [tokens][top] of `num` make of
   x [tokens][hidden]. gate and up [num * inner][hidden], down [num * hidden][inner], bf16, of whole panels an expert.
   0, or 1 where memory ran out. */
int mix_experts(const matrix *gate, const matrix *up, const matrix *down, long num, const bf16 *x, long tokens,
                const int64_t *chosen, const float *shares, long top, bf16 *out) {
    const long hidden = gate->in, wide = down->in;
    int64_t *pairs = malloc((tokens * top + num + 1) * sizeof(int64_t)), *ends = pairs + tokens * top;
    float *sums = calloc(tokens * hidden, sizeof(float)), *results = malloc(tokens * hidden * sizeof(float));
    bf16 *rows = malloc(tokens * hidden * sizeof(bf16)), *inner = malloc(tokens * wide * sizeof(bf16));
    int failed = !pairs || !sums || !results || !rows || !inner;
    if (!failed) {
        sort_pairs(chosen, tokens * top, num, pairs, ends);
        call all = {.x = x, .shares = shares, .rows = rows, .out = out, .results = results, .sums = sums, .hidden = hidden,
                    .top = top};
        for (long e = 0, from = 0; e < num && !failed; from = ends[e++]) {
            if (ends[e] == from) continue;
            const matrix one = expert_of(gate, num, e), two = expert_of(up, num, e), three = expert_of(down, num, e);
            all.pairs = pairs + from;
            failed = mix_one(&all, &one, &two, &three, ends[e] - from, inner);
        }
        if (!failed) for_each(tokens, round_row, &all);
    }
    free(pairs), free(sums), free(results), free(rows), free(inner);
    return failed;
}
