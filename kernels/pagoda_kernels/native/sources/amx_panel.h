// The products of one panel by AMX (amx.h), of any number of rows.
//
// A panel in twelve bits is widened while it is multiplied, so that the units for vectors, those for tiles, and memory are busy
// all the time. For few rows sums stay in registers all along K, and each block is widened beside the tiles of the one before;
// for more a part of the panel is widened for all of them, a share of it beside each 32 rows of the part before.

#pragma once

#include "amx.h"
#include "quantised.h"
#include "twelve_bits.h"

#if TAKES_AMX

#define FEW_ROWS 64
#define SHARE_BITS 16  // behind the point
#define SEGMENT_STEPS 2048  // of a panel, which the second-level cache has room for beside what comes next

// The next part, or what is left of it to be widened.
typedef struct {
    TwelvePart part;  // from the first step on that is not yet
    long end;         // step
    uint32_t *words;  // of that first step
    long share;       // of the steps, beside each block of 32 rows and half a panel; in fixed point
    long due;         // so: what of the shares so far is no whole step
} Widening;

static inline __attribute__((always_inline)) void widen_steps(Widening *widening, long count) {
    const TwelvePart part = widening->part;  // whose numbers stay in registers, whatever is written
    const uint8_t *step = part.steps, *ahead = part.ahead;
    const Exception *exception = part.exception;
    uint32_t *words = widening->words;
    for (long number = part.first; number < part.first + count; number++) {
#pragma GCC unroll 3
        for (int line = 0; line < STEP_LINES; line++) {
            __builtin_prefetch(step + NEAR_TWELVE * STEP_BYTES + line * 64);
            __builtin_prefetch(ahead + line * 64, 0, 2);
        }
        exception = write_step(step, number, exception, &part, words);
        step += STEP_BYTES, ahead += STEP_BYTES, words += PANEL;
    }
    widening->part.first += count, widening->part.steps = step, widening->part.ahead = ahead;
    widening->part.exception = exception, widening->words = words;
}

static inline __attribute__((always_inline)) void widen_share(Widening *widening) {
    widening->due += widening->share;
    const long count = widening->due >> SHARE_BITS;
    if (!count) return;
    widening->due -= count << SHARE_BITS;
    widen_steps(widening, count);
}

// Widen what is left, and fill up the last block with zeros.
static inline void end_widening(Widening *widening) {
    widen_steps(widening, widening->end - widening->part.first);
    const long missing = (AMX_STEPS - widening->end % AMX_STEPS) % AMX_STEPS;
    memset(widening->words, 0, (size_t)(missing * PANEL) * sizeof *widening->words);
}

// What 64 columns of some rows are made of: `blocks` of x times as many of a panel.
typedef struct {
    const char *x;          // of the first row
    long row_bytes;         // from one row of x to the next
    long block_bytes;       // from one block of x to the next
    const uint32_t *words;  // [blocks * AMX_STEPS, PANEL]
    long blocks;
    long c_bytes;           // from one row of c to the next
    int adds;               // to c
} AmxProduct;

// c[16, 64] (+)= 16 rows, or as many as registers are for.
static void amx_multiply_16(const AmxProduct *of, float *c) {
    const long panel_bytes = PANEL * 4, c_bytes = of->c_bytes;
    const char *x = of->x;
    const uint32_t *words = of->words;
    AMX_BEGIN_ALL(c, c + 2 * AMX_COLUMNS, c_bytes, of->adds);
    for (long block = 0; block < of->blocks; block++) {
        AMX_LOAD(4, x, of->row_bytes);
        AMX_LOAD(6, words, panel_bytes);
        AMX_MULTIPLY(0, 4, 6);
        AMX_LOAD(7, words + AMX_COLUMNS, panel_bytes);
        AMX_MULTIPLY(1, 4, 7);
        AMX_LOAD(6, words + 2 * AMX_COLUMNS, panel_bytes);
        AMX_MULTIPLY(2, 4, 6);
        AMX_LOAD(7, words + 3 * AMX_COLUMNS, panel_bytes);
        AMX_MULTIPLY(3, 4, 7);
        x += of->block_bytes, words += AMX_STEPS * PANEL;
    }
    AMX_STORE_ALL(c, c + 2 * AMX_COLUMNS, c_bytes);
}

// c[32, 64] (+)= 32 rows, half of the columns after the other: each tile that is loaded is multiplied twice.
static inline __attribute__((always_inline)) void amx_32(const AmxProduct *of, float *c, Widening *widening) {
    const long panel_bytes = PANEL * 4, c_bytes = of->c_bytes;
    for (int half = 0; half < 2; half++, c += PANEL / 2) {
        float *lower = c + AMX_ROWS * c_bytes / 4;
        const char *x = of->x, *x_lower = x + AMX_ROWS * of->row_bytes;
        const uint32_t *words = of->words + half * PANEL / 2;
        AMX_BEGIN_ALL(c, lower, c_bytes, of->adds);
        for (long block = 0; block < of->blocks; block++) {
            AMX_LOAD(6, words, panel_bytes);
            AMX_LOAD(4, x, of->row_bytes);
            AMX_MULTIPLY(0, 4, 6);
            AMX_LOAD(7, words + AMX_COLUMNS, panel_bytes);
            AMX_MULTIPLY(1, 4, 7);
            if (widening) widen_share(widening);
            AMX_LOAD(5, x_lower, of->row_bytes);
            AMX_MULTIPLY(2, 5, 6);
            AMX_MULTIPLY(3, 5, 7);
            x += of->block_bytes, x_lower += of->block_bytes, words += AMX_STEPS * PANEL;
        }
        AMX_STORE_ALL(c, lower, c_bytes);
    }
}

static void amx_multiply_32(const AmxProduct *of, float *c) { amx_32(of, c, NULL); }
static void amx_widen_beside_32(const AmxProduct *of, float *c, Widening *widening) { amx_32(of, c, widening); }

// scratch->sums[rows, 64] (+)= rows of x from `first_row` on, from block `first_block` on. widening: what is widened meanwhile,
// or NULL. done: told of rows; NULL: there is more to be added to them.
static void amx_multiply(long num_rows, const AmxX *x, long first_row, long first_block, const AmxProduct *of, float *sums,
                         Widening *widening, const RowsDone *done) {
    if (widening) {
        const long places = num_rows / AMX_GROUP * 2 * of->blocks;
        widening->due = 0, widening->share = ((widening->end - widening->part.first) << SHARE_BITS) / places;
    }
    AmxProduct product = *of;
    for (long row = 0; row < num_rows; row += AMX_GROUP, sums += AMX_GROUP * PANEL) {
        const long left = num_rows - row, next = left < AMX_GROUP ? num_rows : row + AMX_GROUP;
        product.x = amx_x(x, first_row + row, first_block);
        product.block_bytes = amx_block_bytes(first_row + row, x->num_rows);
        if (widening && left >= AMX_GROUP) amx_widen_beside_32(&product, sums, widening);
        else if (left > AMX_ROWS) amx_multiply_32(&product, sums);
        else amx_multiply_16(&product, sums);
        if (done) done->tell(done, row, next);
    }
    if (widening) end_widening(widening);
}

// Where to fetch from while steps from `first` on are widened, of which there are `steps`: what is so much further on, in the
// end of `later`.
static inline const uint8_t *ahead_of(const TwelvePart *part, long steps, const void *later) {
    const long left = steps - part->first;
    return left > FEW_ROWS_AHEAD ? part->steps + FEW_ROWS_AHEAD * STEP_BYTES : (const uint8_t *)later + (FEW_ROWS_AHEAD - left) * STEP_BYTES;
}

// Sums of 16 rows and 64 columns, or of 32 rows and 32 columns, `half` of them, which stay in registers all along K; a block is
// multiplied while the next one is widened. `panel` begins with the first of `steps`.
typedef struct {
    const char *x;       // of the first row
    long block_bytes;    // from one block of x to the next
    const TwelvePart *panel;
    long steps;
    const char *ahead;   // what is fetched meanwhile
    long lines;          // of it for each step
    uint32_t *words;     // room for two blocks
    int adds;            // to c
} AmxRun;

static inline __attribute__((always_inline)) void run_along(const AmxRun *run, float *c, const int is_half, const int half) {
    const long c_bytes = PANEL * 4, columns = is_half ? PANEL / 2 : PANEL, panel_bytes = columns * 4, quarter = AMX_STEPS / 4;
    const int num_vectors = is_half ? VECTORS / 2 : VECTORS, first_vector = half * VECTORS / 2;
    const TwelvePart part = *run->panel;  // whose numbers stay in registers, whatever is written
    const long end = part.first + run->steps, lines = run->lines;
    const char *x = run->x, *ahead = run->ahead;
    const uint8_t *step = part.steps;
    const Exception *exception = part.exception;
    uint32_t *words = run->words, *other = words + AMX_STEPS * columns;
    long number = part.first;
    float *lower = is_half ? c + AMX_ROWS * PANEL : c + 2 * AMX_COLUMNS;  // of the other two tiles of sums
    AMX_BEGIN_ALL(c, lower, c_bytes, run->adds);
#define WIDEN_STEPS(COUNT, TO)                                                                                  \
    do {                                                                                                        \
        uint32_t *to = TO;                                                                                      \
        for (const long stop = number + (COUNT) < end ? number + (COUNT) : end; number < stop; number++) {      \
            for (int line = 0; line < 2 && is_half; line++)                                                     \
                __builtin_prefetch(step + NEAR_TWELVE * STEP_BYTES + (line ? 2 : half) * 64);                   \
            for (int line = 0; line < STEP_LINES && !is_half; line++)                                           \
                __builtin_prefetch(step + NEAR_TWELVE * STEP_BYTES + line * 64);                                \
            if (lines > 0) __builtin_prefetch(ahead, 0, 2);                                                     \
            if (lines > 1) __builtin_prefetch(ahead + 64, 0, 2);                                                \
            if (lines > 2) __builtin_prefetch(ahead + 128, 0, 2);                                               \
            exception = write_vectors(step, number, exception, &part, to, first_vector, num_vectors);           \
            step += STEP_BYTES, ahead += lines * 64, to += columns;                                             \
        }                                                                                                       \
    } while (0)
#define WIDEN_QUARTER(QUARTER) WIDEN_STEPS(quarter, other + QUARTER * quarter * columns)
    WIDEN_STEPS(AMX_STEPS, words);
    for (long block = part.first; block < end; block += AMX_STEPS, x += run->block_bytes) {
        if (end - block < AMX_STEPS)  // the last one
            memset(words + (end - block) * columns, 0, (size_t)((AMX_STEPS - (end - block)) * columns) * sizeof *words);
        AMX_LOAD(4, x, AMX_ROW_BYTES);
        AMX_LOAD(6, words, panel_bytes);
        AMX_MULTIPLY(0, 4, 6);
        WIDEN_QUARTER(0);
        AMX_LOAD(7, words + AMX_COLUMNS, panel_bytes);
        AMX_MULTIPLY(1, 4, 7);
        WIDEN_QUARTER(1);
        if (is_half) {
            AMX_LOAD(5, x + AMX_ROWS * AMX_ROW_BYTES, AMX_ROW_BYTES);
            AMX_MULTIPLY(2, 5, 6);
            WIDEN_QUARTER(2);
            AMX_MULTIPLY(3, 5, 7);
            WIDEN_QUARTER(3);
        } else {
            AMX_LOAD(6, words + 2 * AMX_COLUMNS, panel_bytes);
            AMX_MULTIPLY(2, 4, 6);
            WIDEN_QUARTER(2);
            AMX_LOAD(7, words + 3 * AMX_COLUMNS, panel_bytes);
            AMX_MULTIPLY(3, 4, 7);
            WIDEN_QUARTER(3);
        }
        uint32_t *now = words;
        words = other, other = now;
    }
#undef WIDEN_QUARTER
#undef WIDEN_STEPS
    AMX_STORE_ALL(c, lower, c_bytes);
}

static void run_whole(const AmxRun *run, float *c) { run_along(run, c, 0, 0); }
static void run_first_half(const AmxRun *run, float *c) { run_along(run, c, 1, 0); }
static void run_last_half(const AmxRun *run, float *c) { run_along(run, c, 1, 1); }

// Up to FEW_ROWS: memory is slower than to widen a panel again for every 32 of them.
static void amx_few_rows(long num_rows, long steps, const AmxX *x, long first_row, TwelvePart *part, const void *later,
                         PanelScratch *scratch, const RowsDone *done) {
    const long num_runs = num_rows <= AMX_ROWS ? 1 : (num_rows + AMX_GROUP - 1) / AMX_GROUP * 2;
    for (long left = steps, count; left; left -= count, part->steps += count * STEP_BYTES, part->first += count) {
        count = left < SEGMENT_STEPS ? left : SEGMENT_STEPS;
        while (part->exception->step < part->first) part->exception++;
        AmxRun run = {.panel = part, .steps = count, .words = scratch->widened,
                      .ahead = left > count ? (const char *)part->steps + count * STEP_BYTES : later, .adds = left < steps};
        if (num_runs == 1) run.ahead = (const char *)part->steps + FEW_ROWS_AHEAD * STEP_BYTES;  // and beyond the panel
        long to_fetch = STEP_LINES;
        for (long nth = 0; nth < num_runs; nth++) {
            const long row = nth / 2 * AMX_GROUP;
            float *sums = scratch->sums + row * PANEL;
            run.x = amx_x(x, first_row + row, (steps - left) / AMX_STEPS);
            run.block_bytes = amx_block_bytes(first_row + row, x->num_rows);
            run.lines = (to_fetch + num_runs - nth - 1) / (num_runs - nth);
            if (num_runs == 1) run_whole(&run, sums);
            else if (nth % 2 == 0) run_first_half(&run, sums);
            else run_last_half(&run, sums + PANEL / 2);
            to_fetch -= run.lines, run.ahead += count * run.lines * 64;
        }
    }
    done->tell(done, 0, num_rows);
}

// scratch->sums[num_rows, 64] = rows of x from `first_row` on, which begins a group, times a panel. `later` is fetched in the end.
static void amx_twelve_product(long num_rows, long steps, const AmxX *x, long first_row, const TwelvePart *panel, const void *later,
                               PanelScratch *scratch, const RowsDone *done) {
    Widening widening = {.part = *panel};
    uint32_t *words = scratch->widened, *other = words + K_PART_STEPS * PANEL;
    AmxProduct product = {.row_bytes = AMX_ROW_BYTES, .c_bytes = PANEL * 4};
    if (num_rows <= FEW_ROWS) {
        amx_few_rows(num_rows, steps, x, first_row, &widening.part, later, scratch, done);
        return;
    }
    widening.part.ahead = ahead_of(panel, steps, later);
    widening.end = steps < K_PART_STEPS ? steps : K_PART_STEPS, widening.words = words;
    end_widening(&widening);
    for (long first = 0; first < steps;) {
        const long end = widening.end, left = steps - end;
        product.blocks = (end - first + AMX_STEPS - 1) / AMX_STEPS;
        product.words = words, product.adds = first > 0;
        widening.part.ahead = ahead_of(&widening.part, steps, later);
        widening.end = left < K_PART_STEPS ? steps : end + K_PART_STEPS, widening.words = other;
        amx_multiply(num_rows, x, first_row, first / AMX_STEPS, &product, scratch->sums, left ? &widening : NULL, left ? NULL : done);
        uint32_t *now = words;
        words = other, other = now, first = end;
    }
}

// The same of a panel of sixteen bits.
static void amx_dense_product(long num_rows, long steps, const AmxX *x, long first_row, const uint32_t *panel,
                              PanelScratch *scratch, const RowsDone *done) {
    AmxProduct product = {.row_bytes = AMX_ROW_BYTES, .c_bytes = PANEL * 4};
    for (long first = 0; first < steps; first += K_PART_STEPS) {
        const long left = steps - first, count = left < K_PART_STEPS ? left : K_PART_STEPS;
        product.blocks = (count + AMX_STEPS - 1) / AMX_STEPS;
        product.words = panel + first * PANEL, product.adds = first > 0;
        if (count % AMX_STEPS) {
            memset(scratch->widened, 0, (size_t)(product.blocks * AMX_STEPS * PANEL) * sizeof *panel);
            memcpy(scratch->widened, product.words, (size_t)(count * PANEL) * sizeof *panel);
            product.words = scratch->widened;
        }
        amx_multiply(num_rows, x, first_row, first / AMX_STEPS, &product, scratch->sums, NULL, left > count ? NULL : done);
    }
}

#endif
