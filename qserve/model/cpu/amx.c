#define _GNU_SOURCE

#include "amx.h"

#ifdef HAS_TILES

#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { TILE_ROWS = 16, TILE_BYTES = 64, PANEL_BYTES = PANEL * 2 * sizeof(bf16), ASK_FOR_TILES = 0x1023, TILE_DATA = 18 };

int has_tiles(void) {
    static _Atomic int known; /* 0: not asked yet */
    if (!known) known = syscall(SYS_arch_prctl, ASK_FOR_TILES, TILE_DATA) ? -1 : 1;
    return known > 0;
}

/* How many rows this thread's tiles are set up for, 0: none. Tiles 0 and 1 hold sums of up to 16 rows x 16 outputs each, 2 and
   3 those of the rows below; 4 and 5 hold these rows, 6 and 7 pairs of inputs of 16 outputs each. */
static _Thread_local long rows_set_up;

static void set_up(long rows) {
    if (rows_set_up == rows) return;
    struct { uint8_t palette, start, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; } shape = {.palette = 1};
    const uint8_t upper = rows < TILE_ROWS ? rows : TILE_ROWS, lower = rows > TILE_ROWS ? rows - TILE_ROWS : 1;
    const uint8_t all[] = {upper, upper, lower, lower, upper, lower, TILE_ROWS, TILE_ROWS};
    for (long i = 0; i < 8; i++) shape.rows[i] = all[i], shape.bytes[i] = TILE_BYTES;
    __asm__ volatile("" : : "r"(&shape) : "memory"); /* GCC 12 takes the next for a reader of its first 8 bytes */
    _tile_loadconfig(&shape);
    rows_set_up = rows;
}

void release_tiles(void) {
    if (rows_set_up) _tile_release();
    rows_set_up = 0;
}

/* Up to 16 rows, as fast as memory gives the panel. */
static void sixteen_rows(const bf16 *panel, long in, const bf16 *x, long stride, float *result) {
    _tile_zero(0);
    _tile_zero(1);
    for (long k = 0; k < in; k += TILE_INPUTS, panel += TILE_INPUTS * PANEL) {
        for (long i = 0; i < TILE_INPUTS * PANEL; i += 2 * PANEL) fetch_two_lines((const uint8_t *)(panel + i) + AHEAD);
        _tile_loadd(4, x + k, stride * sizeof(bf16));
        _tile_loadd(6, panel, PANEL_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, panel + 2 * LANE, PANEL_BYTES);
        _tile_dpbf16ps(1, 4, 7);
    }
    _tile_stored(0, result, PANEL * sizeof(float));
    _tile_stored(1, result + LANE, PANEL * sizeof(float));
}

/* 17 to 32 rows. */
static void more_rows(const bf16 *panel, long in, const bf16 *x, long stride, float *result) {
    const bf16 *below = x + TILE_ROWS * stride;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (long k = 0; k < in; k += TILE_INPUTS, panel += TILE_INPUTS * PANEL) {
        _tile_loadd(6, panel, PANEL_BYTES);
        _tile_loadd(7, panel + 2 * LANE, PANEL_BYTES);
        _tile_loadd(4, x + k, stride * sizeof(bf16));
        _tile_loadd(5, below + k, stride * sizeof(bf16));
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, result, PANEL * sizeof(float));
    _tile_stored(1, result + LANE, PANEL * sizeof(float));
    _tile_stored(2, result + TILE_ROWS * PANEL, PANEL * sizeof(float));
    _tile_stored(3, result + TILE_ROWS * PANEL + LANE, PANEL * sizeof(float));
}

void tiles_product(const bf16 *panel, long in, const bf16 *x, long stride, long rows, float *result) {
    for (long m = 0; m < rows; m += 2 * TILE_ROWS) {
        const long some = rows - m < 2 * TILE_ROWS ? rows - m : 2 * TILE_ROWS;
        set_up(some);
        if (some > TILE_ROWS) more_rows(panel, in, x + m * stride, stride, result + m * PANEL);
        else sixteen_rows(panel, in, x + m * stride, stride, result + m * PANEL);
    }
}

#else

void release_tiles(void) {}

#endif
