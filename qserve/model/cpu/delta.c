/* Gated DeltaNet, the linear attention of hybrids: between its first products and its last one, in one pass.

   A head keeps a matrix S [key size][value size] in fp32. A token with key k, value v, query q, decay d and share b makes
       S = d S + k (b (v - d S^T k))^T,    and reads    S^T q.
   S is read once and written once per token: what the token reads is put together from sums over the old S. That is what
   a step's time goes to where few tokens come; its columns are independent of each other, so they stay in registers.

   A task is one key head of one text, with the value heads that share it: convolution, SiLU, the rule token by token, norm
   and gate. Everything is computed in fp32; in a bf16 model what the library's modules round is rounded here too. */

#include <string.h>

#include "bf16.h"
#include "delta.h"
#include "threads.h"

enum { BLOCK = 16 }; /* tokens that are convolved at once */
/* Floats of a register, and as many registers of columns of S as have room for their two sums. Wider vectors than the
   processor has would be kept on the stack. */
#if defined(__AVX512F__)
enum { LANE = 16, COLUMNS = 8 };
#elif defined(__AVX2__) && defined(__FMA__)
enum { LANE = 8, COLUMNS = 4 };
#else
enum { LANE = 4, COLUMNS = 4 };
#endif
#define ALWAYS static inline __attribute__((always_inline))

typedef float lanes __attribute__((vector_size(4 * LANE)));

/* a * b + c; the compiler fuses nothing by itself where it is told to hold to the standard. */
#if defined(__AVX512F__)
#include <immintrin.h>
ALWAYS lanes fused(lanes a, float b, lanes c) { return (lanes)_mm512_fmadd_ps((__m512)a, _mm512_set1_ps(b), (__m512)c); }
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
ALWAYS lanes fused(lanes a, float b, lanes c) { return (lanes)_mm256_fmadd_ps((__m256)a, _mm256_set1_ps(b), (__m256)c); }
#else
ALWAYS lanes fused(lanes a, float b, lanes c) { return a * b + c; }
#endif

typedef struct {
    const delta_layer *layer;
    const void *rows;
    void *windows, *out;
    float *states;
    const delta_text *texts;
    int failed;
} call;

/* Channels of a key head: its query, its key, the values of its value heads, side by side in a task. */
typedef struct { long place, channel, count; const part *part; } channels;

static long value_heads_of(const delta_layer *one) { return one->value_heads / one->key_heads; }
static long width_of(const delta_layer *one) { return 2 * one->key_size + value_heads_of(one) * one->value_size; }
static long all_channels(const delta_layer *one) { return one->key_heads * width_of(one); }

static void channels_of(const delta_layer *one, long head, channels to[3]) {
    const long keys = one->key_heads * one->key_size, values = value_heads_of(one) * one->value_size;
    to[0] = (channels){0, head * one->key_size, one->key_size, &one->query};
    to[1] = (channels){one->key_size, keys + head * one->key_size, one->key_size, &one->key};
    to[2] = (channels){2 * one->key_size, 2 * keys + head * values, values, &one->value};
}

static inline float round_if(float x, int is_bf16) { return is_bf16 ? wide(narrow(x)) : x; }

static void read_floats(const void *from, long first, long count, int is_bf16, float *to) {
    if (!is_bf16) {
        memcpy(to, (const float *)from + first, count * sizeof(float));
        return;
    }
    const bf16 *at = (const bf16 *)from + first;
    for (long i = 0; i < count; i++) to[i] = wide(at[i]);
}

static void round_floats(float *x, long count, int is_bf16) {
    if (is_bf16)
        for (long i = 0; i < count; i++) x[i] = wide(narrow(x[i]));
}

/* Windows [channels][taps] hold the last inputs; x [..][width] has those before the text's first in its first rows. */
ALWAYS void open_window(const void *window, int is_bf16, const channels *c, long taps, long width, float *x) {
    for (long j = 1; j < taps; j++)
        for (long i = 0; i < c->count; i++) {
            const long at = (c->channel + i) * taps + j;
            x[(j - 1) * width + c->place + i] = is_bf16 ? wide(((const bf16 *)window)[at]) : ((const float *)window)[at];
        }
}

ALWAYS void close_window(const float *x, int is_bf16, const channels *c, long taps, long width, void *window) {
    for (long i = 0; i < c->count; i++)
        for (long j = 0; j < taps; j++) {
            const float value = x[j * width + c->place + i];
            const long at = (c->channel + i) * taps + j;
            if (is_bf16) ((bf16 *)window)[at] = narrow(value);
            else ((float *)window)[at] = value;
        }
}

/* y [num][width]: each channel's sum over its last inputs, and SiLU. x [taps - 1 + num][width]. */
static void convolve(const delta_layer *one, const channels *c, const float *x, long num, long width, float *y) {
    const int is_bf16 = (int)one->is_bf16;
    for (long t = 0; t < num; t++) {
        float *to = y + t * width + c->place;
        for (long i = 0; i < c->count; i++) to[i] = 0;
        for (long j = 0; j < one->taps; j++) {
            const float *w = one->conv + j * all_channels(one) + c->channel, *from = x + (t + j) * width + c->place;
            for (long i = 0; i < c->count; i++) to[i] += w[i] * from[i];
        }
        round_floats(to, c->count, is_bf16);
        for (long i = 0; i < c->count; i++) to[i] = to[i] / (1.0f + exponential(-to[i]));
        round_floats(to, c->count, is_bf16);
    }
}

/* x / |x| * scale; zeros stay zeros. */
static void normalize(float *x, long count, float scale) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (long i = 0; i < count; i++) sum += x[i] * x[i];
    const float factor = scale / sqrtf(sum + 1e-6f);
    for (long i = 0; i < count; i++) x[i] *= factor;
}

/* log(1 + y) for y >= 0 to 2e-7: exponent and mantissa of 1 + y, and what rounding took from it. */
static float log_plus_one(float y) {
    const float u = 1.0f + y;
    if (u == 1.0f) return y;
    union { float f; uint32_t i; } bits = {u};
    const uint32_t power = (bits.i - 0x3f3504f3u) >> 23; /* so that the mantissa lies between sqrt(1/2) and sqrt(2) */
    bits.i -= power << 23;
    const float s = (bits.f - 1.0f) / (bits.f + 1.0f), z = s * s;
    const float log_of_mantissa = 2.0f * s * (1.0f + z * (1.0f / 3 + z * (1.0f / 5 + z * (1.0f / 7 + z / 9))));
    return ((float)power * 0.69314718f + log_of_mantissa) * (y / (u - 1.0f));
}

static float softplus(float x) { return x > 20.0f ? x : log_plus_one(exponential(x)); }

typedef struct { const float *query, *key, *value; float decay, share, query_key; } token;

/* `count` lanes of columns of S from `first` on. */
ALWAYS void step_columns(float *state, const token *t, long key_size, long value_size, long first, int count, float *out) {
    lanes by_key[COLUMNS], by_query[COLUMNS], change[COLUMNS];
#pragma GCC unroll 8
    for (int n = 0; n < count; n++) by_key[n] = by_query[n] = (lanes){0};
    for (long i = 0; i < key_size; i++)
#pragma GCC unroll 8
        for (int n = 0; n < count; n++) {
            lanes s;
            memcpy(&s, state + i * value_size + first + n * LANE, sizeof s);
            by_key[n] = fused(s, t->key[i], by_key[n]);
            by_query[n] = fused(s, t->query[i], by_query[n]);
        }
#pragma GCC unroll 8
    for (int n = 0; n < count; n++) {
        lanes v;
        memcpy(&v, t->value + first + n * LANE, sizeof v);
        change[n] = (v - by_key[n] * t->decay) * t->share;
        const lanes read = by_query[n] * t->decay + change[n] * t->query_key;
        memcpy(out + first + n * LANE, &read, sizeof read);
    }
    for (long i = 0; i < key_size; i++)
#pragma GCC unroll 8
        for (int n = 0; n < count; n++) {
            float *at = state + i * value_size + first + n * LANE;
            lanes s;
            memcpy(&s, at, sizeof s);
            s = fused(change[n], t->key[i], s * t->decay);
            memcpy(at, &s, sizeof s);
        }
}

static void step_column(float *state, const token *t, long key_size, long value_size, float *out) {
    float by_key = 0, by_query = 0;
    for (long i = 0; i < key_size; i++) {
        by_key += state[i * value_size] * t->key[i];
        by_query += state[i * value_size] * t->query[i];
    }
    const float change = (*t->value - by_key * t->decay) * t->share;
    *out = by_query * t->decay + change * t->query_key;
    for (long i = 0; i < key_size; i++) state[i * value_size] = state[i * value_size] * t->decay + change * t->key[i];
}

static void step_head(float *state, const token *t, long key_size, long value_size, float *out) {
    long at = 0;
    for (; at + COLUMNS * LANE <= value_size; at += COLUMNS * LANE)
        step_columns(state, t, key_size, value_size, at, COLUMNS, out);
    for (; at + LANE <= value_size; at += LANE) step_columns(state, t, key_size, value_size, at, 1, out);
    for (; at < value_size; at++) {
        token one = *t;
        one.value += at;
        step_column(state + at, &one, key_size, value_size, out + at);
    }
}

/* x [value size], the head's, normed and times SiLU of its gate, to `out` from element `to` on. gates: room for as many. */
static void finish_head(const delta_layer *one, float *x, const void *rows, long gate, float *gates, void *out, long to) {
    const long size = one->value_size;
    const int is_bf16 = (int)one->is_bf16;
    round_floats(x, size, is_bf16);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (long i = 0; i < size; i++) sum += x[i] * x[i];
    const float factor = 1.0f / sqrtf(sum / (float)size + one->eps);
    for (long i = 0; i < size; i++) x[i] *= factor;
    round_floats(x, size, is_bf16);
    for (long i = 0; i < size; i++) x[i] *= one->norm[i];
    round_floats(x, size, is_bf16);
    read_floats(rows, gate, size, is_bf16, gates);
    for (long i = 0; i < size; i++) x[i] *= gates[i] / (1.0f + exponential(-gates[i]));
    if (!is_bf16) {
        memcpy((float *)out + to, x, size * sizeof(float));
        return;
    }
    for (long i = 0; i < size; i++) ((bf16 *)out)[to + i] = narrow(x[i]);
}

static float one_of(const void *rows, long at, int is_bf16) {
    return is_bf16 ? wide(((const bf16 *)rows)[at]) : ((const float *)rows)[at];
}

/* One token of a key head, of which y has query, key and values after their convolution. own: room for two heads. */
static void one_token(const call *all, const delta_text *text, long head, long t, float *y, float *own) {
    const delta_layer *one = all->layer;
    const long row = t * one->width, heads = value_heads_of(one);
    const int is_bf16 = (int)one->is_bf16;
    float *query = y, *key = y + one->key_size, query_key = 0;
    normalize(query, one->key_size, 1.0f / sqrtf((float)one->key_size));
    normalize(key, one->key_size, 1.0f);
#pragma omp simd reduction(+ : query_key)
    for (long i = 0; i < one->key_size; i++) query_key += query[i] * key[i];
    for (long h = 0; h < heads; h++) {
        const long value_head = head * heads + h;
        const float b = one_of(all->rows, row + one->beta.first + head * one->beta.step + h, is_bf16);
        const float a = one_of(all->rows, row + one->decay.first + head * one->decay.step + h, is_bf16);
        const float share = round_if(1.0f / (1.0f + exponential(-b)), is_bf16);
        const float decay = exponential(-one->rates[value_head] * softplus(a + one->dt_bias[value_head]));
        const token now = {query, key, key + one->key_size + h * one->value_size, decay, share, query_key};
        float *state = all->states + (text->row * one->value_heads + value_head) * one->key_size * one->value_size;
        step_head(state, &now, one->key_size, one->value_size, own);
        const long gate = row + one->gate.first + head * one->gate.step + h * one->value_size;
        finish_head(one, own, all->rows, gate, own + one->value_size, all->out,
                    (t * one->value_heads + value_head) * one->value_size);
    }
}

static void open_text(const call *all, const delta_text *text, long head, const channels parts[3], float *x) {
    const delta_layer *one = all->layer;
    const long width = width_of(one), taps = one->taps, heads = value_heads_of(one), size = one->key_size * one->value_size;
    if (!text->has_past) {
        memset(x, 0, (taps - 1) * width * sizeof(float));
        memset(all->states + (text->row * one->value_heads + head * heads) * size, 0, heads * size * sizeof(float));
        return;
    }
    const int is_bf16 = (int)one->is_bf16;
    const char *window = (char *)all->windows + text->row * all_channels(one) * taps * (is_bf16 ? sizeof(bf16) : sizeof(float));
    for (int p = 0; p < 3; p++) {
        if (taps == 4 && is_bf16) open_window(window, 1, parts + p, 4, width, x);
        else open_window(window, is_bf16, parts + p, taps, width, x);
    }
}

static void close_text(const call *all, const delta_text *text, const channels parts[3], const float *x) {
    const delta_layer *one = all->layer;
    const int is_bf16 = (int)one->is_bf16;
    char *window = (char *)all->windows + text->row * all_channels(one) * one->taps * (is_bf16 ? sizeof(bf16) : sizeof(float));
    for (int p = 0; p < 3; p++) {
        if (one->taps == 4 && is_bf16) close_window(x, 1, parts + p, 4, width_of(one), window);
        else close_window(x, is_bf16, parts + p, one->taps, width_of(one), window);
    }
}

static void one_head(void *shared, long index) {
    call *all = shared;
    const delta_layer *one = all->layer;
    const delta_text *text = all->texts + index / one->key_heads;
    const long head = index % one->key_heads, width = width_of(one), before = one->taps - 1;
    float *x = scratch(3, ((before + 2 * BLOCK) * width + 2 * one->value_size) * sizeof(float));
    if (!x) {
        all->failed = 1;
        return;
    }
    float *y = x + (before + BLOCK) * width, *own = y + BLOCK * width;
    channels parts[3];
    channels_of(one, head, parts);
    open_text(all, text, head, parts, x);
    for (long t = text->start; t < text->stop; t += BLOCK) {
        const long num = text->stop - t < BLOCK ? text->stop - t : BLOCK;
        for (int p = 0; p < 3; p++) {
            for (long i = 0; i < num; i++)
                read_floats(all->rows, (t + i) * one->width + parts[p].part->first + head * parts[p].part->step,
                            parts[p].count, (int)one->is_bf16, x + (before + i) * width + parts[p].place);
            convolve(one, parts + p, x, num, width, y);
        }
        for (long i = 0; i < num; i++) one_token(all, text, head, t + i, y + i * width, own);
        if (t + num == text->stop) close_text(all, text, parts, x + (num - 1) * width);
        memmove(x, x + num * width, before * width * sizeof(float));
    }
}

int delta_rule(const delta_layer *layer, const void *rows, void *windows, float *states, const delta_text *texts,
               long num_texts, void *out) {
    call all = {layer, rows, windows, out, states, texts, 0};
    for_each(num_texts * layer->key_heads, one_head, &all);
    return all.failed;
}
