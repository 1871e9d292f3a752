/* Products on any processor without matrix.c's instructions: pieces of a panel in fp32, which the compiler makes vectors
   of. */

#include "matrix.h"
#include "panels.h"

#include <string.h>

#ifndef HAS_FAST_PRODUCTS

typedef float lanes __attribute__((vector_size(4 * LANE)));
enum { PIECE = 64 };

int prepare(operand *x, const matrix *w, long met) {
    (void)met;
    return w->order ? put_in_order(x, w) : 0;
}

int has_unpacked(void) { return 0; }

int has_int8_activations(void) { return 0; }

const bf16 *unpacked(const matrix *w, long index) {
    (void)w, (void)index;
    return NULL;
}

static void multiply_piece(const float *piece, const bf16 *x, long count, float *result) {
    lanes low, high;
    memcpy(&low, result, sizeof low), memcpy(&high, result + LANE, sizeof high);
    for (long k = 0; k < count; k++, piece += PANEL) {
        lanes a, b;
        memcpy(&a, piece, sizeof a), memcpy(&b, piece + LANE, sizeof b);
        low += a * wide(x[k]);
        high += b * wide(x[k]);
    }
    memcpy(result, &low, sizeof low), memcpy(result + LANE, &high, sizeof high);
}

void panel_product(const matrix *w, long index, const bf16 *panel, const operand *x, long first, long rows, float *result) {
    float piece[PIECE * PANEL];
    (void)panel;
    memset(result, 0, rows * PANEL * sizeof(float));
    for (long k = 0; k < w->in; k += PIECE) {
        const long stop = k + PIECE < w->in ? k + PIECE : w->in;
        unpack_floats(w, index, k, stop, piece);
        for (long m = 0; m < rows; m++)
            multiply_piece(piece, x->x + (first + m) * x->stride + k, stop - k, result + m * PANEL);
    }
}

#endif
