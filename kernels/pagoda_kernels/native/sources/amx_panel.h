// The products of one panel by AMX (amx.h). A panel in twelve bits is widened a part at a time, into the first-level cache,
// for all rows; for a few rows a block at a time, while the one before is multiplied.

#pragma once

#include "amx.h"
#include "quantised.h"
#include "twelve_bits.h"

#if TAKES_AMX

// Write `count` steps from `part->steps` on, and fill up the last block with zeros. Meanwhile `ahead` is fetched.
static inline __attribute__((always_inline)) void write_blocks(TwelvePart *part, long count, const char *ahead, uint32_t *words) {
    const TwelvePart constants = *part;  // nobody else's, so that they stay in registers
    const uint8_t *step = part->steps;
    const Exception *exception = part->exception;
    const long end = part->first + count;
    for (long number = part->first; number < end; number++) {
#pragma GCC unroll 3
        for (int line = 0; line < STEP_LINES; line++) {
            __builtin_prefetch(step + NEAR_TWELVE * STEP_BYTES + line * 64);
            if (ahead) __builtin_prefetch(ahead + line * 64, 0, 2);
        }
        exception = write_step(step, number, exception, &constants, words);
        step += STEP_BYTES, words += PANEL;
        if (ahead) ahead += STEP_BYTES;
    }
    const long missing = (AMX_STEPS - count % AMX_STEPS) % AMX_STEPS;
    if (missing) memset(words, 0, (size_t)(missing * PANEL) * sizeof *words);
    part->steps = step, part->first = end, part->exception = exception;
}

// Up to 16 rows, whose sums stay in registers all along K.
static void amx_few_rows(long steps, const char *x, long block_bytes, TwelvePart *part, const void *later, PanelScratch *scratch) {
    const long panel_bytes = PANEL * 4;
    uint32_t *words = scratch->widened, *other = words + AMX_STEPS * PANEL;
    const uint8_t *end = part->steps + steps * STEP_BYTES;
    AMX_ZERO(0);
    AMX_ZERO(1);
    AMX_ZERO(2);
    AMX_ZERO(3);
    write_blocks(part, steps < AMX_STEPS ? steps : AMX_STEPS, NULL, words);
    for (long begin = 0; begin < steps; begin += AMX_STEPS, x += block_bytes) {
        const long left = steps - part->first;
        if (left > 0) {
            const uint8_t *ahead = part->steps + FEW_ROWS_AHEAD * STEP_BYTES;
            write_blocks(part, left < AMX_STEPS ? left : AMX_STEPS,
                         (const char *)(ahead < end ? ahead : (const uint8_t *)later + (ahead - end)), other);
        }
        AMX_LOAD(4, x, AMX_ROW_BYTES);
        AMX_LOAD(6, words, panel_bytes);
        AMX_MULTIPLY(0, 4, 6);
        AMX_LOAD(7, words + AMX_COLUMNS, panel_bytes);
        AMX_MULTIPLY(1, 4, 7);
        AMX_LOAD(6, words + 2 * AMX_COLUMNS, panel_bytes);
        AMX_MULTIPLY(2, 4, 6);
        AMX_LOAD(7, words + 3 * AMX_COLUMNS, panel_bytes);
        AMX_MULTIPLY(3, 4, 7);
        uint32_t *now = words;
        words = other, other = now;
    }
    float *sums = scratch->sums;
    AMX_STORE(0, sums, panel_bytes);
    AMX_STORE(1, sums + AMX_COLUMNS, panel_bytes);
    AMX_STORE(2, sums + 2 * AMX_COLUMNS, panel_bytes);
    AMX_STORE(3, sums + 3 * AMX_COLUMNS, panel_bytes);
}

// scratch->sums[num_rows, 64] (+)= rows of x times blocks of a panel that are widened already. `ahead_bytes` of `ahead` are
// fetched meanwhile. done: told of rows; NULL: there is more to be added to them.
static void amx_all_rows(long num_rows, AmxProduct *product, long ahead_bytes, PanelScratch *scratch, int adds, const RowsDone *done) {
    const long pairs = (num_rows + 2 * AMX_ROWS - 1) / (2 * AMX_ROWS);
    product->ahead_bytes = (ahead_bytes / (2 * pairs * product->blocks) + 63) / 64 * 64;
    const char *end = product->ahead + ahead_bytes;
    for (long row = 0, next; row < num_rows; row = next) {
        float *sums = scratch->sums + row * PANEL;
        if (num_rows - row > AMX_ROWS) {
            next = row + 2 * AMX_ROWS;
            amx_two_rows(product, sums, PANEL * 4, adds);
            product->ahead += product->blocks * product->ahead_bytes;
        } else {
            next = row + AMX_ROWS;
            amx_rows(product, sums, PANEL * 4, adds);
        }
        product->ahead += product->blocks * product->ahead_bytes;
        if (product->ahead >= end) product->ahead_bytes = 0;
        product->x += 2 * AMX_ROWS * product->row_bytes;
        if (done) done->tell(done, row, next < num_rows ? next : num_rows);
    }
}

// scratch->sums[num_rows, 64] = rows of x, in blocks of x_rows rows, times a panel. `later` is fetched meanwhile.
static void amx_twelve_product(long num_rows, long steps, const char *x, long x_rows, TwelvePart *part, const void *later,
                               PanelScratch *scratch, const RowsDone *done) {
    const long block_bytes = x_rows * AMX_ROW_BYTES;
    if (num_rows <= AMX_ROWS) {
        amx_few_rows(steps, x, block_bytes, part, later, scratch);
        done->tell(done, 0, num_rows);
        return;
    }
    for (long first = 0; first < steps; first += K_PART_STEPS, x += K_PART_STEPS / AMX_STEPS * block_bytes) {
        const long left = steps - first, count = left < K_PART_STEPS ? left : K_PART_STEPS;
        write_blocks(part, count, NULL, scratch->widened);
        AmxProduct product = {.x = x, .row_bytes = AMX_ROW_BYTES, .block_bytes = block_bytes, .words = scratch->widened,
                              .blocks = (count + AMX_STEPS - 1) / AMX_STEPS,
                              .ahead = left > count ? (const char *)part->steps : later};
        amx_all_rows(num_rows, &product, K_PART_STEPS * STEP_BYTES, scratch, first > 0, left > count ? NULL : done);
    }
}

// The same of a panel of sixteen bits.
static void amx_dense_product(long num_rows, long steps, const char *x, long x_rows, const uint32_t *panel, const void *later,
                              PanelScratch *scratch, const RowsDone *done) {
    const long block_bytes = x_rows * AMX_ROW_BYTES;
    for (long first = 0; first < steps; first += K_PART_STEPS, x += K_PART_STEPS / AMX_STEPS * block_bytes) {
        const long left = steps - first, count = left < K_PART_STEPS ? left : K_PART_STEPS;
        const long blocks = (count + AMX_STEPS - 1) / AMX_STEPS;
        const uint32_t *words = panel + first * PANEL;
        if (count % AMX_STEPS) {
            memset(scratch->widened, 0, (size_t)(blocks * AMX_STEPS * PANEL) * sizeof *words);
            memcpy(scratch->widened, words, (size_t)(count * PANEL) * sizeof *words);
            words = scratch->widened;
        }
        AmxProduct product = {.x = x, .row_bytes = AMX_ROW_BYTES, .block_bytes = block_bytes, .words = words, .blocks = blocks,
                              .ahead = left > count ? (const char *)(panel + (first + count) * PANEL) : later};
        amx_all_rows(num_rows, &product, K_PART_STEPS * PANEL * 4, scratch, first > 0, left > count ? NULL : done);
    }
}

#endif
