// KV as attention multiplies it: blocks in groups of 16 keys, so that no key is transposed when it is read,
// and what a head reads of a block lies side by side.
//
// A group of K is [HK][steps of D][16 keys], one of V [HK][steps of 16 keys][D], in words of 32 bits: a step is
// a pair of bf16 or one float, as in a panel (product.h). A block has as many groups as it has sixteens of
// slots, and as many bytes as [block_size, HK, D].

#pragma once

#include "amx_attention.h"
#include "product.h"

#define GROUP_KEYS 16  // by every instruction set: workers exchange blocks
#define TILE_GROUPS (PANEL / GROUP_KEYS)
#define QUAD 4         // tokens that can be written at a time

// The first 16 bits of two vectors side by side, the second ones, and so on: pairs of the first half of both.
#define FIRST_PAIRS ((vshort){HALF_LANE_LIST} / 2 + ((vshort){HALF_LANE_LIST} & 1) * 2 * LANES)

// Elements before a group's part of one head.
static inline long group_offset(long slot, long num_heads, long head, long width) {
    return (slot / GROUP_KEYS * num_heads + head) * GROUP_KEYS * width;
}

// Write K and V of one token, [HK, D] each, into a block's slot.
static inline __attribute__((always_inline)) void write_packed(
    const void *k, const void *v, long num_heads, long width, long slot, void *k_block, void *v_block, const int is_bf16) {
    const long steps = num_steps(width, is_bf16), key = slot % GROUP_KEYS;
    for (long head = 0; head < num_heads; head++) {
        const long to = group_offset(slot, num_heads, head, width);
        uint32_t *k_group = (uint32_t *)at(k_block, to, is_bf16);
        const uint32_t *k_row = (const uint32_t *)at(k, head * width, is_bf16);
        for (long step = 0; step < steps; step++) memcpy(k_group + step * GROUP_KEYS + key, k_row + step, 4);
        if (is_bf16) {
            uint16_t *v_group = (uint16_t *)v_block + to + key / 2 * width * 2 + key % 2;
            const uint16_t *v_row = (const uint16_t *)v + head * width;
            for (long d = 0; d < width; d++) v_group[2 * d] = v_row[d];
        } else {
            memcpy((float *)v_block + to + key * width, (const float *)v + head * width, (size_t)width * 4);
        }
    }
}

typedef uint32_t vquad __attribute__((vector_size(4 * QUAD)));

// [4 rows, 4 words] -> [4 words, 4 rows].
static inline __attribute__((always_inline)) void transpose_quad(vquad r[QUAD]) {
    const vquad first = {0, 4, 1, 5}, last = {2, 6, 3, 7}, low = {0, 1, 4, 5}, high = {2, 3, 6, 7};
    const vquad a = __builtin_shuffle(r[0], r[1], first), b = __builtin_shuffle(r[2], r[3], first);
    const vquad c = __builtin_shuffle(r[0], r[1], last), d = __builtin_shuffle(r[2], r[3], last);
    r[0] = __builtin_shuffle(a, b, low), r[1] = __builtin_shuffle(a, b, high);
    r[2] = __builtin_shuffle(c, d, low), r[3] = __builtin_shuffle(c, d, high);
}

// The same of four tokens, `stride` elements apart, whose slots follow `slot`, a multiple of four; of heads whose width
// is a multiple of 32. A token alone is written word by word, and V of bf16 half by half.
static inline __attribute__((always_inline)) void write_packed_quad(
    const void *k, const void *v, long stride, long num_heads, long width, long slot, void *k_block, void *v_block,
    const int is_bf16) {
    const long steps = num_steps(width, is_bf16), key = slot % GROUP_KEYS;
    for (long head = 0; head < num_heads; head++) {
        const long to = group_offset(slot, num_heads, head, width);
        uint32_t *k_group = (uint32_t *)at(k_block, to, is_bf16) + key;
        for (long step = 0; step < steps; step += QUAD) {
            vquad words[QUAD];
            for (int i = 0; i < QUAD; i++)
                memcpy(&words[i], (const uint32_t *)at(k, i * stride + head * width, is_bf16) + step, sizeof *words);
            transpose_quad(words);
            for (int i = 0; i < QUAD; i++) memcpy(k_group + (step + i) * GROUP_KEYS, &words[i], sizeof *words);
        }
        for (int i = 0; i < QUAD && !is_bf16; i++)
            memcpy((float *)v_block + to + (key + i) * width, (const float *)v + i * stride + head * width, (size_t)width * 4);
        for (int i = 0; i < QUAD && is_bf16; i += 2) {
            const uint16_t *even = (const uint16_t *)v + i * stride + head * width;
            uint16_t *pairs = (uint16_t *)v_block + to + (key + i) * width;
            for (long d = 0; d < width; d += 2 * LANES) {
                const vshort a = (vshort)vload_bits(even + d), b = (vshort)vload_bits(even + stride + d);
                vstore_bits(pairs + 2 * d, (vuint)__builtin_shuffle(a, b, FIRST_PAIRS));
                vstore_bits(pairs + 2 * d + 2 * LANES, (vuint)__builtin_shuffle(a, b, FIRST_PAIRS + LANES));
            }
        }
    }
}

// The first `num_keys` keys of a group of V, zeros behind them: what lies there is nobody's, and 0 * NaN is NaN.
static inline void mask_group(const uint32_t *group, long num_keys, long width, uint32_t *out, int is_bf16) {
    const long each = is_bf16 ? 2 : 1, whole = num_keys / each, steps = GROUP_KEYS / each;
    memcpy(out, group, (size_t)(whole * width) * 4);
    memset(out + whole * width, 0, (size_t)((steps - whole) * width) * 4);
    if (num_keys % each)
        for (long d = 0; d < width; d++) out[whole * width + d] = group[whole * width + d] & 0xffff;
}

// scores[m, 64] = q[m] times the keys of four groups; meanwhile memory is asked for `later` ones.
static inline __attribute__((always_inline)) void score_rows(
    const int num_rows, long steps, const uint32_t *q, const uint32_t *const *groups, const uint32_t *const *later,
    float *scores, const int is_bf16) {
    const int each = TILE_VECTORS(num_rows), of_group = GROUP_KEYS / LANES;
    const long stride = x_words(steps, is_bf16);
    for (int first = 0; first < VECTORS; first += each) {
        vfloat sums[MAX_ROWS][VECTORS];
        const uint32_t *keys[VECTORS];
#pragma GCC unroll 16
        for (int j = 0; j < each; j++) keys[j] = groups[(first + j) / of_group] + (first + j) % of_group * LANES;
#pragma GCC unroll 6
        for (int m = 0; m < num_rows; m++)
#pragma GCC unroll 16
            for (int j = 0; j < each; j++) sums[m][j] = (vfloat){};
        long step = 0;
        do {  // one at least, as in tile_of
#pragma GCC unroll 16
            for (int j = 0; j < each; j += of_group)
                __builtin_prefetch(later[(first + j) / of_group] + step * GROUP_KEYS, 0, 2);
#pragma GCC unroll 2
            for (int half = 0; half < num_halves(is_bf16); half++) {
                vuint k[VECTORS];
#pragma GCC unroll 16
                for (int j = 0; j < each; j++) {
                    k[j] = half_of(vload_bits(keys[j] + step * GROUP_KEYS), half, is_bf16);
                    stay_in_register(&k[j]);
                }
#pragma GCC unroll 6
                for (int m = 0; m < num_rows; m++)
#pragma GCC unroll 16
                    for (int j = 0; j < each; j++)
                        add_product(&sums[m][j], q + m * stride + x_words(step, is_bf16) + half, k[j], is_bf16);
            }
        } while (++step < steps);
#pragma GCC unroll 6
        for (int m = 0; m < num_rows; m++)
#pragma GCC unroll 16
            for (int j = 0; j < each; j++) vstore(scores + m * PANEL + (first + j) * LANES, sums[m][j]);
    }
}

// sums[m, num_columns] += weights[m] times values of four groups, which begin at these columns.
static inline __attribute__((always_inline)) void value_rows(
    const int num_rows, const int num_columns, long width, const uint32_t *weights,
    const uint32_t *const *groups, const uint32_t *const *later, long column, float *out, long out_stride, const int is_bf16) {
    const long steps = num_steps(GROUP_KEYS, is_bf16), words = x_words(steps, is_bf16);
    const int all = num_columns / LANES, each = TILE_VECTORS(num_rows) < all ? TILE_VECTORS(num_rows) : all;
    for (int first = 0; first < num_columns; first += each * LANES, column += each * LANES, out += each * LANES) {
        vfloat sums[MAX_ROWS][VECTORS];
#pragma GCC unroll 6
        for (int m = 0; m < num_rows; m++)
#pragma GCC unroll 16
            for (int j = 0; j < each; j++) sums[m][j] = vload(out + m * out_stride + j * LANES);
        for (int g = 0; g < TILE_GROUPS; g++) {
            const uint32_t *values = groups[g] + column, *ahead = later[g] + column, *x = weights + g * words;
            const uint32_t *near = groups[g < TILE_GROUPS - 1 ? g + 1 : g] + column;
            for (long step = 0; step < steps; step++, values += width, near += width, ahead += width)
                add_step(num_rows, each, sums, x + x_words(step, is_bf16), TILE_GROUPS * words, values, near, ahead, is_bf16);
        }
#pragma GCC unroll 6
        for (int m = 0; m < num_rows; m++)
#pragma GCC unroll 16
            for (int j = 0; j < each; j++) vstore(out + m * out_stride + j * LANES, sums[m][j]);
    }
}

typedef void (*ScoreRows)(long, const uint32_t *, const uint32_t *const *, const uint32_t *const *, float *);
typedef void (*ValueRows)(
    long, const uint32_t *, const uint32_t *const *, const uint32_t *const *, long, float *, long);

#define PACKED(ROWS, BF16)                                                                                  \
    static void scores_##ROWS##_##BF16(long steps, const uint32_t *q, const uint32_t *const *groups,        \
                                       const uint32_t *const *later, float *scores) {                       \
        score_rows(ROWS, steps, q, groups, later, scores, BF16);                                            \
    }                                                                                                       \
    static void values_##ROWS##_##BF16(long width, const uint32_t *weights, const uint32_t *const *groups,  \
                                       const uint32_t *const *later, long column, float *out, long stride) { \
        if (width - column >= PANEL) value_rows(ROWS, PANEL, width, weights, groups, later, column, out, stride, BF16); \
        else value_rows(ROWS, PANEL / 2, width, weights, groups, later, column, out, stride, BF16);         \
    }
#define PACKED_ROWS(BF16) \
    PACKED(1, BF16) PACKED(2, BF16) PACKED(3, BF16) PACKED(4, BF16) PACKED(5, BF16) PACKED(6, BF16)
PACKED_ROWS(0)
PACKED_ROWS(1)
#define PACKED_NAMES(NAME, BF16) \
    {NAME##_1_##BF16, NAME##_2_##BF16, NAME##_3_##BF16, NAME##_4_##BF16, NAME##_5_##BF16, NAME##_6_##BF16}
static const ScoreRows SCORE_ROWS[2][MAX_ROWS] = {PACKED_NAMES(scores, 0), PACKED_NAMES(scores, 1)};  // [is_bf16][rows - 1]
static const ValueRows VALUE_ROWS[2][MAX_ROWS] = {PACKED_NAMES(values, 0), PACKED_NAMES(values, 1)};

// c[rows, 64] (+)= x, as attention lays it out, times a panel; meanwhile memory is asked for `ahead`.
static inline void attended_product(long num_rows, long steps, const uint32_t *x, long x_stride, const uint32_t *panel, float *c,
                                    long c_stride, const void *ahead, int adds, int is_bf16) {
#if TAKES_AMX
    if (is_bf16) {
        amx_attended(num_rows, (steps + AMX_STEPS - 1) / AMX_STEPS, x, x_stride, panel, c, c_stride, adds);
        return;
    }
#endif
    panel_product(num_rows, steps, x, x_stride, panel, c, c_stride, ahead, adds, is_bf16, NULL);
}

// scores [rows, 64] of q [rows, steps], see copy_x.
static inline void packed_scores(long num_rows, long steps, const uint32_t *q, const uint32_t *const *groups,
                                 const uint32_t *const *later, float *scores, int is_bf16) {
#if TAKES_AMX
    if (is_bf16) {
        amx_scores(num_rows, steps, q, groups, later, scores);
        return;
    }
#endif
    const RowTiles tiles = row_tiles(num_rows, MAX_ROWS);
    for (long tile = 0, row = 0, end; tile < tiles.count; tile++, row = end) {
        end = row + rows_of_tile(&tiles, tile);
        SCORE_ROWS[is_bf16][end - row - 1](steps, q + row * x_words(steps, is_bf16), groups, tile ? groups : later, scores + row * PANEL);
    }
}

// out [rows, out_stride] += weights [rows, steps of 64 keys], as q, times values, whose width is a multiple of 32.
static inline void packed_values(long num_rows, long width, const uint32_t *weights, const uint32_t *const *groups,
                                 const uint32_t *const *later, float *out, long out_stride, int is_bf16) {
    const RowTiles tiles = row_tiles(num_rows, MAX_ROWS);
    const long words = x_words(num_steps(PANEL, is_bf16), is_bf16);
    for (long column = 0; column < width; column += PANEL)
        for (long tile = 0, row = 0, end; tile < tiles.count; tile++, row = end) {
            end = row + rows_of_tile(&tiles, tile);
            VALUE_ROWS[is_bf16][end - row - 1](
                width, weights + row * words, groups, tile ? groups : later, column,
                out + row * out_stride + column, out_stride);
        }
}
