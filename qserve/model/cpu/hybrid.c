/* Layers of a hybrid from one product to the next: linear attention (delta.c), or full attention whose queries come with a
   gate each and are turned in part. As layers.c does for dense models; weights of norms are stored less one. */

#include "delta.h"
#include "layers.h"
#include "products.h"

enum { MOST_IN = 4 };

/* A layer's weights and cache. first: the first products, whose results lie side by side where attention is linear; of full
   attention queries with gates, keys, values. num_alike: how many of the former are of one kind, and the others of another.
   Without a gate somebody else takes care of the rest of the layer. */
typedef struct {
    const bf16 *input_norm, *post_norm, *query_norm, *key_norm;
    const matrix *first[MOST_IN], *output, *gate, *up, *down;
    const delta_layer *linear; /* NULL: full attention */
    bf16 *keys, *values;       /* of full attention: [rows][kv_heads * size] */
    bf16 *windows;             /* of linear attention, as delta.h has them */
    float *memory;
    int64_t num_alike;
} hybrid_layer;

/* What the layers of a step share. Rows [tokens][..] in bf16; `delta` is what the layer before has to add to `states`, if
   there was one. `written`: the row of the cache of each token; `places`: rows of all keys that are read. Sequences that
   decode: num_rows, as `attend_pages` has them; texts: as `attend`; delta_texts: all of both, as delta.h has them. `between` and ranges: as
   in layers.c. */
typedef struct {
    int64_t tokens, hidden, heads, kv_heads, size, turned, has_delta, num_rows, num_texts, num_delta_texts, between, num_ranges;
    float eps, scaling;
    bf16 *states, *delta, *normed, *projected, *query, *key, *value, *mixed, *gate;
    const bf16 *cos, *sin;
    const int64_t *written, *places, *rows, *spans, *texts;
    const delta_text *delta_texts;
    const row_range *ranges;
} hybrid_step;

static inputs rows_of(const hybrid_step *s, const bf16 *x, long stride) {
    return (inputs){x, stride, s->tokens, s->ranges, s->num_ranges};
}

static int mix_linear(const hybrid_layer *one, const hybrid_step *s) {
    product all[MOST_IN];
    long num = 0, at = 0;
    for (; num < MOST_IN && one->first[num]; num++) {
        all[num] = (product){.w = one->first[num], .y = s->projected + at, .stride = one->linear->width};
        at += one->first[num]->out;
    }
    const long alike = one->num_alike;
    const inputs normed = rows_of(s, s->normed, s->hidden + s->between);
    if (multiply(all, alike, &normed)) return 1;
    if (num > alike && multiply(all + alike, num - alike, &normed)) return 1;
    return delta_rule(one->linear, s->projected, one->windows, one->memory, s->delta_texts, s->num_delta_texts, s->mixed);
}

static int mix_full(const hybrid_layer *one, const hybrid_step *s) {
    const long wide = s->heads * s->size, narrow = s->kv_heads * s->size;
    const product all[] = {{.w = one->first[0], .y = s->projected, .stride = 2 * wide},
                           {.w = one->first[1], .y = s->key, .stride = narrow},
                           {.w = one->first[2], .y = s->value, .stride = narrow}};
    const inputs normed = rows_of(s, s->normed, s->hidden + s->between);
    if (multiply(all, 3, &normed)) return 1;
    norm_and_turn(s->projected, 2 * s->size, s->query, one->query_norm, s->cos, s->sin, s->tokens, s->heads, s->size,
                  s->turned, s->eps);
    norm_and_turn(s->key, s->size, s->key, one->key_norm, s->cos, s->sin, s->tokens, s->kv_heads, s->size, s->turned, s->eps);
    write_cache(one->keys, one->values, s->key, s->value, s->written, s->tokens, s->kv_heads * s->size);
    int failed = 0;
    if (s->num_rows)
        failed |= attend_pages(s->query, one->keys, one->values, s->mixed, s->rows, (const int64_t(*)[2])s->spans, s->places,
                               s->num_rows, s->heads, s->kv_heads, s->size, s->scaling);
    if (s->num_texts)
        failed |= attend(s->query, one->keys, one->values, s->places, s->mixed, s->heads, s->kv_heads, s->size, s->scaling,
                         (const packed_text *)s->texts, s->num_texts);
    multiply_by_sigmoid(s->mixed, s->projected + s->size, 2 * s->size, s->tokens, s->heads, s->size);
    return failed;
}

static int finish(const hybrid_layer *one, const hybrid_step *s) {
    const product output = {.w = one->output, .y = s->delta, .stride = s->hidden};
    const inputs mixed = rows_of(s, s->mixed, one->output->in);
    if (multiply(&output, 1, &mixed)) return 1;
    const long apart = s->hidden + s->between;
    add_centred_norm(s->states, s->delta, one->post_norm, s->normed, s->tokens, s->hidden, apart, s->eps);
    if (!one->gate) return 0;
    const long inner = one->gate->out + s->between;
    const inputs normed = rows_of(s, s->normed, apart), gated = rows_of(s, s->gate, inner);
    if (multiply_gated(one->gate, one->up, &normed, s->gate, inner)) return 1;
    const product down = {.w = one->down, .y = s->delta, .stride = s->hidden};
    return multiply(&down, 1, &gated);
}

/* `num` layers, one after the other; one without a gate is the last, and leaves what its rest reads in `normed`.
   0, or 1 where memory ran out. */
int run_hybrid_layers(const hybrid_layer *all, long num, hybrid_step *s) {
    for (long i = 0; i < num; i++) {
        const hybrid_layer *one = all + i;
        add_centred_norm(s->states, s->has_delta ? s->delta : NULL, one->input_norm, s->normed, s->tokens, s->hidden,
                         s->hidden + s->between, s->eps);
        if (one->linear ? mix_linear(one, s) : mix_full(one, s)) return 1;
        if (finish(one, s)) return 1;
        s->has_delta = 1;
    }
    return 0;
}
