/* Numbers of a weight as files store them, to the panels that products read (matrix.h).

   A word of 32 bits holds numbers of inputs that follow each other, the first in its lowest bits, wherever the next output's
   and the next inputs' words lie; but AWQ's hold outputs. Panels want the inputs of a word in another order, so that a
   product takes every second one out with one mask: 0 2 4 6 1 3 5 7 of 4 bits, 0 2 1 3 of 8. */

#include <string.h>

#include "matrix.h"
#include "threads.h"

/* What a word holds: 2 numbers in bf16; 4 of 8 bits with a sign; 4 of 8 bits; 8 of 4 bits; the same, the second of each byte
   first; 8 of 4 bits of as many outputs. */
enum { PLAIN, SIGNED, BYTE_WORDS, CODE_WORDS, PAIR_WORDS, OUTPUT_WORDS };
/* Words that are read of a row at once: a cache line. Panels of one task: with AWQ's layout a line holds inputs of four. */
enum { LINE = 16, PANELS_AT_ONCE = 4 };

typedef struct {
    const uint8_t *at; /* words, of any alignment */
    int64_t form, out, in;
    int64_t out_step, in_step; /* bytes from a word to that of the next output and of the next inputs; OUTPUT_WORDS: in_step
                                  from one input's to the next one's */
    const int32_t *order;      /* [in]: which input comes at place k; NULL: input k. Of BYTE_WORDS and CODE_WORDS */
} numbers;

typedef struct { const numbers *from; uint32_t *to; } call;

static inline uint32_t word_at(const uint8_t *at) {
    uint32_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

static inline int inputs_of(int64_t form) { return form == PLAIN ? 2 : form == SIGNED || form == BYTE_WORDS ? 4 : 8; }

/* Bytes 0 2 of x, of which the others are 0, side by side. */
static inline uint32_t closed(uint32_t x) {
    x = (x | x >> 4) & 0x00ff00ff;
    return (x | x >> 8) & 0xffff;
}

static inline uint32_t arranged(uint32_t word, const int form) {
    if (form == SIGNED) return word ^ 0x80808080;
    if (form == BYTE_WORDS) return (word & 0xff0000ff) | (word >> 8 & 0xff00) | (word << 8 & 0xff0000);
    if (form == CODE_WORDS) return closed(word & 0x0f0f0f0f) | closed(word >> 4 & 0x0f0f0f0f) << 16;
    if (form == PAIR_WORDS) return closed(word >> 4 & 0x0f0f0f0f) | closed(word & 0x0f0f0f0f) << 16;
    return word;
}

#define ALWAYS static inline __attribute__((always_inline))

/* Outputs side by side in the file. */
ALWAYS void pack_columns(const numbers *from, const uint8_t *at, long runs, long outputs, const int form, uint32_t *to) {
    for (long r = 0; r < runs; r++, to += PANEL)
        for (long o = 0; o < outputs; o++) to[o] = arranged(word_at(at + r * from->in_step + 4 * o), form);
}

/* Inputs side by side: a line of each output, then across. */
ALWAYS void pack_rows(const numbers *from, const uint8_t *at, long runs, long outputs, const int form, uint32_t *to) {
    uint32_t lines[PANEL][LINE];
    for (long first = 0; first < runs; first += LINE) {
        const long num = runs - first < LINE ? runs - first : LINE;
        for (long o = 0; o < outputs; o++) memcpy(lines[o], at + o * from->out_step + 4 * first, 4 * num);
        for (long r = 0; r < num; r++, to += PANEL)
            for (long o = 0; o < outputs; o++) to[o] = arranged(lines[o][r], form);
    }
}

/* Inputs from all over the row. */
ALWAYS void pack_in_order(const numbers *from, const uint8_t *at, long runs, long outputs, const int form, uint32_t *to) {
    const int count = inputs_of(form), bits = 32 / count;
    const uint32_t mask = (1u << bits) - 1;
    for (long r = 0; r < runs; r++, to += PANEL) {
        uint32_t words[PANEL] = {0};
        for (int j = 0; j < count; j++) {
            const int32_t input = from->order[r * count + j];
            const uint8_t *row = at + input / count * from->in_step;
            const int shift = input % count * bits;
            if (from->out_step == 4)
                for (long o = 0; o < outputs; o++) words[o] |= (word_at(row + 4 * o) >> shift & mask) << j * bits;
            else
                for (long o = 0; o < outputs; o++)
                    words[o] |= (word_at(row + o * from->out_step) >> shift & mask) << j * bits;
        }
        for (long o = 0; o < outputs; o++) to[o] = arranged(words[o], form);
    }
}

ALWAYS void pack_inputs(const numbers *from, long panel, const int form, uint32_t *to) {
    const long runs = from->in / inputs_of(form), left = from->out - panel * PANEL;
    const long outputs = left < PANEL ? left : PANEL;
    const uint8_t *at = from->at + panel * PANEL * from->out_step;
    to += panel * runs * PANEL;
    if (outputs < PANEL) memset(to, form == SIGNED ? 0x80 : 0, runs * PANEL * sizeof *to);
    if (from->order) pack_in_order(from, at, runs, outputs, form, to);
    else if (from->out_step == 4 && outputs == PANEL) pack_columns(from, at, runs, PANEL, form, to);
    else if (from->out_step == 4) pack_columns(from, at, runs, outputs, form, to);
    else if (outputs == PANEL) pack_rows(from, at, runs, PANEL, form, to);
    else pack_rows(from, at, runs, outputs, form, to);
}

enum { WORDS = PANEL / 8 }; /* of an input in a panel */
typedef uint32_t words __attribute__((vector_size(4 * WORDS)));

/* Numbers of eight words across: number c of word r becomes number r of word c. */
ALWAYS void turn(words x[8]) {
    static const uint32_t masks[] = {0x0000ffff, 0x00ff00ff, 0x0f0f0f0f};
    for (int stage = 0, apart = 4; stage < 3; stage++, apart /= 2)
        for (int i = 0; i < 8; i++)
            if (!(i & apart)) {
                const words swapped = ((x[i] >> 4 * apart) ^ x[i + apart]) & masks[stage];
                x[i + apart] ^= swapped;
                x[i] ^= swapped << 4 * apart;
            }
}

/* Eight outputs in a word, of output n the number at place PLACES[n]. */
static void pack_outputs(const numbers *from, long first, long panels, uint32_t *to) {
    static const int PLACES[] = {0, 4, 1, 5, 2, 6, 3, 7}, INPUTS[] = {0, 2, 4, 6, 1, 3, 5, 7};
    const long runs = from->in / 8;
    for (long r = 0; r < runs; r++)
        for (long panel = first; panel < first + panels; panel++) {
            const uint8_t *at = from->at + 8 * r * from->in_step + panel * 4 * WORDS;
            const long left = (from->out - panel * PANEL) / 8, num = left < WORDS ? left : WORDS;
            uint32_t *target = to + (panel * runs + r) * PANEL;
            words x[8];
            for (int i = 0; i < 8; i++) {
                x[i] = (words){0};
                if (num == WORDS) memcpy(x + i, at + INPUTS[i] * from->in_step, sizeof *x);
                else memcpy(x + i, at + INPUTS[i] * from->in_step, 4 * num);
            }
            turn(x);
            for (int n = 0; n < 8; n++)
                for (int w = 0; w < WORDS; w++) target[8 * w + n] = x[PLACES[n]][w];
        }
}

static void pack_some(void *shared, long index) {
    const call *all = shared;
    const numbers *from = all->from;
    const long first = index * PANELS_AT_ONCE, panels = (from->out + PANEL - 1) / PANEL;
    const long stop = first + PANELS_AT_ONCE < panels ? first + PANELS_AT_ONCE : panels;
    if (from->form == OUTPUT_WORDS) {
        pack_outputs(from, first, stop - first, all->to);
        return;
    }
    for (long panel = first; panel < stop; panel++) switch (from->form) {
        case PLAIN: pack_inputs(from, panel, PLAIN, all->to); break;
        case SIGNED: pack_inputs(from, panel, SIGNED, all->to); break;
        case BYTE_WORDS: pack_inputs(from, panel, BYTE_WORDS, all->to); break;
        case CODE_WORDS: pack_inputs(from, panel, CODE_WORDS, all->to); break;
        default: pack_inputs(from, panel, PAIR_WORDS, all->to);
        }
}

/* `to`: panels of the weight, the last one filled up: with zeros, as bits are stored; with numbers of zero of SIGNED. `in` is
   a multiple of a word's inputs, and of OUTPUT_WORDS `out` one of 8. */
void pack_numbers(const numbers *from, void *to) {
    call all = {from, to};
    for_each((from->out + PANELS_AT_ONCE * PANEL - 1) / (PANELS_AT_ONCE * PANEL), pack_some, &all);
}
