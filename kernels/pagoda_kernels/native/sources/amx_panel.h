// The products of one panel by AMX (amx.h), of any number of rows.
//
// A panel in twelve bits is widened in parts, each while the one before is multiplied: some steps beside each tile of sums, so
// that the units for vectors, those for tiles, and memory are busy all the time.

#pragma once

#include "amx.h"
#include "quantised.h"
#include "twelve_bits.h"

#if TAKES_AMX

// Steps of a part. Two parts in the first-level cache are worth more than sums that are loaded less often, up to FEW_ROWS.
#define FEW_ROWS 96
#define PART_STEPS(rows) ((rows) <= FEW_ROWS ? 32 : K_PART_STEPS)
#define SHARE_BITS 16  // behind the point, of steps to be widened

// What is widened meanwhile.
typedef struct {
    TwelvePart part;  // from the first step on that is not yet
    long end;         // step
    uint32_t *words;  // of that first step
    long share;       // of the steps, each time; in fixed point
    long due;         // so: the rest of the shares so far
} Widening;

// Of steps up to `end`, by so many shares.
static inline void begin_widening(Widening *widening, long end, uint32_t *words, long num_shares) {
    widening->end = end, widening->words = words, widening->due = 0;
    widening->share = (((end - widening->part.first) << SHARE_BITS) + num_shares - 1) / num_shares;
}

static inline __attribute__((always_inline)) void widen_steps(Widening *widening, long count) {
    const TwelvePart part = widening->part;  // whose numbers stay in registers, whatever is written
    const long left = widening->end - part.first;
    const uint8_t *step = part.steps, *ahead = part.ahead;
    const Exception *exception = part.exception;
    uint32_t *words = widening->words;
    if (count > left) count = left;
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
    widen_steps(widening, widening->due >> SHARE_BITS);
    widening->due &= (1 << SHARE_BITS) - 1;
}

// Widen what is left, and fill up the last block with zeros.
static inline void end_widening(Widening *widening) {
    widen_steps(widening, widening->end);
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

// c[16, 64] (+)= 16 rows.
static inline __attribute__((always_inline)) void amx_16(const AmxProduct *of, float *c, Widening *widening) {
    const long panel_bytes = PANEL * 4, c_bytes = of->c_bytes;
    const char *x = of->x;
    const uint32_t *words = of->words;
    AMX_BEGIN(0, c, c_bytes, of->adds);
    AMX_BEGIN(1, c + AMX_COLUMNS, c_bytes, of->adds);
    AMX_BEGIN(2, c + 2 * AMX_COLUMNS, c_bytes, of->adds);
    AMX_BEGIN(3, c + 3 * AMX_COLUMNS, c_bytes, of->adds);
    for (long block = 0; block < of->blocks; block++) {
        AMX_LOAD(4, x, of->row_bytes);
        AMX_LOAD(6, words, panel_bytes);
        AMX_MULTIPLY(0, 4, 6);
        AMX_LOAD(7, words + AMX_COLUMNS, panel_bytes);
        AMX_MULTIPLY(1, 4, 7);
        if (widening) widen_share(widening);
        AMX_LOAD(6, words + 2 * AMX_COLUMNS, panel_bytes);
        AMX_MULTIPLY(2, 4, 6);
        AMX_LOAD(7, words + 3 * AMX_COLUMNS, panel_bytes);
        AMX_MULTIPLY(3, 4, 7);
        if (widening) widen_share(widening);
        x += of->block_bytes, words += AMX_STEPS * PANEL;
    }
    AMX_STORE(0, c, c_bytes);
    AMX_STORE(1, c + AMX_COLUMNS, c_bytes);
    AMX_STORE(2, c + 2 * AMX_COLUMNS, c_bytes);
    AMX_STORE(3, c + 3 * AMX_COLUMNS, c_bytes);
}

// c[32, 64] (+)= 32 rows, half of the columns after the other: each tile that is loaded is multiplied twice.
static inline __attribute__((always_inline)) void amx_32(const AmxProduct *of, float *c, Widening *widening) {
    const long panel_bytes = PANEL * 4, c_bytes = of->c_bytes;
    for (int half = 0; half < 2; half++, c += PANEL / 2) {
        float *lower = c + AMX_ROWS * c_bytes / 4;
        const char *x = of->x, *x_lower = x + AMX_ROWS * of->row_bytes;
        const uint32_t *words = of->words + half * PANEL / 2;
        AMX_BEGIN(0, c, c_bytes, of->adds);
        AMX_BEGIN(1, c + AMX_COLUMNS, c_bytes, of->adds);
        AMX_BEGIN(2, lower, c_bytes, of->adds);
        AMX_BEGIN(3, lower + AMX_COLUMNS, c_bytes, of->adds);
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
            if (widening) widen_share(widening);
            x += of->block_bytes, x_lower += of->block_bytes, words += AMX_STEPS * PANEL;
        }
        AMX_STORE(0, c, c_bytes);
        AMX_STORE(1, c + AMX_COLUMNS, c_bytes);
        AMX_STORE(2, lower, c_bytes);
        AMX_STORE(3, lower + AMX_COLUMNS, c_bytes);
    }
}

static void amx_multiply_16(const AmxProduct *of, float *c) { amx_16(of, c, NULL); }
static void amx_multiply_32(const AmxProduct *of, float *c) { amx_32(of, c, NULL); }
static void amx_widen_beside_16(const AmxProduct *of, float *c, Widening *widening) { amx_16(of, c, widening); }
static void amx_widen_beside_32(const AmxProduct *of, float *c, Widening *widening) { amx_32(of, c, widening); }

// Shares that are widened beside so many rows and blocks: two for each block of each of these.
static inline long shares_of(long num_rows, long blocks) {
    const long sixteens = (num_rows + AMX_ROWS - 1) / AMX_ROWS;
    return 2 * blocks * sixteens;
}

// c[rows, 64] (+)= all rows, and what is made of the rows behind them up to a multiple of 32. widening: NULL, or what is
// widened meanwhile. done: told of rows; NULL: there is more to be added to them.
static inline void amx_multiply(long num_rows, const AmxProduct *of, float *c, Widening *widening, const RowsDone *done) {
    AmxProduct product = *of;
    for (long row = 0, next; row < num_rows; row = next) {
        const int is_sixteen = num_rows - row <= AMX_ROWS;
        next = row + (is_sixteen ? AMX_ROWS : 2 * AMX_ROWS);
        product.x = of->x + row * of->row_bytes;
        float *sums = c + row * of->c_bytes / 4;
        if (!widening) is_sixteen ? amx_multiply_16(&product, sums) : amx_multiply_32(&product, sums);
        else is_sixteen ? amx_widen_beside_16(&product, sums, widening) : amx_widen_beside_32(&product, sums, widening);
        if (done) done->tell(done, row, next < num_rows ? next : num_rows);
    }
}

// Where to fetch from while steps from `first` on are widened, of which there are `steps`: what is so much further on, in the
// end of `later`.
static inline const uint8_t *ahead_of(const TwelvePart *part, long steps, const void *later) {
    const long left = steps - part->first;
    return left > FEW_ROWS_AHEAD ? part->steps + FEW_ROWS_AHEAD * STEP_BYTES : (const uint8_t *)later + (FEW_ROWS_AHEAD - left) * STEP_BYTES;
}

// c[16, 64] = up to 16 rows, whose sums stay in registers all along K. Parts are blocks.
static void amx_few_rows(long steps, const AmxProduct *of, Widening *widening, const void *later, uint32_t *words, float *c) {
    const long panel_bytes = PANEL * 4;
    const char *x = of->x;
    uint32_t *other = words + AMX_STEPS * PANEL;
    AMX_ZERO(0);
    AMX_ZERO(1);
    AMX_ZERO(2);
    AMX_ZERO(3);
    begin_widening(widening, steps < AMX_STEPS ? steps : AMX_STEPS, words, 1);
    end_widening(widening);
#define MULTIPLY_AND_WIDEN(COLUMNS, WEIGHTS)                       \
    AMX_LOAD(WEIGHTS, words + COLUMNS * AMX_COLUMNS, panel_bytes); \
    AMX_MULTIPLY(COLUMNS, 4, WEIGHTS);                             \
    widen_steps(widening, AMX_STEPS / 4);
    for (int is_last = 0; !is_last; x += of->block_bytes) {
        const long left = steps - widening->end;
        is_last = !left;
        widening->part.ahead = ahead_of(&widening->part, steps, later);
        widening->words = other, widening->end += left < AMX_STEPS ? left : AMX_STEPS;
        AMX_LOAD(4, x, of->row_bytes);
        MULTIPLY_AND_WIDEN(0, 6)
        MULTIPLY_AND_WIDEN(1, 7)
        MULTIPLY_AND_WIDEN(2, 6)
        MULTIPLY_AND_WIDEN(3, 7)
        if (left < AMX_STEPS) end_widening(widening);
        uint32_t *now = words;
        words = other, other = now;
    }
#undef MULTIPLY_AND_WIDEN
    AMX_STORE(0, c, panel_bytes);
    AMX_STORE(1, c + AMX_COLUMNS, panel_bytes);
    AMX_STORE(2, c + 2 * AMX_COLUMNS, panel_bytes);
    AMX_STORE(3, c + 3 * AMX_COLUMNS, panel_bytes);
}

// scratch->sums[num_rows, 64] = rows of x, in blocks of x_rows rows, times a panel. `later` is fetched in the end.
static void amx_twelve_product(long num_rows, long steps, const char *x, long x_rows, const TwelvePart *panel, const void *later,
                               PanelScratch *scratch, const RowsDone *done) {
    const long most = PART_STEPS(num_rows);
    Widening widening = {.part = *panel};
    uint32_t *words = scratch->widened, *other = words + most * PANEL;
    AmxProduct product = {.x = x, .row_bytes = AMX_ROW_BYTES, .block_bytes = x_rows * AMX_ROW_BYTES, .c_bytes = PANEL * 4};
    widening.part.ahead = ahead_of(panel, steps, later);
    if (num_rows <= AMX_ROWS) {
        amx_few_rows(steps, &product, &widening, later, words, scratch->sums);
        done->tell(done, 0, num_rows);
        return;
    }
    begin_widening(&widening, steps < most ? steps : most, words, 1);
    end_widening(&widening);
    for (long first = 0; first < steps;) {
        const long end = widening.end, left = steps - end;
        product.blocks = (end - first + AMX_STEPS - 1) / AMX_STEPS;
        product.words = words, product.adds = first > 0;
        if (left) {
            widening.part.ahead = ahead_of(&widening.part, steps, later);
            begin_widening(&widening, left < most ? steps : end + most, other, shares_of(num_rows, product.blocks));
        }
        amx_multiply(num_rows, &product, scratch->sums, left ? &widening : NULL, left ? NULL : done);
        if (left) end_widening(&widening);
        product.x += product.blocks * product.block_bytes;
        uint32_t *now = words;
        words = other, other = now, first = end;
    }
}

// The same of a panel of sixteen bits.
static void amx_dense_product(long num_rows, long steps, const char *x, long x_rows, const uint32_t *panel,
                              PanelScratch *scratch, const RowsDone *done) {
    AmxProduct product = {.x = x, .row_bytes = AMX_ROW_BYTES, .block_bytes = x_rows * AMX_ROW_BYTES, .c_bytes = PANEL * 4};
    for (long first = 0; first < steps; first += K_PART_STEPS, product.x += product.blocks * product.block_bytes) {
        const long left = steps - first, count = left < K_PART_STEPS ? left : K_PART_STEPS;
        product.blocks = (count + AMX_STEPS - 1) / AMX_STEPS;
        product.words = panel + first * PANEL, product.adds = first > 0;
        if (count % AMX_STEPS) {
            memset(scratch->widened, 0, (size_t)(product.blocks * AMX_STEPS * PANEL) * sizeof *panel);
            memcpy(scratch->widened, product.words, (size_t)(count * PANEL) * sizeof *panel);
            product.words = scratch->widened;
        }
        amx_multiply(num_rows, &product, scratch->sums, NULL, left > count ? NULL : done);
    }
}

#endif
