// Attention's products by AMX (amx.h): queries times keys, and weights times values, of a tile of 64 keys.
//
// Rows of Q and of weights lie one behind another, blocks of a row side by side. Four groups of 16 packed keys are four
// tiles of weights as they are; values are copied into a panel, whose tiles have 32 keys.

#pragma once

#include "amx_panel.h"
#include "weighing.h"

#define V_PANEL_WORDS (PANEL / 2 * PANEL)  // 32 pairs of keys, 64 columns

#if TAKES_AMX

// scores[rows, 64] of q [rows][blocks of 32 numbers]; meanwhile memory is asked for `later` groups.
static inline void amx_scores(long num_rows, long steps, const uint32_t *q, const uint32_t *const *groups,
                              const uint32_t *const *later, float *scores) {
    const long q_bytes = steps * 4, c_bytes = PANEL * 4;
    for (long row = 0; row < num_rows; row += AMX_ROWS) {
        const uint32_t *x = q + row * steps;
        float *c = scores + row * PANEL;
        AMX_BEGIN_ALL(c, c, c_bytes, 0);
        for (long step = 0; step < steps; step += AMX_STEPS) {
            const long at = step * AMX_COLUMNS;
            for (int g = 0; g < 4 && !row; g++)
                for (int i = 0; i < AMX_STEPS; i++) __builtin_prefetch(later[g] + at + i * AMX_COLUMNS, 0, 2);
            AMX_LOAD(4, x + step, q_bytes);
            AMX_LOAD(6, groups[0] + at, AMX_ROW_BYTES);
            AMX_MULTIPLY(0, 4, 6);
            AMX_LOAD(7, groups[1] + at, AMX_ROW_BYTES);
            AMX_MULTIPLY(1, 4, 7);
            AMX_LOAD(6, groups[2] + at, AMX_ROW_BYTES);
            AMX_MULTIPLY(2, 4, 6);
            AMX_LOAD(7, groups[3] + at, AMX_ROW_BYTES);
            AMX_MULTIPLY(3, 4, 7);
        }
        AMX_STORE_ALL(c, c + 2 * AMX_COLUMNS, c_bytes);
    }
}

// c[rows, 64] (+)= rows of x times `blocks` of a panel; x_stride, c_stride: words from one row to the next. Nothing behind
// the rows of c is written: those of other sequences are there. Registers are for 16 rows, or for these.
static inline void amx_attended(long num_rows, long blocks, const uint32_t *x, long x_stride, const uint32_t *panel, float *c,
                                long c_stride, int adds) {
    AmxProduct product = {.x = (const char *)x, .row_bytes = x_stride * 4, .block_bytes = AMX_ROW_BYTES, .words = panel,
                          .blocks = blocks, .c_bytes = c_stride * 4, .adds = adds};
    if (num_rows < AMX_ROWS) {
        amx_multiply_16(&product, c);
        return;
    }
    long left = num_rows;
    for (; left >= AMX_GROUP; left -= AMX_GROUP) {
        amx_multiply_32(&product, c);
        product.x += AMX_GROUP * product.row_bytes, c += AMX_GROUP * c_stride;
    }
    if (left >= AMX_ROWS) {
        amx_multiply_16(&product, c);
        product.x += AMX_ROWS * product.row_bytes, c += AMX_ROWS * c_stride, left -= AMX_ROWS;
    }
    if (!left) return;
    float some[AMX_ROWS * PANEL];
    product.c_bytes = PANEL * 4;
    for (long m = 0; m < left && adds; m++) memcpy(some + m * PANEL, c + m * c_stride, PANEL * 4);
    amx_multiply_16(&product, some);
    for (long m = 0; m < left; m++) memcpy(c + m * c_stride, some + m * PANEL, PANEL * 4);
}

// Scores of 16 rows with one tile's keys.
typedef struct {
    const uint32_t *q;               // [16, steps]
    long steps;
    const uint32_t *const *groups;   // of K
    const uint32_t *const *later;    // groups that memory is asked for, or NULL
    float *scores;                   // [16, 64]
} AmxScores;

// What 16 rows attend to of one tile.
typedef struct {
    const uint32_t *weights;  // [16, 32 pairs of keys]
    const uint32_t *panels;   // of V
    float *sums;              // [16, columns]
    long columns;
} AmxValues;

// Half of the tile's keys: sums are in two registers until they are stored.
static inline __attribute__((always_inline)) void amx_begin_scores(const AmxScores *of, long half) {
    const uint32_t *const *groups = of->groups + 2 * half;
    AMX_ZERO(0);
    AMX_ZERO(1);
    for (long step = 0; step < of->steps; step += AMX_STEPS) {
        const long at = step * AMX_COLUMNS;
        AMX_LOAD(4, of->q + step, of->steps * 4);
        AMX_LOAD(6, groups[0] + at, AMX_ROW_BYTES);
        AMX_MULTIPLY(0, 4, 6);
        AMX_LOAD(7, groups[1] + at, AMX_ROW_BYTES);
        AMX_MULTIPLY(1, 4, 7);
        for (int i = 0; i < AMX_STEPS && of->later; i++) {
            __builtin_prefetch(of->later[2 * half] + at + i * AMX_COLUMNS, 0, 2);
            __builtin_prefetch(of->later[2 * half + 1] + at + i * AMX_COLUMNS, 0, 2);
        }
    }
}
static inline __attribute__((always_inline)) void amx_end_scores(const AmxScores *of, long half) {
    AMX_STORE(0, of->scores + half * (PANEL / 2), PANEL * 4);
    AMX_STORE(1, of->scores + half * (PANEL / 2) + AMX_COLUMNS, PANEL * 4);
}

// The same of 32 columns of V.
static inline __attribute__((always_inline)) void amx_begin_values(const AmxValues *of, long part) {
    const uint32_t *panel = of->panels + part / 2 * V_PANEL_WORDS + part % 2 * (PANEL / 2);
    const float *sums = of->sums + part * (PANEL / 2);
    AMX_LOAD(2, sums, of->columns * 4);
    AMX_LOAD(3, sums + AMX_COLUMNS, of->columns * 4);
    for (int block = 0; block < PANEL / AMX_WIDTH; block++, panel += AMX_STEPS * PANEL) {
        AMX_LOAD(5, of->weights + block * AMX_STEPS, PANEL / 2 * 4);
        AMX_LOAD(6, panel, PANEL * 4);
        AMX_MULTIPLY(2, 5, 6);
        AMX_LOAD(7, panel + AMX_COLUMNS, PANEL * 4);
        AMX_MULTIPLY(3, 5, 7);
    }
}
static inline __attribute__((always_inline)) void amx_end_values(const AmxValues *of, long part) {
    AMX_STORE(2, of->sums + part * (PANEL / 2), of->columns * 4);
    AMX_STORE(3, of->sums + part * (PANEL / 2) + AMX_COLUMNS, of->columns * 4);
}

// Weights of so many rows of a tile, 16 at the most. Beside them, so that none waits for the other's results: `scores` of other
// rows, or of the next tile, and `values` of others, or of the tile before; NULL: there are none. Sums are stored when the
// next ones have been loaded: loads wait for stores before them whose addresses look alike.
static inline __attribute__((always_inline)) void amx_weigh_beside(const AttentionScratch *s, const Weighing *by, long num_rows,
                                                                   long columns, const AmxScores *scores, const AmxValues *values) {
    const long parts = columns / (PANEL / 2);
    for (long part = 0; part < parts; part++) {
        const long from = num_rows * part / parts, end = num_rows * (part + 1) / parts, middle = (from + end) / 2;
        if (scores && part < 2) amx_begin_scores(scores, part);
        if (values && part) amx_end_values(values, part - 1);
        weigh_rows(s, by, from, middle, columns, 1);
        if (values) amx_begin_values(values, part);
        if (scores && part < 2) amx_end_scores(scores, part);
        weigh_rows(s, by, middle, end, columns, 1);
    }
    if (values) amx_end_values(values, parts - 1);
}

#endif
