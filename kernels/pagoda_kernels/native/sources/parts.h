// Tiles of parts of panels that were widened before, and x in the parts that those of floats take: [parts][rows][PART_WIDTH],
// of which the last part may have less than it has room for. A tile's rows follow one another, a constant distance apart,
// whatever K is: they have one address, lie in different sets of the first-level cache, and the next tile's are where the
// processor looks ahead. Pairs of x are multiplied where they lie: that costs nothing there.

#pragma once

#include "panels.h"

#define PART_WIDTH K_PART_STEPS  // numbers along K, floats of a panel as well
// Steps of a tile: what counts them, and asks for what is ahead, is a tenth of its instructions else.
#if TAKES_PAIRS
#define STEPS_TOGETHER 4
#elif defined(__FMA__) || defined(__aarch64__)
#define STEPS_TOGETHER 8
#else
#define STEPS_TOGETHER 2         // products need registers: of more GCC keeps sums in memory
#endif
// Of a part in twelve bits: a tile fetches no more.
#define PART_LINES (K_PART_STEPS * (1 + TAKES_PAIRS) * PANEL * 12 / 8 / 64)

// Numbers along K that are multiplied. What fills up a part is -0 in x and 0 in a panel: a sum stays what it is.
static inline long whole_turns(long width) { return (width + STEPS_TOGETHER - 1) / STEPS_TOGETHER * STEPS_TOGETHER; }

static inline long num_parts(long width) { return (width + PART_WIDTH - 1) / PART_WIDTH; }

// Row `row` of `num_rows`, of bf16, to its places in `x`.
static inline void copy_to_parts(const void *from, long width, float *x, long row, long num_rows) {
    for (long k = 0; k < width; k += PART_WIDTH) {
        const long left = width - k, count = left < PART_WIDTH ? left : PART_WIDTH;
        float *to = x + k * num_rows + row * PART_WIDTH;
        widen_numbers(at(from, k, 1), count, to);
        for (long i = count; i < whole_turns(count); i++) to[i] = -0.0f;
    }
}

// c[m, 64] (+)= rows of x, `x_stride` words apart, times a part of a panel, [steps, PANEL], both in whole turns. The part
// is in the first-level cache: nothing of it is asked for. Meanwhile memory is fetched from `ahead` on, as evenly as may be.
static inline __attribute__((always_inline)) void part_tile_of(
    const int num_rows, long steps, const uint32_t *x, long x_stride, const uint32_t *panel, float *c, const char *ahead,
    long ahead_bytes, int adds) {
    const int each = TILE_VECTORS(num_rows);
    const int lines = (PART_LINES * each / VECTORS * STEPS_TOGETHER + K_PART_STEPS - 1) / K_PART_STEPS;  // of a turn
    const long turns = steps / STEPS_TOGETHER, ahead_stride = (ahead_bytes * each / VECTORS + turns - 1) / turns;
    for (long first = 0; first < PANEL; first += each * LANES) {
        const uint32_t *words = panel + first, *from = x, *from3 = x + 3 * x_stride;  // two addresses, as in add_step
        const char *later = ahead + ahead_bytes * first / PANEL;
        vfloat sums[MAX_ROWS][VECTORS];
#pragma GCC unroll 6
        for (int m = 0; m < num_rows; m++)
#pragma GCC unroll 16
            for (int j = 0; j < each; j++)
                sums[m][j] = adds ? vload(c + m * PANEL + first + j * LANES) : (vfloat){};
        long left = turns;
        do {  // one at least: told so, GCC has registers enough
#pragma GCC unroll 12
            for (int line = 0; line < lines; line++) __builtin_prefetch(later + 64 * line, 0, 2);
            if (TAKES_PAIRS) __asm__("" : "+r"(from), "+r"(from3));
#pragma GCC unroll 8
            for (int k = 0; k < STEPS_TOGETHER; k++) {
                vuint w[VECTORS];
#pragma GCC unroll 16
                for (int j = 0; j < each; j++) {
                    w[j] = vload_bits(words + k * PANEL + j * LANES);
                    if (TAKES_PAIRS) stay_in_register(&w[j]);
                }
#pragma GCC unroll 6
                for (int m = 0; m < num_rows; m++)
#pragma GCC unroll 16
                    for (int j = 0; j < each; j++) {
                        const uint32_t *row = TAKES_PAIRS && m >= 3 ? from3 + (m - 3) * x_stride : from + m * x_stride;
                        add_product(&sums[m][j], row + k, w[j], 1);
                    }
            }
            words += STEPS_TOGETHER * PANEL, from += STEPS_TOGETHER, from3 += STEPS_TOGETHER, later += ahead_stride;
        } while (--left);
#pragma GCC unroll 6
        for (int m = 0; m < num_rows; m++)
#pragma GCC unroll 16
            for (int j = 0; j < each; j++) vstore(c + m * PANEL + first + j * LANES, sums[m][j]);
    }
}

typedef void (*PartTile)(long, const uint32_t *, long, const uint32_t *, float *, const char *, long, int);

#define PART_TILE(ROWS)                                                                                             \
    static void part_tile_##ROWS(long steps, const uint32_t *x, long x_stride, const uint32_t *panel, float *c,      \
                                 const char *ahead, long ahead_bytes, int adds) {                                   \
        part_tile_of(ROWS, steps, x, TAKES_PAIRS ? x_stride : PART_WIDTH, panel, c, ahead, ahead_bytes, adds);      \
    }
PART_TILE(3) PART_TILE(4) PART_TILE(5) PART_TILE(6)
static const PartTile PART_TILE_FUNCTIONS[MAX_ROWS] = {  // [rows - 1]; of several tiles each has three rows at least
    NULL, NULL, part_tile_3, part_tile_4, part_tile_5, part_tile_6};
