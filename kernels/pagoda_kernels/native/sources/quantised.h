// Products with quantised weights: a code of 4 or 8 bits a weight, a scale for every 32 of them along K.
//
// Codes stand for whole numbers that bf16 holds exactly: an int8 itself, or one of 16 levels. In registers
// they become the pairs of bf16 that VDPBF16PS wants; a group is added along K into one fp32 accumulator,
// which is then multiplied by the scale and added to the groups before it: one order of additions, as
// product.h has. Every tile of rows widens the codes anew, beside its products: with the codes of 4 bits
// that costs next to nothing, and widened into memory first they are slower. Adding up the groups costs
// a tile of six rows some 15 %.
//
// Codes of 4 bits may have a zero point for every group, too, a whole number that is taken off each of them.
// It is taken off the sum, times the sum of x, which costs little beside the products: w is (level - zero) *
// scale, and a product of a group is scale * (sum of level * x - zero * sum of x). Levels about 0 keep the two
// of one size, so that little is lost in their difference.
//
// A panel: for every group 64 scales of bf16, 64 zero points of int8 if it has some, then its codes, a pair of steps after the other. Of a pair
// 4 bits: 32 words of 16, word i with the codes of lane i of the four vectors, lowest first; lane i of
// vector j is of output 16 j + i / 2 and step i % 2. 8 bits: for every vector 16 of the one step, then 16
// of the other.

#pragma once

#include "panels.h"

#define GROUP 32                      // steps along K that share a scale
#define SCALE_BYTES (PANEL * 2)       // of a group
#define NUM_LEVELS 16
#define K_PART_BYTES (24 * 1024)      // of a panel, which stay in the first-level cache
#define AHEAD_BYTES 8192              // what is fetched into the caches before it is used

static inline long num_groups(long width) { return (width + GROUP - 1) / GROUP; }
static inline long code_bytes(int bits) { return PANEL * GROUP * bits / 8; }  // of a group
static inline long zero_bytes(int has_zeros) { return has_zeros ? PANEL : 0; }  // of a group
static inline long group_bytes(int bits, int has_zeros) {
    return SCALE_BYTES + zero_bytes(has_zeros) + code_bytes(bits);
}

// Put a code where it belongs; `codes` are those of its group.
static inline void place_code(uint8_t *codes, int bits, long step, long column, int code) {
    const long pair = step / 2, half = step % 2, vector = column / LANES, lane = column % LANES;
    if (bits == 8) {
        codes[pair * PANEL * 2 + vector * 2 * LANES + half * LANES + lane] = (uint8_t)(int8_t)code;
    } else {
        const long word = 2 * lane + half;
        codes[pair * PANEL + 2 * word + vector / 2] |= (uint8_t)((code & 15) << vector % 2 * 4);
    }
}

// 32 levels, of which the last 16 repeat the first: a lane's bit above the code then does not matter.
static inline vuint level_table(const uint16_t *levels) {
    vuint table = {};
    if (levels) {
        memcpy(&table, levels, 2 * NUM_LEVELS);
        memcpy((char *)&table + 2 * NUM_LEVELS, levels, 2 * NUM_LEVELS);
    }
    return table;
}

// Where the low five bits of each lane of 16 bits point to.
static inline vuint looked_up(vuint table, vuint lanes) {
#if defined(__AVX512BW__)
    return (vuint)_mm512_permutexvar_epi16((__m512i)lanes, (__m512i)table);
#else
    return (vuint)__builtin_shuffle((vshort)table, (vshort)lanes);
#endif
}

// 16 of int8 as floats.
static inline vfloat widened_codes(const void *codes) {
#if defined(__AVX512F__)
    __m128i bytes;
    memcpy(&bytes, codes, sizeof bytes);
    return (vfloat)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
#else
    vfloat floats;
    for (int i = 0; i < LANES; i++) floats[i] = ((const int8_t *)codes)[i];
    return floats;
#endif
}

// 16 of bf16 as floats.
static inline vfloat widened_scales(const void *scales) {
#if defined(__AVX512F__)
    __m256i halves;
    memcpy(&halves, scales, sizeof halves);
    return (vfloat)_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);
#else
    return vload_any(scales, 0, 1);
#endif
}

// The four vectors of pairs of bf16 that the codes of two steps stand for.
static inline __attribute__((always_inline)) void widen_pair(
    const char *codes, vuint table, vuint *w, const int bits) {
    if (bits == 4) {
        const vshort words = (vshort)vload_bits(codes);
#pragma GCC unroll 4
        for (int j = 0; j < VECTORS; j++) w[j] = looked_up(table, (vuint)(words >> 4 * j));
        return;
    }
#pragma GCC unroll 4
    for (int j = 0; j < VECTORS; j++, codes += 2 * LANES) {
        const vfloat first = widened_codes(codes), second = widened_codes(codes + LANES);
        w[j] = (vuint)first >> 16 | (vuint)second;  // whole numbers below 256: the low half of a float is 0
    }
}

// sums += rows of x times pairs of steps of a group.
static inline __attribute__((always_inline)) void add_pairs(
    const int num_rows, const long num_pairs, const void *x, long x_stride, const char *codes, vuint table,
    vfloat sums[MAX_ROWS][VECTORS], const int bits, const int is_bf16) {
#pragma GCC unroll 4
    for (long pair = 0; pair < num_pairs; pair++) {
        const char *from = codes + pair * 2 * PANEL * bits / 8;
        vuint w[VECTORS];
        widen_pair(from, table, w, bits);
        for (int line = 0; line < bits / 4; line++) __builtin_prefetch(from + AHEAD_BYTES + line * 64);
#pragma GCC unroll 6
        for (int m = 0; m < num_rows; m++) {
            if (is_bf16) {
                uint32_t both;
                memcpy(&both, (const uint16_t *)x + m * x_stride + 2 * pair, 4);
#pragma GCC unroll 4
                for (int j = 0; j < VECTORS; j++) sums[m][j] = pair_sum(sums[m][j], both, w[j]);
            } else {
                const float *two = (const float *)x + m * x_stride + 2 * pair;
#pragma GCC unroll 4
                for (int j = 0; j < VECTORS; j++) {
                    sums[m][j] = vfma(vset(two[0]), (vfloat)(w[j] << 16), sums[m][j]);
                    sums[m][j] = vfma(vset(two[1]), (vfloat)(w[j] & 0xffff0000u), sums[m][j]);
                }
            }
        }
    }
}

// x[0] + ... + x[GROUP - 1], or fewer, always in the same order.
static inline __attribute__((always_inline)) float sum_of_x(const void *x, long count, const int is_bf16) {
    if (count == GROUP && is_bf16) {
        const vuint pairs = vload_bits(x);
        return vsum((vfloat)(pairs << 16) + (vfloat)(pairs & 0xffff0000u));
    }
    if (count == GROUP) return vsum(vload((const float *)x) + vload((const float *)x + LANES));
    float sum = 0;
    for (long i = 0; i < count; i++) sum += load_any(x, i, is_bf16);
    return sum;
}

// sums -= zero points of a group times the sums of its rows of x.
static inline __attribute__((always_inline)) void take_zeros_off(
    const int num_rows, const void *x, long x_stride, long count, const char *zeros,
    vfloat sums[MAX_ROWS][VECTORS], const int is_bf16) {
    vfloat of_x[MAX_ROWS];
#pragma GCC unroll 6
    for (int m = 0; m < num_rows; m++) of_x[m] = vset(-sum_of_x(at(x, m * x_stride, is_bf16), count, is_bf16));
#pragma GCC unroll 4
    for (int j = 0; j < VECTORS; j++) {
        const vfloat zero = widened_codes(zeros + j * LANES);
#pragma GCC unroll 6
        for (int m = 0; m < num_rows; m++) sums[m][j] = vfma(zero, of_x[m], sums[m][j]);
    }
}

// c[m, 64] += rows of x times some groups of a panel, the last of which may end early.
static inline __attribute__((always_inline)) void quantised_tile_of(
    const int num_rows, long width, const void *x, long x_stride, const char *groups, vuint table, float *c,
    const int bits, const int has_zeros, const int is_bf16) {
    for (long k = 0; k < width; k += GROUP, groups += group_bytes(bits, has_zeros)) {
        const void *from = at(x, k, is_bf16);
        const char *codes = groups + SCALE_BYTES + zero_bytes(has_zeros);
        vfloat sums[MAX_ROWS][VECTORS] = {};
        if (width - k >= GROUP)  // a number of turns that the compiler knows
            add_pairs(num_rows, GROUP / 2, from, x_stride, codes, table, sums, bits, is_bf16);
        else add_pairs(num_rows, (width - k) / 2, from, x_stride, codes, table, sums, bits, is_bf16);
        if (has_zeros) {
            const long count = width - k < GROUP ? width - k : GROUP;
            take_zeros_off(num_rows, from, x_stride, count, groups + SCALE_BYTES, sums, is_bf16);
        }
#pragma GCC unroll 4
        for (int j = 0; j < VECTORS; j++) {
            const vfloat scale = widened_scales(groups + j * 2 * LANES);
#pragma GCC unroll 6
            for (int m = 0; m < num_rows; m++)
                vstore(c + m * PANEL + j * LANES, vfma(sums[m][j], scale, vload(c + m * PANEL + j * LANES)));
        }
    }
}

typedef void (*QuantisedTile)(long, const void *, long, const char *, vuint, float *);

#define QUANTISED_TILE(ROWS, BITS, ZEROS, BF16)                                                          \
    static void quantised_tile_##ROWS##_##BITS##_##ZEROS##_##BF16(                                       \
        long width, const void *x, long x_stride, const char *groups, vuint table, float *c) {           \
        quantised_tile_of(ROWS, width, x, x_stride, groups, table, c, BITS, ZEROS, BF16);                \
    }
#define QUANTISED_TILES(BITS, ZEROS, BF16)                                                               \
    QUANTISED_TILE(1, BITS, ZEROS, BF16) QUANTISED_TILE(2, BITS, ZEROS, BF16)                            \
    QUANTISED_TILE(3, BITS, ZEROS, BF16) QUANTISED_TILE(4, BITS, ZEROS, BF16)                            \
    QUANTISED_TILE(5, BITS, ZEROS, BF16) QUANTISED_TILE(6, BITS, ZEROS, BF16)
QUANTISED_TILES(4, 0, 0)
QUANTISED_TILES(4, 0, 1)
QUANTISED_TILES(4, 1, 0)
QUANTISED_TILES(4, 1, 1)
QUANTISED_TILES(8, 0, 0)
QUANTISED_TILES(8, 0, 1)
#define QUANTISED_ROW(BITS, ZEROS, BF16)                                                                 \
    {quantised_tile_1_##BITS##_##ZEROS##_##BF16, quantised_tile_2_##BITS##_##ZEROS##_##BF16,             \
     quantised_tile_3_##BITS##_##ZEROS##_##BF16, quantised_tile_4_##BITS##_##ZEROS##_##BF16,             \
     quantised_tile_5_##BITS##_##ZEROS##_##BF16, quantised_tile_6_##BITS##_##ZEROS##_##BF16}
static const QuantisedTile QUANTISED_TILE_FUNCTIONS[3][2][MAX_ROWS] = {  // [kind][is_bf16][rows - 1]
    {QUANTISED_ROW(4, 0, 0), QUANTISED_ROW(4, 0, 1)},
    {QUANTISED_ROW(4, 1, 0), QUANTISED_ROW(4, 1, 1)},
    {QUANTISED_ROW(8, 0, 0), QUANTISED_ROW(8, 0, 1)}};

// c[num_rows, 64] = rows of x times a panel.
static void quantised_panel_product(
    long num_rows, long width, const void *x, const char *panel, int bits, int has_zeros,
    const uint16_t *levels, int is_bf16, float *c) {
    const QuantisedTile *tiles = QUANTISED_TILE_FUNCTIONS[bits == 8 ? 2 : has_zeros][is_bf16];
    const long num_tiles = (num_rows + MAX_ROWS - 1) / MAX_ROWS, each = group_bytes(bits, has_zeros);
    const long part = K_PART_BYTES / each * GROUP;
    const vuint table = level_table(bits == 4 ? levels : NULL);
    memset(c, 0, (size_t)num_rows * PANEL * sizeof *c);
    for (long k = 0; k < width; k += part)
        for (long tile = 0; tile < num_tiles; tile++) {
            const long row = num_rows * tile / num_tiles, end = num_rows * (tile + 1) / num_tiles;
            tiles[end - row - 1](
                width - k < part ? width - k : part, at(x, row * width + k, is_bf16), width,
                panel + k / GROUP * each, table, c + row * PANEL);
        }
}
