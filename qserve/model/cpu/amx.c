#define _GNU_SOURCE

#include "amx.h"

#ifdef HAS_TILES

#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { TILE_BYTES = 64, LINE = 64, ASK_FOR_TILES = 0x1023, TILE_DATA = 18 };

int has_tiles(void) {
    static _Atomic int known; /* 0: not asked yet */
    if (!known) known = syscall(SYS_arch_prctl, ASK_FOR_TILES, TILE_DATA) ? -1 : 1;
    return known > 0;
}

/* What this thread's tiles are set up for: how many rows, 0: none; how many bytes of each. Tiles 0 and 1 hold sums of up to 16 rows x 16 outputs each, 2 and
   3 those of the rows below; 4 and 5 hold these rows, 6 and 7 pairs of inputs of 16 outputs each. */
static _Thread_local long rows_set_up, bytes_set_up;

static void set_up(long rows, long bytes) {
    if (rows_set_up == rows && bytes_set_up == bytes) return;
    struct { uint8_t palette, start, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; } shape = {.palette = 1};
    const uint8_t upper = rows < TILE_ROWS ? rows : TILE_ROWS, lower = rows > TILE_ROWS ? rows - TILE_ROWS : 1;
    const uint8_t deep = bytes / 4, all[] = {upper, upper, lower, lower, upper, lower, deep, deep};
    for (long i = 0; i < 8; i++) shape.rows[i] = all[i], shape.bytes[i] = i == 4 || i == 5 ? bytes : TILE_BYTES;
    __asm__ volatile("" : : "r"(&shape) : "memory"); /* GCC 12 takes the next for a reader of its first 8 bytes */
    _tile_loadconfig(&shape);
    rows_set_up = rows, bytes_set_up = bytes;
}

void release_tiles(void) {
    if (rows_set_up) _tile_release();
    rows_set_up = 0;
}

static void load_sums(float *result, long apart, int adds, int is_tall) {
    const long bytes = apart * sizeof(float);
    float *below = result + TILE_ROWS * apart;
    if (adds) {
        _tile_loadd(0, result, bytes);
        _tile_loadd(1, result + LANE, bytes);
    } else {
        _tile_zero(0);
        _tile_zero(1);
    }
    if (is_tall && adds) {
        _tile_loadd(2, below, bytes);
        _tile_loadd(3, below + LANE, bytes);
    } else if (is_tall) {
        _tile_zero(2);
        _tile_zero(3);
    }
}

static void store_sums(void *result, long apart, int is_tall) { /* of 4 bytes each */
    const long bytes = apart * sizeof(float);
    float *below = (float *)result + TILE_ROWS * apart;
    _tile_stored(0, result, bytes);
    _tile_stored(1, (float *)result + LANE, bytes);
    if (!is_tall) return;
    _tile_stored(2, below, bytes);
    _tile_stored(3, below + LANE, bytes);
}

/* Up to 16 rows: as fast as memory gives the weight. */
static void sixteen_rows(halves w, long in, const bf16 *x, long stride) {
    for (long k = 0; k < in; k += TILE_INPUTS, w.left += LANE * w.stride, w.right += LANE * w.stride) {
        if (w.is_in_memory)
            for (long i = 0; i < LANE; i++) fetch_two_lines((const uint8_t *)(w.left + i * w.stride) + AHEAD);
        _tile_loadd(4, x + k, stride * sizeof(bf16));
        _tile_loadd(6, w.left, w.stride * sizeof(bf16));
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, w.right, w.stride * sizeof(bf16));
        _tile_dpbf16ps(1, 4, 7);
    }
}

static void fetch(upcoming *next, long lines) {
    for (long i = 0; i < lines && next->at < next->stop; i++, next->at += LINE) _mm_prefetch((const char *)next->at, _MM_HINT_T1);
}

/* 17 to 32 rows; `lines` of what is next are fetched at each step. */
static void more_rows(halves w, long in, const bf16 *x, long stride, upcoming *next, long lines) {
    const bf16 *below = x + TILE_ROWS * stride;
    for (long k = 0; k < in; k += TILE_INPUTS, w.left += LANE * w.stride, w.right += LANE * w.stride) {
        if (lines) fetch(next, lines);
        _tile_loadd(6, w.left, w.stride * sizeof(bf16));
        _tile_loadd(7, w.right, w.stride * sizeof(bf16));
        _tile_loadd(4, x + k, stride * sizeof(bf16));
        _tile_loadd(5, below + k, stride * sizeof(bf16));
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

void tiles_product(halves w, long in, const bf16 *x, long stride, long rows, float *result, long apart, int adds,
                   upcoming next) {
    const long steps = (rows + TILE_ROWS - 1) / (2 * TILE_ROWS) * (in / TILE_INPUTS);
    const long lines = steps ? ((next.stop - next.at) / LINE + steps - 1) / steps : 0;
    for (long m = 0; m < rows; m += 2 * TILE_ROWS, x += 2 * TILE_ROWS * stride, result += 2 * TILE_ROWS * apart) {
        const long some = rows - m < 2 * TILE_ROWS ? rows - m : 2 * TILE_ROWS, is_tall = some > TILE_ROWS;
        set_up(some, TILE_BYTES);
        load_sums(result, apart, adds, is_tall);
        if (is_tall) more_rows(w, in, x, stride, &next, lines);
        else sixteen_rows(w, in, x, stride);
        store_sums(result, apart, is_tall);
    }
}

#ifdef HAS_INTEGER_TILES

void integer_tiles(const int8_t *codes, long inputs, const int8_t *x, long rows, int32_t *sums) {
    const int is_tall = rows > TILE_ROWS;
    set_up(rows, inputs);
    load_sums(NULL, 0, 0, is_tall);
    _tile_loadd(6, codes, 4 * PANEL);
    _tile_loadd(7, codes + 4 * LANE, 4 * PANEL);
    _tile_loadd(4, x, GROUP);
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    if (is_tall) {
        _tile_loadd(5, x + TILE_ROWS * GROUP, GROUP);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
    store_sums(sums, PANEL, is_tall);
}

#endif

#else

void release_tiles(void) {}

#endif
