// Products with quantised weights (quantised.h) by AMX (amx.h). A group of codes along K is a block: what it comes to leaves its
// tile, and is scaled and added to the groups before it, one after the other, in registers.

#pragma once

#include "amx.h"
#include "quantised.h"

#if TAKES_AMX

// Groups that are widened, of 16 columns.
typedef struct {
    const char *x;           // of the first row, a block for each group
    long block_bytes;        // from one block of x to the next
    const uint32_t *widened; // [groups, AMX_STEPS, PANEL]
    const char *scales;      // of the first group
    const char *zeros;       // so, or NULL
    long each;               // bytes of a group
    long count;
    const float *of_x;       // [rows, PART_GROUPS]: sums of each group of x, if there are zeros
} AmxCodes;

// c[16, 16] += 16 rows times groups.
static void amx_coded_tile(const AmxCodes *codes, float *c) {
    float tile[2][AMX_ROWS * AMX_COLUMNS] __attribute__((aligned(64)));
    const long tile_bytes = AMX_COLUMNS * 4;
    vfloat sums[AMX_ROWS];
#pragma GCC unroll 16
    for (int m = 0; m < AMX_ROWS; m++) sums[m] = vload(c + m * PANEL);
#define MULTIPLY_GROUP(G, SUMS, X, WEIGHTS)                                                \
    AMX_ZERO(SUMS);                                                                        \
    AMX_LOAD(X, codes->x + (G) * codes->block_bytes, AMX_ROW_BYTES);                       \
    AMX_LOAD(WEIGHTS, codes->widened + (G) * AMX_STEPS * PANEL, PANEL * 4);                \
    AMX_MULTIPLY(SUMS, X, WEIGHTS);                                                        \
    AMX_STORE(SUMS, tile[SUMS], tile_bytes);
    for (long group = 0; group < codes->count; group += 2) {
        const long both = codes->count - group < 2 ? 1 : 2;
        MULTIPLY_GROUP(group, 0, 4, 6)
        if (both == 2) { MULTIPLY_GROUP(group + 1, 1, 5, 7) }
        for (long i = 0; i < both; i++) {
            const vfloat scale = vload_any(codes->scales + (group + i) * codes->each, 0, 1);
            const vfloat zero = codes->zeros ? widened_codes(codes->zeros + (group + i) * codes->each) : (vfloat){};
#pragma GCC unroll 16
            for (int m = 0; m < AMX_ROWS; m++) {
                vfloat sum = vload(tile[i] + m * AMX_COLUMNS);
                if (codes->zeros) sum = vfma(zero, vset(-codes->of_x[m * PART_GROUPS + group + i]), sum);
                sums[m] = vfma(sum, scale, sums[m]);
            }
        }
    }
#undef MULTIPLY_GROUP
#pragma GCC unroll 16
    for (int m = 0; m < AMX_ROWS; m++) vstore(c + m * PANEL, sums[m]);
}

// c[rows, 64] = a few rows times all groups of a panel. Each group is widened beside the tiles of the one before.
static inline __attribute__((always_inline)) void amx_coded_few(
    const int rows, const char *group, const int bits, const int has_zeros, const uint16_t *levels, const AmxCodes *codes,
    uint32_t *words, float *c) {
    float tiles[2][PANEL / AMX_COLUMNS][AMX_ROWS * AMX_COLUMNS] __attribute__((aligned(64)));
    const Levels table = level_table(bits == 4 ? levels : NULL);
    const long from_codes = SCALE_BYTES + zero_bytes(has_zeros), tile_bytes = AMX_COLUMNS * 4, quarter = GROUP / 2 / 4;
    uint32_t *other = words + AMX_STEPS * PANEL;
    const char *x = codes->x;
    vfloat sums[AMX_ROWS][VECTORS] = {};
#define WIDEN_QUARTER(QUARTER, TO)                                                       \
    for (long pair = QUARTER * quarter; pair < (QUARTER + 1) * quarter; pair++) {        \
        vuint w[VECTORS];                                                                \
        fetch_ahead(next + from_codes, pair, bits);                                      \
        widen_pair(next + from_codes, pair, &table, w, 0, VECTORS, bits);                \
        for (int j = 0; j < VECTORS; j++) vstore_bits(TO + pair * PANEL + j * LANES, w[j]); \
    }
#define MULTIPLY_COLUMNS(COLUMNS, WEIGHTS)                          \
    AMX_ZERO(COLUMNS);                                              \
    AMX_LOAD(WEIGHTS, words + COLUMNS * AMX_COLUMNS, PANEL * 4);    \
    AMX_MULTIPLY(COLUMNS, 4, WEIGHTS);                              \
    AMX_STORE(COLUMNS, tiles[g % 2][COLUMNS], tile_bytes);          \
    WIDEN_QUARTER(COLUMNS, other)
    const char *next = group;
    WIDEN_QUARTER(0, words)
    WIDEN_QUARTER(1, words)
    WIDEN_QUARTER(2, words)
    WIDEN_QUARTER(3, words)
    for (long g = 0; g <= codes->count; g++, group += codes->each) {
        if (g < codes->count) {
            next = g + 1 < codes->count ? group + codes->each : group;  // of the last one nothing is read
            AMX_LOAD(4, x, AMX_ROW_BYTES);
            MULTIPLY_COLUMNS(0, 6)
            MULTIPLY_COLUMNS(1, 7)
            MULTIPLY_COLUMNS(2, 6)
            MULTIPLY_COLUMNS(3, 7)
            x += codes->block_bytes;
            uint32_t *now = words;
            words = other, other = now;
        }
        if (!g) continue;
        const char *before = group - codes->each;  // whose tiles are there by now
#pragma GCC unroll 4
        for (int j = 0; j < VECTORS; j++) {
            const vfloat scale = vload_any(before + 2 * j * LANES, 0, 1);
            const vfloat zero = has_zeros ? widened_codes(before + SCALE_BYTES + j * LANES) : (vfloat){};
#pragma GCC unroll 16
            for (int m = 0; m < rows; m++) {
                vfloat sum = vload(tiles[(g - 1) % 2][j] + m * AMX_COLUMNS);
                if (has_zeros) sum = vfma(zero, vset(-codes->of_x[m * codes->count + g - 1]), sum);
                sums[m][j] = vfma(sum, scale, sums[m][j]);
            }
        }
    }
#undef MULTIPLY_COLUMNS
#undef WIDEN_QUARTER
#pragma GCC unroll 16
    for (int m = 0; m < rows; m++)
#pragma GCC unroll 4
        for (int j = 0; j < VECTORS; j++) vstore(c + m * PANEL + j * LANES, sums[m][j]);
}

#define CODED_FEW(ROWS)                                                                                                    \
    static void amx_coded_##ROWS(const char *panel, int bits, int has_zeros, const uint16_t *levels, const AmxCodes *codes, \
                                 uint32_t *words, float *c) {                                                              \
        if (bits == 8) amx_coded_few(ROWS, panel, 8, 0, NULL, codes, words, c);                                            \
        else if (has_zeros) amx_coded_few(ROWS, panel, 4, 1, levels, codes, words, c);                                     \
        else amx_coded_few(ROWS, panel, 4, 0, levels, codes, words, c);                                                    \
    }
CODED_FEW(1)
CODED_FEW(4)
CODED_FEW(8)
CODED_FEW(16)

// Sums of each group of some rows of x, [rows, stride].
static void sum_blocks(const AmxCodes *codes, long num_rows, long stride, float *of_x) {
    for (long m = 0; m < num_rows; m++)
        for (long g = 0; g < codes->count; g++)
            of_x[m * stride + g] = sum_of_x(codes->x + g * codes->block_bytes + m * AMX_ROW_BYTES, GROUP, 1);
}

// scratch->sums[num_rows, 64] = rows of x from `first_row` on, which begins a group of rows, times a panel.
static void amx_coded_product(long num_rows, long width, const AmxX *x, long first_row, const char *panel, int bits, int has_zeros,
                              const uint16_t *levels, PanelScratch *scratch, const RowsDone *done) {
    const long each = group_bytes(bits, has_zeros), groups = num_groups(width);
    if (num_rows <= AMX_ROWS && (!has_zeros || AMX_ROWS * groups <= CHUNK_ROWS * PART_GROUPS)) {
        AmxCodes codes = {.x = amx_x(x, first_row, 0), .block_bytes = amx_block_bytes(first_row, x->num_rows), .each = each,
                          .count = groups, .of_x = scratch->of_x};
        if (has_zeros) sum_blocks(&codes, num_rows, groups, scratch->of_x);
        (num_rows == 1 ? amx_coded_1 : num_rows <= 4 ? amx_coded_4 : num_rows <= 8 ? amx_coded_8 : amx_coded_16)(panel, bits, has_zeros, levels, &codes, scratch->widened, scratch->sums);
        done->tell(done, 0, num_rows);
        return;
    }
    memset(scratch->sums, 0, (size_t)((num_rows + AMX_ROWS - 1) / AMX_ROWS * AMX_ROWS * PANEL) * sizeof *scratch->sums);
    for (long first = 0; first < groups; first += WIDENED_GROUPS) {
        const long left = groups - first, count = left < WIDENED_GROUPS ? left : WIDENED_GROUPS;
        const char *part = panel + first * each;
        widen_groups(part, count, each, levels, scratch->widened, has_zeros, bits);
        for (long row = 0; row < num_rows; row += AMX_ROWS) {
            const long in_group = row % AMX_GROUP, rows = num_rows - row < AMX_ROWS ? num_rows - row : AMX_ROWS;
            AmxCodes codes = {.block_bytes = amx_block_bytes(first_row + row - in_group, x->num_rows), .each = each, .count = count,
                              .of_x = scratch->of_x};
            codes.x = amx_x(x, first_row + row - in_group, first) + in_group * AMX_ROW_BYTES;
            if (has_zeros) sum_blocks(&codes, rows, PART_GROUPS, scratch->of_x);
            for (long column = 0; column < PANEL; column += AMX_COLUMNS) {
                float *c = scratch->sums + row * PANEL + column;
                codes.widened = scratch->widened + column;
                codes.scales = part + 2 * column;
                codes.zeros = has_zeros ? part + SCALE_BYTES + column : NULL;
                amx_coded_tile(&codes, c);
            }
            if (left == count) done->tell(done, row, row + rows);
        }
    }
}

#endif
