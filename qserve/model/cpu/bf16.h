/* bf16 is the upper half of an fp32. Shared by the sources of this folder. */

#ifndef QSERVE_BF16_H
#define QSERVE_BF16_H

#include <math.h>
#include <stdint.h>

typedef uint16_t bf16;

/* Rows that are multiplied lie in memory as elements: in bf16, or widened to fp32 once, so that a multiplication takes one
   out of memory without another instruction. */
#ifdef __AVX512BF16__
typedef bf16 element;
#else
typedef float element;
#endif

static inline float wide(bf16 x) {
    union { uint32_t i; float f; } u = {(uint32_t)x << 16};
    return u.f;
}

/* To the nearest, ties to even. NaN stays NaN: what the processor makes has no bits below its top ones. */
static inline bf16 narrow(float x) {
    union { float f; uint32_t i; } u = {x};
    return (bf16)((u.i + 0x7fff + ((u.i >> 16) & 1)) >> 16);
}

/* e^x to 3e-7, without branches, so that a compiler makes vectors of it. NaN passes through. */
static inline float exponential(float x) {
    x = x > 88.0f ? 88.0f : x;
    x = x < -87.0f ? -87.0f : x;
    float n = rintf(x * 1.44269504f);
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.0f + r * (1.0f + r * (0.5f + r * (1.66666667e-1f + r * (4.16666667e-2f
              + r * (8.33333333e-3f + r * 1.38888889e-3f)))));
    union { uint32_t i; float f; } scale = {(uint32_t)((int32_t)n + 127) << 23};
    return p * scale.f;
}

#endif
