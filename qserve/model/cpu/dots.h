/* Products of pairs in bf16 with sums in fp32, 16 at a time, for processors with AVX-512: one instruction where there is
   AVX512-BF16 (Zen 4, Sapphire Rapids), else two multiplications in fp32 (Cascade Lake, Ice Lake, Tiger Lake). Their terms
   are the same; sums differ in the order of roundings.

   Without either: portable.c and texts.c. With -DNARROW_VECTORS as well: a processor with AVX-VNNI is tried out on one with
   AVX512-VNNI, which has the same instructions for 256 bits. */

#ifndef QSERVE_DOTS_H
#define QSERVE_DOTS_H

#include "bf16.h"

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && !defined(NARROW_VECTORS)
#define HAS_DOTS

#include <immintrin.h>
#include <string.h>

#define DOTS static inline __attribute__((always_inline))

/* Two inputs of 16 outputs, the first in the lower half of 32 bits. */
#ifdef __AVX512BF16__

typedef __m512bh pairs;

DOTS pairs pairs_of(__m512i both) { return (__m512bh)both; }

/* sum += the pair at x times 16 pairs. */
DOTS __m512 add_pair(__m512 sum, const element *x, pairs w) {
    int32_t both;
    memcpy(&both, x, sizeof both);
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(both), w);
}

DOTS __m512i to_bf16s(__m512 even, __m512 odd) { /* pairs, their first elements in the lower halves */
    const __m512i order = _mm512_setr_epi32(0x00100000, 0x00110001, 0x00120002, 0x00130003, 0x00140004, 0x00150005,
                                            0x00160006, 0x00170007, 0x00180008, 0x00190009, 0x001a000a, 0x001b000b,
                                            0x001c000c, 0x001d000d, 0x001e000e, 0x001f000f);
    return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
}

DOTS __m256i sixteen_bf16s(__m512 x) { return (__m256i)_mm512_cvtneps_pbh(x); }

#else

typedef struct { __m512 even, odd; } pairs;

DOTS pairs pairs_of(__m512i both) {
    return (pairs){(__m512)_mm512_slli_epi32(both, 16), (__m512)_mm512_and_si512(both, _mm512_set1_epi32((int)0xffff0000))};
}

DOTS __m512 add_pair(__m512 sum, const element *x, pairs w) {
    sum = _mm512_fmadd_ps(_mm512_set1_ps(x[0]), w.even, sum);
    return _mm512_fmadd_ps(_mm512_set1_ps(x[1]), w.odd, sum);
}

/* As `narrow`, in the upper halves; the lower ones are not cleared. */
DOTS __m512i rounded(__m512 x) {
    const __m512i bits = (__m512i)x, last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(bits, _mm512_add_epi32(last, _mm512_set1_epi32(0x7fff)));
}

DOTS __m512i to_bf16s(__m512 even, __m512 odd) {
    const __mmask32 upper = 0xaaaaaaaa;
    return _mm512_mask_blend_epi16(upper, _mm512_srli_epi32(rounded(even), 16), rounded(odd));
}

DOTS __m256i sixteen_bf16s(__m512 x) { return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded(x), 16)); }

#endif

/* How far ahead of a product its weights are fetched: the processor's own prefetching stops at each page. Where memory is
   what a product waits for, into the second cache: the nearest one has few places for lines that are on their way. */
enum { AHEAD = 6144, AHEAD_IN_NEAREST = 4096 };

DOTS void fetch_two_lines(const void *at) {
    _mm_prefetch((const char *)at, _MM_HINT_T1);
    _mm_prefetch((const char *)at + 64, _MM_HINT_T1);
}

DOTS void fetch_into_nearest(const void *at) {
    _mm_prefetch((const char *)at, _MM_HINT_T0);
    _mm_prefetch((const char *)at + 64, _MM_HINT_T0);
}

DOTS __m512 sixteen_floats(const bf16 *x) {
    return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)x)), 16);
}

/* Of bf16, and of weights that were computed in fp32; `count` is a multiple of 16. */
DOTS void store_elements(const bf16 *from, long count, element *to) {
#ifdef __AVX512BF16__
    memcpy(to, from, count * sizeof(bf16));
#else
    for (long i = 0; i < count; i += 16) _mm512_storeu_ps(to + i, sixteen_floats(from + i));
#endif
}

DOTS void store_sixteen(__m512 x, element *to) {
#ifdef __AVX512BF16__
    _mm256_storeu_si256((__m256i *)to, sixteen_bf16s(x));
#else
    _mm512_storeu_ps(to, x);
#endif
}

#endif
#endif
