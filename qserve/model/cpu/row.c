/* What lies between the matrix products of a decoder layer, for one packed row of bf16 states on a CPU.

   In torch each of these is five to ten passes over memory in fp32; here it is one, rounded once at the end.
   Matrices are row-major, a stride counts elements from one row to the next. bf16 is the upper half of an fp32. */

#include "layers.h"
#include "threads.h"

/* Elements for which it pays to share the work: few tokens are done before another core is there. */
enum { WORTH_SHARING = 16384 };

typedef struct {
    bf16 *x, *out;
    const bf16 *delta, *weight, *cos, *sin;
    long tokens, width, heads, size, each;
    long stride, turned; /* of heads in `delta`; elements of a head that are turned */
    long apart;          /* elements from row to row of `out`, of norms */
    float eps, centre;   /* weights of norms are stored less so much */
    void (*one)(const void *, long);
} tokens;

static void some_tokens(void *shared, long index) {
    const tokens *all = shared;
    for (long t = index * all->each; t < (index + 1) * all->each && t < all->tokens; t++) all->one(all, t);
}

static void each_token(tokens *all, long elements) {
    all->each = WORTH_SHARING / 4 / elements + 1;
    if (all->tokens * elements <= WORTH_SHARING) all->each = all->tokens;
    if (all->tokens) for_each((all->tokens + all->each - 1) / all->each, some_tokens, all);
}

static void norm_one(const void *shared, long t) {
    const tokens *all = shared;
    const long width = all->width;
    bf16 *row = all->x + t * width, *to = all->out + t * all->apart;
    if (all->delta) {
        const bf16 *more = all->delta + t * width;
#pragma omp simd
        for (long i = 0; i < width; i++) row[i] = narrow(wide(row[i]) + wide(more[i]));
    }
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (long i = 0; i < width; i++) sum += wide(row[i]) * wide(row[i]);
    const float factor = 1.0f / sqrtf(sum / (float)width + all->eps);
    const bf16 *weight = all->weight;
    const float centre = all->centre;
#pragma omp simd
    for (long i = 0; i < width; i++) to[i] = narrow(wide(row[i]) * factor * (centre + wide(weight[i])));
}

/* x [tokens, width] += delta (NULL: nothing is added), rounded; out [tokens, apart], of which width are written, = x / rms(x) *
   weight. */
void add_rms_norm(bf16 *x, const bf16 *delta, const bf16 *weight, bf16 *out, long num, long width, long apart,
                  float eps) {
    tokens all = {.x = x, .out = out, .delta = delta, .weight = weight, .tokens = num, .width = width, .apart = apart,
                  .eps = eps, .one = norm_one};
    each_token(&all, width);
}

/* The same with weights that are stored less one. */
void add_centred_norm(bf16 *x, const bf16 *delta, const bf16 *weight, bf16 *out, long num, long width, long apart,
                  float eps) {
    tokens all = {.x = x, .out = out, .delta = delta, .weight = weight, .tokens = num, .width = width, .apart = apart,
                  .eps = eps, .centre = 1.0f, .one = norm_one};
    each_token(&all, width);
}

/* `is_normed` is known where this is inlined: a loop that asks for it makes no vectors. */
static inline __attribute__((always_inline)) void rotate_heads(const tokens *all, long t, const int is_normed) {
    const bf16 *weight = all->weight;
    const long size = all->size, half = size / 2;
    const bf16 *c = all->cos + t * size, *s = all->sin + t * size;
    for (long h = 0; h < all->heads; h++) {
        bf16 *low = all->x + (t * all->heads + h) * size, *high = low + half;
        float factor = 1.0f;
        if (is_normed) {
            float sum = 0;
#pragma omp simd reduction(+ : sum)
            for (long i = 0; i < size; i++) sum += wide(low[i]) * wide(low[i]);
            factor = 1.0f / sqrtf(sum / (float)size + all->eps);
        }
#pragma omp simd
        for (long i = 0; i < half; i++) {
            const float a = is_normed ? wide(low[i]) * factor * wide(weight[i]) : wide(low[i]);
            const float b = is_normed ? wide(high[i]) * factor * wide(weight[half + i]) : wide(high[i]);
            const float ca = wide(c[i]), sa = wide(s[i]);
            low[i] = narrow(a * ca - b * sa);
            high[i] = narrow(b * ca + a * sa);
        }
    }
}

static void rotate_one(const void *shared, long t) {
    const tokens *all = shared;
    if (all->weight) rotate_heads(all, t, 1);
    else rotate_heads(all, t, 0);
}

/* In place: x [tokens, heads, size], each head normed by weight [size] (NULL: not normed), then turned by the rotary
   angles cos, sin [tokens, size], whose halves are equal. */
void norm_and_rotate(bf16 *x, const bf16 *weight, const bf16 *cos, const bf16 *sin, long num, long heads, long size,
                     float eps) {
    tokens all = {.x = x, .weight = weight, .cos = cos, .sin = sin, .tokens = num, .heads = heads, .size = size,
                  .eps = eps, .one = rotate_one};
    each_token(&all, heads * size);
}

static void turn_one(const void *shared, long t) {
    const tokens *all = shared;
    const long size = all->size, half = all->turned / 2;
    const bf16 *c = all->cos + t * all->turned, *s = all->sin + t * all->turned, *weight = all->weight;
    for (long h = 0; h < all->heads; h++) {
        const bf16 *from = all->delta + (t * all->heads + h) * all->stride;
        bf16 *to = all->out + (t * all->heads + h) * size;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (long i = 0; i < size; i++) sum += wide(from[i]) * wide(from[i]);
        const float factor = 1.0f / sqrtf(sum / (float)size + all->eps);
#pragma omp simd
        for (long i = 0; i < half; i++) {
            const float a = wide(from[i]) * factor * (1.0f + wide(weight[i]));
            const float b = wide(from[half + i]) * factor * (1.0f + wide(weight[half + i]));
            to[i] = narrow(a * wide(c[i]) - b * wide(s[i]));
            to[half + i] = narrow(b * wide(c[i]) + a * wide(s[i]));
        }
#pragma omp simd
        for (long i = all->turned; i < size; i++) to[i] = narrow(wide(from[i]) * factor * (1.0f + wide(weight[i])));
    }
}

/* from [tokens, heads, stride] to out [tokens, heads, size]: the first `size` elements of each head, normed by weights that
   are stored less one, the first `turned` of them turned by cos, sin [tokens, turned]. `out` may be `from`, at stride size. */
void norm_and_turn(const bf16 *from, long stride, bf16 *out, const bf16 *weight, const bf16 *cos, const bf16 *sin, long num,
                   long heads, long size, long turned, float eps) {
    tokens all = {.out = out, .delta = from, .weight = weight, .cos = cos, .sin = sin, .tokens = num, .heads = heads,
                  .size = size, .stride = stride, .turned = turned, .eps = eps, .one = turn_one};
    each_token(&all, heads * size);
}

static void share_one(const void *shared, long t) {
    const tokens *all = shared;
    for (long h = 0; h < all->heads; h++) {
        bf16 *row = all->x + (t * all->heads + h) * all->size;
        const bf16 *by = all->delta + (t * all->heads + h) * all->stride;
#pragma omp simd
        for (long i = 0; i < all->size; i++) row[i] = narrow(wide(row[i]) / (1.0f + exponential(-wide(by[i]))));
    }
}

/* x [tokens, heads, size] times the sigmoid of gates [tokens, heads, stride], whose first `size` elements count. */
void multiply_by_sigmoid(bf16 *x, const bf16 *gates, long stride, long num, long heads, long size) {
    tokens all = {.x = x, .delta = gates, .stride = stride, .tokens = num, .heads = heads, .size = size, .one = share_one};
    each_token(&all, heads * size);
}

static void gate_one(const void *shared, long t) {
    const tokens *all = shared;
    bf16 *row = all->x + t * all->width;
    const bf16 *by = all->delta + t * all->width;
#pragma omp simd
    for (long i = 0; i < all->width; i++) {
        const float g = wide(row[i]);
        row[i] = narrow(g / (1.0f + exponential(-g)) * wide(by[i]));
    }
}

/* gate [tokens, width] becomes silu(gate) * up. */
void silu_and_multiply(bf16 *gate, const bf16 *up, long num, long width) {
    tokens all = {.x = gate, .delta = up, .tokens = num, .width = width, .one = gate_one};
    each_token(&all, width);
}
