/* Rows times weights in bf16, for processors with AVX2 and FMA and without AVX-512. A register holds two inputs of eight
   outputs: shifted it is the first ones in fp32, masked the second ones, so that values go from memory into products and
   are stored nowhere between.

   A piece of a panel stays in the nearest cache for all rows. Two additions a cycle that take four each need eight sums or
   more; there are registers for twelve and what is multiplied: 6 rows of half a panel. One row has four sums alone, and not
   two for each output: a row's numbers may not depend on how many stand beside it, and memory is slower than that. */

#include "panels.h"

#ifdef HAS_BFLOAT16_TILES

#include <immintrin.h>
#include <string.h>

#define ALWAYS static inline __attribute__((always_inline))
enum { EIGHT = 8, VECTORS = PANEL / EIGHT, TALL = 6 };
/* Bytes of two inputs of a panel; inputs of a piece, and bytes. */
enum { STEP = 2 * PANEL * (int)sizeof(bf16), PIECE = 128, PIECE_BYTES = PIECE / 2 * STEP };

/* The next piece on its way into the nearest cache, since the hardware's own prefetching stops at each page: with each two
   inputs `pace` bytes of it, so that memory has as much to do under the last rows as under the first. */
typedef struct { const uint8_t *at; long pace; } fetching;

/* result [rows][PANEL] += x [rows][inputs] times `vectors` times eight outputs of a piece. */
ALWAYS void add_tile(const uint8_t *codes, const float *x, long apart, long inputs, const int rows, const int vectors,
                     fetching *next, float *result) {
    const uint8_t *fetched = next->at;
    __m256 sum[TALL][VECTORS];
    const __m256i upper = _mm256_set1_epi32((int)0xffff0000);
#pragma GCC unroll 6
    for (int m = 0; m < rows; m++)
        for (int v = 0; v < vectors; v++) sum[m][v] = _mm256_loadu_ps(result + m * PANEL + v * EIGHT);
    for (long k = 0; k < inputs; k += 2, codes += STEP, fetched += next->pace) {
        _mm_prefetch((const char *)fetched, _MM_HINT_T0);
        if (vectors == VECTORS) _mm_prefetch((const char *)fetched + STEP / 2, _MM_HINT_T0);
#pragma GCC unroll 2
        for (int odd = 0; odd < 2; odd++) {
            __m256 w[VECTORS];
            for (int v = 0; v < vectors; v++) {
                const __m256i both = _mm256_loadu_si256((const __m256i *)(codes + 4 * EIGHT * v));
                w[v] = (__m256)(odd ? _mm256_and_si256(both, upper) : _mm256_slli_epi32(both, 16));
            }
#pragma GCC unroll 6
            for (int m = 0; m < rows; m++) {
                const __m256 one = _mm256_broadcast_ss(x + m * apart + k + odd);
                for (int v = 0; v < vectors; v++) sum[m][v] = _mm256_fmadd_ps(w[v], one, sum[m][v]);
            }
        }
    }
#pragma GCC unroll 6
    for (int m = 0; m < rows; m++)
        for (int v = 0; v < vectors; v++) _mm256_storeu_ps(result + m * PANEL + v * EIGHT, sum[m][v]);
    next->at = fetched;
}

/* As many of `rows` rows as there are registers for; returns how many. */
static long add_some(const uint8_t *codes, const float *x, long apart, long inputs, long rows, fetching *next, float *result) {
#define WHOLE(n)                                                                                                       \
    add_tile(codes, x, apart, inputs, n, VECTORS, next, result);                                                       \
    return n
#define HALVES(n)                                                                                                      \
    add_tile(codes, x, apart, inputs, n, VECTORS / 2, next, result);                                                   \
    add_tile(codes + STEP / 2, x, apart, inputs, n, VECTORS / 2, next, result + PANEL / 2);                            \
    return n
    switch (rows) {
    case 1: WHOLE(1);
    case 2: WHOLE(2);
    case 3: HALVES(3); /* 12 sums of a whole panel leave no registers for its 4 vectors */
    case 4:
    case 7:
    case 8: HALVES(4);
    case 5: HALVES(5);
    default: HALVES(6);
    }
}

void bfloat16_product(const matrix *w, long index, const operand *x, long first, long rows, float *result) {
    const uint8_t *codes = w->codes + index * panel_bytes(w);
    memset(result, 0, rows * PANEL * sizeof(float));
    const long pace = STEP / (rows < 3 ? 1 : 2 * ((rows + TALL - 1) / TALL)); /* tiles there are */
    for (long k = 0; k < w->in; k += PIECE, codes += PIECE_BYTES) {
        const long inputs = w->in - k < PIECE ? w->in - k : PIECE;
        fetching next = {codes + PIECE_BYTES, pace};
        for (long m = 0; m < rows;)
            m += add_some(codes, x->terms + (first + m) * x->apart + k, x->apart, inputs, rows - m, &next,
                          result + m * PANEL);
    }
}

#endif
