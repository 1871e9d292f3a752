/* Experts of a layer: of each token the few that its router has chosen. Rows of one expert lie together, so that its weights
   are read once; gates and ups of all experts are one phase of work, and downs another. */

#include <stdlib.h>
#include <string.h>

#include "amx.h"
#include "products.h"
#include "threads.h"

/* More tokens are computed one piece after the other: their rows are kept once for each of their experts. */
enum { MOST_TOKENS = 256 };

/* Rows [first, first + num) are of this expert. */
typedef struct { long expert, first, num; } group;

/* A call: a row is a pair of a token and one of its experts; places: of each pair, -1 where nobody has the expert. */
typedef struct {
    const matrix *gate, *up, *down;
    const bf16 *x;
    const float *shares;
    const group *groups;
    const int32_t *order, *inner_order; /* [experts][hidden], [experts][wide], or NULL: as in matrix.h */
    int64_t *places;
    bf16 *rows, *inner, *ordered, *out; /* ordered: like inner, where there is an order */
    float *results;
    operand states, mixed; /* `rows` as gates and ups read them, and `inner` as downs do */
    long num_rows, hidden, wide, top;
    int failed;
} call;

static void gate_panel(call *all, const group *one, long panel) {
    const long index = one->expert * (all->wide / PANEL) + panel;
    float gates[MOST_TOKENS * PANEL], ups[MOST_TOKENS * PANEL];
    for (long at = 0; at < one->num; at += MOST_TOKENS) {
        const long first = one->first + at, some = one->num - at < MOST_TOKENS ? one->num - at : MOST_TOKENS;
        all->failed |= panel_rows(all->gate, index, &all->states, first, some, gates);
        all->failed |= panel_rows(all->up, index, &all->states, first, some, ups);
        for (long m = 0; m < some; m++)
            for (long i = 0; i < PANEL; i++) {
                const float g = wide(narrow(gates[m * PANEL + i])), u = wide(narrow(ups[m * PANEL + i]));
                all->inner[(first + m) * all->wide + panel * PANEL + i] = narrow(g / (1.0f + exponential(-g)) * u);
            }
    }
}

static void some_gates(void *shared, long index) {
    call *all = shared;
    const long panels = all->wide / PANEL;
    gate_panel(all, all->groups + index / panels, index % panels);
    release_tiles();
}

static void some_downs(void *shared, long index) {
    call *all = shared;
    const long panels = all->hidden / PANEL, panel = index % panels;
    const group *one = all->groups + index / panels;
    float result[MOST_TOKENS * PANEL];
    for (long at = 0; at < one->num; at += MOST_TOKENS) {
        const long first = one->first + at, some = one->num - at < MOST_TOKENS ? one->num - at : MOST_TOKENS;
        all->failed |= panel_rows(all->down, one->expert * panels + panel, &all->mixed, first, some, result);
        for (long m = 0; m < some; m++)
            memcpy(all->results + (first + m) * all->hidden + panel * PANEL, result + m * PANEL, PANEL * sizeof(float));
    }
    release_tiles();
}

/* A token's experts in the order of its router. */
static void sum_token(const call *all, long t) {
    bf16 *out = all->out + t * all->hidden;
    for (long from = 0; from < all->hidden; from += PANEL) {
        float sums[PANEL] = {0};
        for (long k = 0; k < all->top; k++) {
            const long place = all->places[t * all->top + k];
            if (place < 0) continue;
            const float *result = all->results + place * all->hidden + from;
            const float share = all->shares[t * all->top + k];
            for (long i = 0; i < PANEL; i++) sums[i] += share * wide(narrow(result[i]));
        }
        for (long i = 0; i < PANEL; i++) out[from + i] = narrow(sums[i]);
    }
}

/* Elements of `from` in the order of an expert's inputs. */
static void take(bf16 *to, const bf16 *from, const int32_t *orders, long expert, long width) {
    if (!orders) {
        memcpy(to, from, width * sizeof(bf16));
        return;
    }
    const int32_t *order = orders + expert * width;
    for (long k = 0; k < width; k++) to[k] = from[order[k]];
}

/* Pairs in the order of their experts, and their states; returns how many groups there are. Experts from `num` on are
   nobody's. ends: room for num + 1. */
static long gather(call *all, const int64_t *chosen, long tokens, long num, int64_t *ends, group *groups) {
    long count = 0;
    memset(ends, 0, (num + 1) * sizeof(int64_t));
    for (long i = 0; i < tokens * all->top; i++)
        if (chosen[i] < num) ends[chosen[i] + 1]++;
    for (long e = 0; e < num; e++) {
        if (ends[e + 1]) groups[count++] = (group){e, ends[e], ends[e + 1]};
        ends[e + 1] += ends[e];
    }
    all->num_rows = ends[num];
    for (long i = 0; i < tokens * all->top; i++) {
        all->places[i] = chosen[i] < num ? ends[chosen[i]]++ : -1;
        if (all->places[i] >= 0)
            take(all->rows + all->places[i] * all->hidden, all->x + i / all->top * all->hidden, all->order, chosen[i], all->hidden);
    }
    return count;
}

/* What gates and ups made, as downs read it. */
static const bf16 *order_inner(const call *all, long count) {
    if (!all->inner_order) return all->inner;
    for (const group *one = all->groups; one < all->groups + count; one++)
        for (long row = one->first * all->wide; row < (one->first + one->num) * all->wide; row += all->wide)
            take(all->ordered + row, all->inner + row, all->inner_order, one->expert, all->wide);
    return all->ordered;
}

/* Gates and ups, then downs. */
static int multiply_groups(call *all, long count) {
    if (!count) return 0;
    all->states = (operand){.x = all->rows, .rows = all->num_rows, .stride = all->hidden};
    if (prepare(&all->states, all->gate)) return 1;
    for_each(count * (all->wide / PANEL), some_gates, all);
    all->mixed = (operand){.x = order_inner(all, count), .rows = all->num_rows, .stride = all->wide};
    if (all->failed || prepare(&all->mixed, all->down)) return 1; /* in the memory of the states */
    for_each(count * (all->hidden / PANEL), some_downs, all);
    return all->failed;
}

/* out [tokens][hidden] = the sum of shares [tokens][top] times what experts chosen [tokens][top] of `num` make of
   x [tokens][hidden]. gate and up [num * inner][hidden], of one format, down [num * hidden][inner], of whole panels an
   expert. An order has the inputs of each expert, and gates and ups share it. 0, or 1 where memory ran out. */
int mix_experts(const matrix *gate, const matrix *up, const matrix *down, long num, const bf16 *x, long tokens,
                const int64_t *chosen, const float *shares, long top, bf16 *out) {
    const long at_once = tokens < MOST_TOKENS ? tokens : MOST_TOKENS, pairs = at_once * top;
    matrix gates = *gate, ups = *up, downs = *down;
    gates.order = ups.order = downs.order = NULL; /* rows are put in order here, by their experts */
    call all = {.gate = &gates, .up = &ups, .down = &downs, .hidden = gate->in, .wide = down->in, .top = top,
                .order = gate->order, .inner_order = down->order};
    int64_t *ends = malloc((num + 1) * sizeof(int64_t));
    group *groups = malloc(num * sizeof(group));
    all.places = malloc(pairs * sizeof(int64_t));
    all.rows = malloc(pairs * all.hidden * sizeof(bf16));
    all.inner = malloc(pairs * all.wide * sizeof(bf16));
    all.results = malloc(pairs * all.hidden * sizeof(float));
    all.ordered = down->order ? malloc(pairs * all.wide * sizeof(bf16)) : NULL;
    int failed = !ends || !groups || !all.places || !all.rows || !all.inner || !all.results || (down->order && !all.ordered);
    for (long first = 0; first < tokens && !failed; first += at_once) {
        const long some = tokens - first < at_once ? tokens - first : at_once;
        all.x = x + first * all.hidden;
        all.out = out + first * all.hidden;
        all.shares = shares + first * top;
        all.groups = groups;
        failed = multiply_groups(&all, gather(&all, chosen + first * top, some, num, ends, groups));
        for (long t = 0; t < some && !failed; t++) sum_token(&all, t);
    }
    free(ends), free(groups), free(all.places), free(all.rows), free(all.inner), free(all.ordered), free(all.results);
    return failed;
}
