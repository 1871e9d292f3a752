/* Decoder layers from one product to the next, without a way back to Python in between.

   A layer's time with few tokens is that of reading its weights; what lies between two products takes some microseconds,
   if nobody has to be woken for it. */

#include "layers.h"
#include "products.h"

/* A layer's weights; keys and values: its cache [rows][kv_heads * size], NULL: none. Norms of heads may be NULL; so may
   gate, up and down, of which somebody else takes care. */
typedef struct {
    const bf16 *input_norm, *post_norm, *query_norm, *key_norm;
    const matrix *query, *key, *value, *output, *gate, *up, *down;
    bf16 *keys, *values;
} layer;

/* What the layers of a step share. Rows [tokens][..] in bf16; `delta` is what the layer before has to add to `states`, if
   there was one. `written`: the row of the cache of each token; `places`: rows of all keys that are read (NULL: the new
   keys alone). Sequences that decode: num_rows, as `attend_pages` has them; texts: as `attend`. `between`: elements
   between rows of `normed` and `gate`; ranges: all tokens by their kind (products.h). */
typedef struct {
    int64_t tokens, hidden, heads, kv_heads, size, inner, has_delta, num_rows, num_texts, between, num_ranges;
    float eps, head_eps, scaling, unused;
    bf16 *states, *delta, *normed, *query, *key, *value, *mixed, *gate;
    const bf16 *cos, *sin;
    const int64_t *written, *places, *rows, *spans, *texts;
    const row_range *ranges;
} step;

static inputs rows_of(const step *s, const bf16 *x, long stride) {
    return (inputs){x, stride, s->tokens, s->ranges, s->num_ranges};
}

static int mix(const layer *one, const step *s) {
    const bf16 *keys = s->places ? one->keys : s->key, *values = s->places ? one->values : s->value;
    int failed = 0;
    if (s->num_rows)
        failed |= attend_pages(s->query, keys, values, s->mixed, s->rows, (const int64_t(*)[2])s->spans, s->places,
                               s->num_rows, s->heads, s->kv_heads, s->size, s->scaling);
    if (s->num_texts)
        failed |= attend(s->query, keys, values, s->places, s->mixed, s->heads, s->kv_heads, s->size, s->scaling, (const packed_text *)s->texts,
                         s->num_texts);
    return failed;
}

/* To `mixed`, the values that attention has mixed. */
int attend_layer(const layer *one, const step *s) {
    const long apart = s->hidden + s->between;
    add_rms_norm(s->states, s->has_delta ? s->delta : NULL, one->input_norm, s->normed, s->tokens, s->hidden, apart, s->eps);
    const long wide = s->heads * s->size, narrow = s->kv_heads * s->size;
    const product all[] = {{.w = one->query, .y = s->query, .stride = wide}, {.w = one->key, .y = s->key, .stride = narrow},
                           {.w = one->value, .y = s->value, .stride = narrow}};
    const inputs normed = rows_of(s, s->normed, apart);
    if (multiply(all, 3, &normed)) return 1;
    norm_and_rotate(s->query, one->query_norm, s->cos, s->sin, s->tokens, s->heads, s->size, s->head_eps);
    norm_and_rotate(s->key, one->key_norm, s->cos, s->sin, s->tokens, s->kv_heads, s->size, s->head_eps);
    if (one->keys) write_cache(one->keys, one->values, s->key, s->value, s->written, s->tokens, s->kv_heads * s->size);
    return mix(one, s);
}

/* From `mixed` to `delta`; without a gate to `normed`, what the rest of the layer reads. */
int finish_layer(const layer *one, const step *s) {
    const product output = {.w = one->output, .y = s->delta, .stride = s->hidden};
    const inputs mixed = rows_of(s, s->mixed, one->output->in);
    if (multiply(&output, 1, &mixed)) return 1;
    const long apart = s->hidden + s->between;
    add_rms_norm(s->states, s->delta, one->post_norm, s->normed, s->tokens, s->hidden, apart, s->eps);
    if (!one->gate) return 0;
    const long inner = one->gate->out + s->between;
    const inputs normed = rows_of(s, s->normed, apart), gated = rows_of(s, s->gate, inner);
    if (multiply_gated(one->gate, one->up, &normed, s->gate, inner)) return 1;
    const product down = {.w = one->down, .y = s->delta, .stride = s->hidden};
    return multiply(&down, 1, &gated);
}

/* Both for `num` layers, one after the other. 0, or 1 where memory ran out. */
int run_layers(const layer *all, long num, step *s) {
    for (long i = 0; i < num; i++) {
        if (attend_layer(all + i, s) || finish_layer(all + i, s)) return 1;
        s->has_delta = 1;
    }
    return 0;
}
