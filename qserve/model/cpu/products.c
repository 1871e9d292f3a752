#include "products.h"

#include "amx.h"
#include "panels.h"
#include "threads.h"

enum { TASK_BYTES = 1 << 16, CACHED_BYTES = 1 << 20, MOST_PRODUCTS = 4, TASKS_A_THREAD = 4, MOST_STEP = 64 };
/* Of slices of 128 KB or less: panels of a task, rows that meet one slice before the next, and those that meet all its panels. */
enum { SLICED_PANELS = 8, SLICED_ROWS = 512, ROWS_AT_ONCE = 64 };

/* `ends`: of each product's tasks; a task is `step` panels. */
typedef struct {
    const product *all;
    const matrix *up; /* gated: the other half of the only product */
    operand x;
    long num, step, slice, ends[MOST_PRODUCTS]; /* slice: inputs that are multiplied at once; 0: all */
    long first_row; /* of what is written, that of the first row of x */
    int failed;
    const int64_t *chosen; /* of the only product: these panels of it and no others; NULL: all */
    long num_chosen;
} work;

static long panels_in(const work *all, long which) { return all->chosen ? all->num_chosen : panels_of(all->all[which].w); }

static float largest_of(const float *result, long count) {
    float most = -INFINITY, sum = 0;
#pragma omp simd reduction(max : most) reduction(+ : sum)
    for (long i = 0; i < count; i++) {
        most = result[i] > most ? result[i] : most;
        sum += result[i] - result[i]; /* NaN of NaN and of infinities */
    }
    return sum == 0 ? most : NAN;
}

static void store(const product *one, long index, long row, const float *result) {
    const long at = index * PANEL, count = one->w->out - at < PANEL ? one->w->out - at : PANEL;
    if (one->largest) {
        one->largest[row * one->stride + index] = largest_of(result, count);
        return;
    }
    const bf16 *bias = one->w->bias ? one->w->bias + at : NULL;
    if (!bias && one->y && count == PANEL) { /* nearly always: a few instructions */
        bf16 *to = one->y + row * one->stride + at;
        for (long i = 0; i < PANEL; i++) to[i] = narrow(result[i]);
        return;
    }
    bf16 rounded[PANEL];
    if (bias)
        for (long i = 0; i < count; i++) rounded[i] = narrow(result[i] + wide(bias[i]));
    else
        for (long i = 0; i < PANEL; i++) rounded[i] = narrow(result[i]);
    if (one->y32)
        for (long i = 0; i < count; i++) one->y32[row * one->stride + at + i] = wide(rounded[i]);
    else
        for (long i = 0; i < count; i++) one->y[row * one->stride + at + i] = rounded[i];
}

static void gate_result(float *gate, const float *up) {
    for (long i = 0; i < PANEL; i++) {
        const float g = wide(narrow(gate[i]));
        gate[i] = g / (1.0f + exponential(-g)) * wide(narrow(up[i]));
    }
}

/* Memory of this thread for `places` panels in bf16, at `place`; NULL: there is none. */
static bf16 *room_for(const matrix *w, long place, long places) {
    const size_t each = (size_t)w->in * PANEL;
    bf16 *memory = scratch(1, places * each * sizeof(bf16));
    return memory ? memory + place * each : NULL;
}

int panel_rows(const matrix *w, long index, const operand *x, long first, long rows, float *result) {
    const bf16 *panel = NULL;
    if (wants_unpacked(w, x, rows)) {
        bf16 *room = room_for(w, 0, 1);
        if (!room) return 1;
        panel = unpacked(w, index, room);
    }
    const long most = rows_at_once(x, rows);
    for (long at = 0; at < rows; at += most)
        panel_product(w, index, panel, x, first + at, rows - at < most ? rows - at : most, (upcoming){0}, result + at * PANEL);
    return 0;
}

/* A panel of a task: of gated products its other half too. In bf16 where products want it so. */
typedef struct { long index; const bf16 *panel, *up; } task_panel;

/* What is fetched while a panel is multiplied, and of gated products while its other half is. */
typedef struct { upcoming first, second; } fetched;

/* Rows [row, row + rows) of one panel, piece by piece: what is stored is still in the nearest cache. */
static void some_rows(const work *all, const product *one, const task_panel *at, long row, long rows, fetched next) {
    float result[PLANE_ROWS * PANEL], ups[PLANE_ROWS * PANEL];
    const long most = rows_at_once(&all->x, all->x.rows), stop = row + rows;
    for (; row < stop; row += most) {
        const long some = stop - row < most ? stop - row : most;
        panel_product(one->w, at->index, at->panel, &all->x, row, some, next.first, result);
        if (all->up) panel_product(all->up, at->index, at->up, &all->x, row, some, next.second, ups);
        next = (fetched){0};
        for (long m = 0; m < some; m++) {
            if (all->up) gate_result(result + m * PANEL, ups + m * PANEL);
            store(one, at->index, all->first_row + row + m, result + m * PANEL);
        }
    }
}

/* Panel `i` of a task in bf16; of gated products its other half too. In one place after another where rows are in blocks,
   else all in the first. 0, or 1 where there is no memory. */
static int unpack_panel(const work *all, const product *one, task_panel *at, long i, long count) {
    const long halves = all->up ? 2 : 1, keeps = rows_of_a_block(&all->x) < all->x.rows;
    bf16 *room = room_for(one->w, keeps ? i * halves : 0, keeps ? count * halves : halves);
    if (!room) return 1;
    at->panel = unpacked(one->w, at->index, room);
    if (all->up) at->up = unpacked(all->up, at->index, room + one->w->in * PANEL);
    return 0;
}

/* The product that a task is of, and its first panel. */
static const product *product_of_task(const work *all, long index, long *first) {
    long which = 0;
    while (index >= all->ends[which]) which++;
    *first = (index - (which ? all->ends[which - 1] : 0)) * all->step;
    return all->all + which;
}

/* The panel of `one` with which this thread will most likely go on after a task: threads draw tasks in turns. */
static long after_task(const work *all, const product *one, long index) {
    long first;
    const long drawn = index + num_threads();
    if (drawn >= all->ends[all->num - 1] || product_of_task(all, drawn, &first) != one) return -1;
    return all->chosen ? all->chosen[first] : first;
}

/* The codes of a panel; `index` -1: of none. */
static upcoming codes_of(const matrix *w, long index) {
    const uint8_t *codes = w->codes + index * panel_bytes(w);
    return index < 0 ? (upcoming){0} : (upcoming){codes, codes + panel_bytes(w)};
}

/* Part `i` of `count` of the rows that begin at `row`, or, behind the last, at the first. */
static upcoming rows_at(const operand *x, long row, long block, long i, long count) {
    const long first = row < x->rows ? row : 0, some = x->rows - first < block ? x->rows - first : block;
    const long bytes = some * x->stride * (long)sizeof(bf16);
    const uint8_t *at = (const uint8_t *)(x->x + first * x->stride);
    return (upcoming){at + bytes * i / count, at + bytes * (i + 1) / count};
}

static void some_panels(void *shared, long index) {
    work *all = shared;
    long first;
    const product *one = product_of_task(all, index, &first);
    const long panels = panels_in(all, one - all->all), count = first + all->step < panels ? all->step : panels - first;
    const long rows = all->x.rows, block = rows_of_a_block(&all->x);
    const int unpacks = wants_unpacked(one->w, &all->x, rows);
    task_panel at[MOST_STEP];
    for (long i = 0; i < count; i++) at[i] = (task_panel){all->chosen ? all->chosen[first + i] : first + i, NULL, NULL};
    for (long row = 0; row < rows && !all->failed; row += block)
        for (long i = 0; i < count; i++) {
            if (unpacks && !row && unpack_panel(all, one, at + i, i, count)) {
                all->failed = 1;
                break;
            }
            /* While the first rows meet a panel the next is fetched, and for others the rows after them. */
            const int is_last = row + block >= rows && i + 1 == count;
            const long panel = is_last ? after_task(all, one, index) : !row && i + 1 < count ? at[i + 1].index : -1;
            fetched next = {codes_of(one->w, panel), all->up ? codes_of(all->up, panel) : (upcoming){0}};
            if (row && !is_last) next.first = rows_at(&all->x, row + block, block, i, count);
            some_rows(all, one, at + i, row, rows - row < block ? rows - row : block, next);
        }
    release_tiles();
}

/* As `some_panels` where inputs come in slices: a slice of all panels of the task stays in the second cache while rows pass, whose
   sums wait there for the next. */
static void some_slices(void *shared, long index) {
    work *all = shared;
    long first;
    const product *one = product_of_task(all, index, &first);
    const long panels = panels_in(all, one - all->all), count = first + all->step < panels ? all->step : panels - first;
    const matrix *halves[] = {one->w, all->up};
    const long num = all->up ? 2 : 1, slice = all->slice, in = one->w->in;
    float *sums = scratch(5, count * num * SLICED_ROWS * PANEL * sizeof(float));
    all->failed |= !sums;
    for (long row = 0; row < all->x.rows && !all->failed; row += SLICED_ROWS) {
        const long rows = all->x.rows - row < SLICED_ROWS ? all->x.rows - row : SLICED_ROWS;
        for (long from = 0; from < in; from += slice)
            for (long at = 0; at < rows; at += ROWS_AT_ONCE)
                for (long i = 0; i < count * num; i++) {
                    const long some = rows - at < ROWS_AT_ONCE ? rows - at : ROWS_AT_ONCE, wide = in - from < slice ? in - from : slice;
                    const uint8_t *codes = halves[(i + 1) % num]->codes + ((first + (i + 1) / num) * in + from) * PANEL * sizeof(bf16);
                    const upcoming next = {codes, codes + (at || i + 1 == count * num ? 0 : wide * PANEL * sizeof(bf16))};
                    slice_product(halves[i % num], first + i / num, &all->x, row + at, some, from, wide, next,
                                  sums + (i * SLICED_ROWS + at) * PANEL);
                }
        for (long i = 0; i < count; i++)
            for (long m = 0; m < rows; m++) {
                float *result = sums + (i * num * SLICED_ROWS + m) * PANEL;
                if (all->up) gate_result(result, result + SLICED_ROWS * PANEL);
                store(one, first + i, all->first_row + row + m, result);
            }
    }
    release_tiles();
}

/* Few enough tasks that drawing one costs nothing, and so many that no thread waits long for the last. Where rows are more
   than a block, a task's panels in bf16 fill the second cache's other half. */
static long panels_a_task(const work *all) {
    const matrix *w = all->all->w;
    long panels = 0;
    for (long i = 0; i < all->num; i++) panels += panels_in(all, i);
    const long even = panels / (TASKS_A_THREAD * num_threads()), halves = all->up ? 2 : 1;
    if (all->slice) return even < SLICED_PANELS / halves ? even < 1 ? 1 : even : SLICED_PANELS / halves;
    const int has_blocks_of_rows = all->x.rows > rows_of_a_block(&all->x);
    const long large = has_blocks_of_rows ? CACHED_BYTES / (w->in * PANEL * (long)sizeof(bf16) * halves) : TASK_BYTES / panel_bytes(w) + 1;
    const long step = even < large ? even : large;
    return step < 1 ? 1 : step < MOST_STEP ? step : MOST_STEP;
}

static int run(work *all) {
    if (prepare(&all->x, all->all->w)) return 1;
    all->slice = all->chosen ? 0 : inputs_of_a_slice(all->all->w, &all->x);
    all->step = panels_a_task(all);
    long tasks = 0;
    for (long i = 0; i < all->num; i++) all->ends[i] = tasks += (panels_in(all, i) + all->step - 1) / all->step;
    for_each(tasks, all->slice ? some_slices : some_panels, all);
    return all->failed;
}

/* Rows of one kind after those of another, where it matters. */
static int run_rows(work *all, const inputs *x) {
    const row_range every = {0, x->rows, 0};
    const int is_apart = x->ranges && prompts_apart(all->all->w);
    for (long i = 0; i < (is_apart ? x->num_ranges : 1); i++) {
        const row_range r = is_apart ? x->ranges[i] : every;
        all->first_row = r.start;
        all->x = (operand){.x = x->x + r.start * x->stride, .rows = r.stop - r.start, .stride = x->stride, .is_prompt = r.is_prompt};
        if (run(all)) return 1;
    }
    return 0;
}

int multiply(const product *all, long num, const inputs *x) {
    work one = {.all = all, .num = num};
    return run_rows(&one, x);
}

int multiply_gated(const matrix *gate, const matrix *up, const inputs *x, bf16 *y, long apart) {
    const product half = {.w = gate, .y = y, .stride = apart};
    work one = {.all = &half, .up = up, .num = 1};
    return run_rows(&one, x);
}

static int multiply_all(const product *one, const bf16 *x, long rows) {
    const inputs all = {.x = x, .stride = one->w->in, .rows = rows};
    return multiply(one, 1, &all);
}

/* y [rows][out] in bf16 (or y32 in fp32) of x [rows][in]: one product for callers outside. */
int product_of(const matrix *w, const bf16 *x, long rows, bf16 *y, float *y32) {
    const product one = {.w = w, .y = y, .y32 = y32, .stride = w->out};
    return multiply_all(&one, x, rows);
}

/* One product after the other, each with rows of its own x and all into the same y: in one call, as the steps of a model have
   them, for whoever measures. */
int products_in_turn(const matrix *const *all, const bf16 *const *x, long num, long rows, bf16 *y) {
    for (long i = 0; i < num; i++)
        if (product_of(all[i], x[i], rows, y, NULL)) return 1;
    return 0;
}

/* Of each panel the largest output, not rounded, without a bias: largest [rows][panels]. */
int largest_of_panels(const matrix *w, const bf16 *x, long rows, float *largest) {
    const product one = {.w = w, .stride = panels_of(w), .largest = largest};
    return multiply_all(&one, x, rows);
}

/* The same for some panels alone, `num` of them, each once; the rest of y is left as it is. */
int product_of_panels(const matrix *w, const bf16 *x, long rows, const int64_t *chosen, long num, bf16 *y) {
    const product one = {.w = w, .y = y, .stride = w->out};
    work all = {.all = &one, .num = 1, .x = {.x = x, .rows = rows, .stride = w->in}, .chosen = chosen, .num_chosen = num};
    return run(&all);
}

typedef struct { const matrix *w; float *to; } dense;

static void unpack_one(void *shared, long index) {
    const dense *all = shared;
    float piece[8 * PANEL];
    for (long k = 0; k < all->w->in; k += 8) {
        const long stop = k + 8 < all->w->in ? k + 8 : all->w->in;
        unpack_floats(all->w, index, k, stop, piece);
        for (long i = 0; i < PANEL && index * PANEL + i < all->w->out; i++)
            for (long j = k; j < stop; j++) all->to[(index * PANEL + i) * all->w->in + j] = piece[(j - k) * PANEL + i];
    }
}

/* The weight itself, [out][in] in fp32. */
void dense_weight(const matrix *w, float *to) {
    dense all = {w, to};
    for_each(panels_of(w), unpack_one, &all);
}
