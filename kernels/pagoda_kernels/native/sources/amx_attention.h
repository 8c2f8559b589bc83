// Attention's products by AMX (amx.h): queries times keys, and weights times values, of a tile of 64 keys.
//
// Rows of Q and of weights lie one behind another, blocks of a row side by side. Four groups of 16 packed keys are four
// tiles of weights as they are; values are copied into a panel, whose tiles have 32 keys.

#pragma once

#include "amx_panel.h"

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
// the rows of c is written: those of other sequences are there.
static inline void amx_attended(long num_rows, long blocks, const uint32_t *x, long x_stride, const uint32_t *panel, float *c,
                                long c_stride, int adds) {
    AmxProduct product = {.x = (const char *)x, .row_bytes = x_stride * 4, .block_bytes = AMX_ROW_BYTES, .words = panel,
                          .blocks = blocks, .c_bytes = c_stride * 4, .adds = adds};
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

#endif
