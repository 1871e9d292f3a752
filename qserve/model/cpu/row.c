/* What lies between the matrix products of a decoder layer, for one packed row of bf16 states on a CPU.

   In torch each of these is five to ten passes over memory in fp32; here it is one, rounded once at the end.
   Matrices are row-major, a stride counts elements from one row to the next. bf16 is the upper half of an fp32.
   OpenMP's run time is torch's own: a second one would fight with it for the cores (build.py). */

#include "bf16.h"

/* Elements for which it pays to wake another core: few tokens are done before it is there. */
enum { WORTH_WAKING = 65536 };

/* x [tokens, width] += delta (NULL: nothing is added), rounded; out = x / rms(x) * weight. */
void add_rms_norm(bf16 *x, const bf16 *delta, const bf16 *weight, bf16 *out, long tokens, long width, float eps) {
#pragma omp parallel for schedule(static) if (tokens * width > WORTH_WAKING)
    for (long t = 0; t < tokens; t++) {
        bf16 *row = x + t * width, *to = out + t * width;
        if (delta) {
            const bf16 *more = delta + t * width;
#pragma omp simd
            for (long i = 0; i < width; i++) row[i] = narrow(wide(row[i]) + wide(more[i]));
        }
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (long i = 0; i < width; i++) sum += wide(row[i]) * wide(row[i]);
        float factor = 1.0f / sqrtf(sum / (float)width + eps);
#pragma omp simd
        for (long i = 0; i < width; i++) to[i] = narrow(wide(row[i]) * factor * wide(weight[i]));
    }
}

/* In place: x [tokens, heads, size], each head normed by weight [size] (NULL: not normed), then turned by the rotary
   angles cos, sin [tokens, size], whose halves are equal. */
void norm_and_rotate(bf16 *x, const bf16 *weight, const bf16 *cos, const bf16 *sin, long tokens, long heads, long size,
                     float eps) {
    const long half = size / 2;
#pragma omp parallel for schedule(static) if (tokens * heads * size > WORTH_WAKING)
    for (long t = 0; t < tokens; t++) {
        const bf16 *c = cos + t * size, *s = sin + t * size;
        for (long h = 0; h < heads; h++) {
            bf16 *low = x + (t * heads + h) * size, *high = low + half;
            float factor = 1.0f;
            if (weight) {
                float sum = 0;
#pragma omp simd reduction(+ : sum)
                for (long i = 0; i < size; i++) sum += wide(low[i]) * wide(low[i]);
                factor = 1.0f / sqrtf(sum / (float)size + eps);
            }
#pragma omp simd
            for (long i = 0; i < half; i++) {
                float a = wide(low[i]) * factor, b = wide(high[i]) * factor;
                if (weight) {
                    a *= wide(weight[i]);
                    b *= wide(weight[half + i]);
                }
                float ca = wide(c[i]), sa = wide(s[i]);
                low[i] = narrow(a * ca - b * sa);
                high[i] = narrow(b * ca + a * sa);
            }
        }
    }
}

/* gate [tokens, width] becomes silu(gate) * up. */
void silu_and_multiply(bf16 *gate, const bf16 *up, long tokens, long width) {
#pragma omp parallel for schedule(static) if (tokens * width > WORTH_WAKING)
    for (long t = 0; t < tokens; t++) {
        bf16 *row = gate + t * width;
        const bf16 *by = up + t * width;
#pragma omp simd
        for (long i = 0; i < width; i++) {
            float g = wide(row[i]);
            row[i] = narrow(g / (1.0f + exponential(-g)) * wide(by[i]));
        }
    }
}
