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
#define SEGMENT_STEPS 64  // of a panel, 16 KiB once they are widened: they stay in the first-level cache, and so do as many of x

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

// Widen a quarter of a block, or what is left.
static inline __attribute__((always_inline)) void widen_quarter(Widening *widening) {
    const long left = widening->end - widening->part.first;
    widen_steps(widening, left < AMX_STEPS / 4 ? left : AMX_STEPS / 4);
}

// scratch->sums[16, 64] of up to 16 rows, which stay in registers all along K. A block is multiplied while the next one is widened.
static void amx_16_along(long steps, const char *x, long block_bytes, const TwelvePart *panel, PanelScratch *scratch) {
    const long panel_bytes = PANEL * 4;
    uint32_t *words = scratch->widened, *other = words + AMX_STEPS * PANEL;
    float *c = scratch->sums;
    Widening widening = {.part = *panel, .end = steps, .words = words};
    widening.part.ahead = panel->steps + FEW_ROWS_AHEAD * STEP_BYTES;  // and beyond the panel
    AMX_BEGIN_ALL(c, c + 2 * AMX_COLUMNS, panel_bytes, 0);
    for (int quarter = 0; quarter < 4; quarter++) widen_quarter(&widening);
    for (long block = 0; block < steps; block += AMX_STEPS, x += block_bytes) {
        if (steps - block < AMX_STEPS)  // the last one
            memset(words + (steps - block) * PANEL, 0, (size_t)((AMX_STEPS - (steps - block)) * PANEL) * sizeof *words);
        widening.words = other;
        AMX_LOAD(4, x, AMX_ROW_BYTES);
        AMX_LOAD(6, words, panel_bytes);
        AMX_MULTIPLY(0, 4, 6);
        widen_quarter(&widening);
        AMX_LOAD(7, words + AMX_COLUMNS, panel_bytes);
        AMX_MULTIPLY(1, 4, 7);
        widen_quarter(&widening);
        AMX_LOAD(6, words + 2 * AMX_COLUMNS, panel_bytes);
        AMX_MULTIPLY(2, 4, 6);
        widen_quarter(&widening);
        AMX_LOAD(7, words + 3 * AMX_COLUMNS, panel_bytes);
        AMX_MULTIPLY(3, 4, 7);
        widen_quarter(&widening);
        uint32_t *now = words;
        words = other, other = now;
    }
    AMX_STORE_ALL(c, c + 2 * AMX_COLUMNS, panel_bytes);
}

typedef struct {
    const uint8_t *step;         // the next one
    long number;                 // which it is
    const Exception *exception;  // the first one of it, or behind it
} PanelPlace;

// How far a panel is widened: a segment at a time, half of its columns and then the other, and both again for each 32 rows.
typedef struct {
    PanelPlace at, segment;  // what comes next; where its segment begins
    long segment_end, end;   // steps
    long half, passes;       // of the columns; over the segment, this one and those that follow
    const uint8_t *ahead;    // what is fetched meanwhile
    const void *later;       // so, when the panel ends
} Halves;

static inline __attribute__((always_inline)) void begin_segment(Halves *halves, const int num_passes) {
    const long left = halves->end - halves->at.number;
    halves->segment = halves->at, halves->half = 0, halves->passes = num_passes;
    halves->segment_end = left > SEGMENT_STEPS ? halves->at.number + SEGMENT_STEPS : halves->end;
    halves->ahead = left > SEGMENT_STEPS ? halves->at.step + SEGMENT_STEPS * STEP_BYTES : halves->later;
}

// Half of a step, but for its exceptions (write_step).
static inline __attribute__((always_inline)) void write_half_step(const uint8_t *step, long half, const TwelvePart *part, uint32_t *words) {
    const uint8_t *low_bytes = step + half * 64, *codes = step + PANEL * 2;
    __builtin_prefetch(low_bytes + NEAR_TWELVE * STEP_BYTES);
    __builtin_prefetch(codes + NEAR_TWELVE * STEP_BYTES);
    const vuint shift = (vuint){} + 4 * (uint32_t)half;
    const vuint low = vload_bits(low_bytes), high = vlook_up(part->table, vload_bits(codes) >> shift & part->nibbles);
    vstore_bits(words, vjoin_first(low, high));
    vstore_bits(words + LANES, vjoin_last(low, high));
}

// Widen a quarter of a block, with zeros behind K, and return where it ends. All passes together fetch as much as they widen.
static inline __attribute__((always_inline)) uint32_t *widen_half_quarter(
    Halves *halves, const TwelvePart *part, uint32_t *words, const int num_passes) {
    const long columns = PANEL / 2, quarter = AMX_STEPS / 4, half = halves->half, number = halves->at.number;
    const long count = halves->end - number < quarter ? halves->end - number : quarter;
    const uint8_t *step = halves->at.step;
    if (__builtin_expect(count == quarter, 1)) {
        const int lines = (int)quarter * STEP_LINES / num_passes;
#pragma GCC unroll 4
        for (int i = 0; i < quarter; i++) {
#pragma GCC unroll 4
            for (int line = lines * i / 4; line < lines * (i + 1) / 4; line++) __builtin_prefetch(halves->ahead + line * 64, 0, 2);
            write_half_step(step + i * STEP_BYTES, half, part, words + i * columns);
        }
        halves->ahead += lines * 64;
    } else {
        for (long i = 0; i < count; i++) write_half_step(step + i * STEP_BYTES, half, part, words + i * columns);
        memset(words + count * columns, 0, (size_t)((quarter - count) * columns) * sizeof *words);
    }
    const Exception *exception = halves->at.exception;
    for (; __builtin_expect(exception->step < number + count, 0); exception++) {
        const long place = exception->place - half * 2 * columns;
        if (place >= 0 && place < 2 * columns) ((uint16_t *)(words + (exception->step - number) * columns))[place] = exception->value;
    }
    halves->at = (PanelPlace){step + count * STEP_BYTES, number + count, exception};
    return words + quarter * columns;
}

// Where to go on behind a block.
static inline __attribute__((always_inline)) void turn_over(Halves *halves, const int num_passes) {
    if (halves->at.number < halves->segment_end) return;
    if (--halves->passes) halves->at = halves->segment, halves->half ^= 1;
    else begin_segment(halves, num_passes);
}

// scratch->sums[rows, 64] of `num_groups` times 32 rows. A block of half the columns is multiplied while the next one is widened.
// Sums leave their registers behind each segment, so that what the other half and more rows read again is still in the first-level
// cache: while memory is read, lines from the second one come as an addition to its time.
static inline __attribute__((always_inline)) void amx_halves(
    const int num_groups, long steps, const AmxX *x, long first_row, const TwelvePart *panel, const void *later, PanelScratch *scratch) {
    const TwelvePart part = *panel;  // whose numbers stay in registers, whatever is written
    const int num_passes = 2 * num_groups;
    const long columns = PANEL / 2, half_bytes = columns * 4, c_bytes = PANEL * 4;
    uint32_t *words = scratch->widened, *other = words + AMX_STEPS * columns;
    Halves halves = {.at = {part.steps, 0, part.exception}, .end = steps, .later = later};
    begin_segment(&halves, num_passes);
#define WIDEN_QUARTER to = widen_half_quarter(&halves, &part, to, num_passes)
    uint32_t *to = words;
    WIDEN_QUARTER; WIDEN_QUARTER; WIDEN_QUARTER; WIDEN_QUARTER;
    turn_over(&halves, num_passes);
    for (long first = 0; first < steps; first += SEGMENT_STEPS) {
        const long left = steps - first, blocks = ((left < SEGMENT_STEPS ? left : SEGMENT_STEPS) + AMX_STEPS - 1) / AMX_STEPS;
        for (long pass = 0; pass < num_passes; pass++) {
            const long row = pass / 2 * AMX_GROUP, block_bytes = amx_block_bytes(first_row + row, x->num_rows);
            const char *from = amx_x(x, first_row + row, first / AMX_STEPS);
            float *c = scratch->sums + row * PANEL + pass % 2 * columns, *lower = c + AMX_ROWS * PANEL;
            AMX_BEGIN_ALL(c, lower, c_bytes, first > 0);
            for (long block = 0; block < blocks; block++, from += block_bytes) {
                to = other;
                AMX_LOAD(4, from, AMX_ROW_BYTES);
                AMX_LOAD(6, words, half_bytes);
                AMX_MULTIPLY(0, 4, 6);
                WIDEN_QUARTER;
                AMX_LOAD(7, words + AMX_COLUMNS, half_bytes);
                AMX_MULTIPLY(1, 4, 7);
                WIDEN_QUARTER;
                AMX_LOAD(5, from + AMX_ROWS * AMX_ROW_BYTES, AMX_ROW_BYTES);
                AMX_MULTIPLY(2, 5, 6);
                WIDEN_QUARTER;
                AMX_MULTIPLY(3, 5, 7);
                WIDEN_QUARTER;
                turn_over(&halves, num_passes);
                other = words, words = to - AMX_STEPS * columns;
            }
            AMX_STORE_ALL(c, lower, c_bytes);
        }
    }
#undef WIDEN_QUARTER
}

static void amx_halves_32(long steps, const AmxX *x, long first_row, const TwelvePart *panel, const void *later, PanelScratch *scratch) {
    amx_halves(1, steps, x, first_row, panel, later, scratch);
}
static void amx_halves_64(long steps, const AmxX *x, long first_row, const TwelvePart *panel, const void *later, PanelScratch *scratch) {
    amx_halves(2, steps, x, first_row, panel, later, scratch);
}

// scratch->sums[num_rows, 64] = rows of x from `first_row` on, which begins a group, times a panel. `later` is fetched in the end.
static void amx_twelve_product(long num_rows, long steps, const AmxX *x, long first_row, const TwelvePart *panel, const void *later,
                               PanelScratch *scratch, const RowsDone *done) {
    Widening widening = {.part = *panel};
    uint32_t *words = scratch->widened, *other = words + SEGMENT_STEPS * PANEL;
    AmxProduct product = {.row_bytes = AMX_ROW_BYTES, .c_bytes = PANEL * 4};
    if (num_rows <= FEW_ROWS) {  // memory is slower than to widen a panel again for every 32 of them
        if (num_rows <= AMX_ROWS) amx_16_along(steps, amx_x(x, first_row, 0), amx_block_bytes(first_row, x->num_rows), panel, scratch);
        else (num_rows <= AMX_GROUP ? amx_halves_32 : amx_halves_64)(steps, x, first_row, panel, later, scratch);
        done->tell(done, 0, num_rows);
        return;
    }
    widening.part.ahead = ahead_of(panel, steps, later);
    widening.end = steps < SEGMENT_STEPS ? steps : SEGMENT_STEPS, widening.words = words;
    end_widening(&widening);
    for (long first = 0; first < steps;) {
        const long end = widening.end, left = steps - end;
        product.blocks = (end - first + AMX_STEPS - 1) / AMX_STEPS;
        product.words = words, product.adds = first > 0;
        widening.part.ahead = ahead_of(&widening.part, steps, later);
        widening.end = left < SEGMENT_STEPS ? steps : end + SEGMENT_STEPS, widening.words = other;
        amx_multiply(num_rows, x, first_row, first / AMX_STEPS, &product, scratch->sums, left ? &widening : NULL, left ? NULL : done);
        uint32_t *now = words;
        words = other, other = now, first = end;
    }
}

// The same of a panel of sixteen bits.
static void amx_dense_product(long num_rows, long steps, const AmxX *x, long first_row, const uint32_t *panel,
                              PanelScratch *scratch, const RowsDone *done) {
    AmxProduct product = {.row_bytes = AMX_ROW_BYTES, .c_bytes = PANEL * 4};
    for (long first = 0; first < steps; first += SEGMENT_STEPS) {
        const long left = steps - first, count = left < SEGMENT_STEPS ? left : SEGMENT_STEPS;
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
