// Products with quantised weights: a code of 4 or 8 bits a weight, a scale for every 32 of them along K.
//
// Codes stand for whole numbers that bf16 holds exactly: an int8 itself, or one of 16 levels. In registers
// they become the pairs of bf16 that VDPBF16PS wants; a group is added along K into one fp32 accumulator,
// which is then multiplied by the scale and added to the groups before it: one order of additions, as
// product.h has. A tile of rows widens the codes beside its products. Tiles of more than four rows take half
// a panel at a time: eight rows share what is widened, and the sums of all groups so far stay in registers
// beside those of one. Codes of 8 bits, which cost more to widen, are widened into memory first where there
// are many rows; with 4 bits that is no faster.
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
#define WHOLE_ROWS 4                  // of a tile as wide as a panel, at most; a tile of more is half as wide
#define HALF_ROWS 8                   // of a tile at all
#define WIDENED_BITS 16               // of a code that was widened into memory
#define WIDENED_GROUPS 6              // so many at a time: 24 KiB, which stay in the first-level cache
#define WIDENED_ROWS 48               // and for so many rows, at least
#define PART_GROUPS (K_PART_BYTES / (PANEL * GROUP / 2))  // of a part, at most

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

// Vectors `first` and on of the four of pairs of bf16 that the codes of two steps stand for.
static inline __attribute__((always_inline)) void widen_pair(
    const char *codes, vuint table, vuint *w, const int first, const int num_vectors, const int bits) {
    if (bits == 4) {
        const vshort words = (vshort)vload_bits(codes);
#pragma GCC unroll 4
        for (int j = 0; j < num_vectors; j++) w[j] = looked_up(table, (vuint)(words >> 4 * (first + j)));
        return;
    }
    if (bits == WIDENED_BITS) {
#pragma GCC unroll 4
        for (int j = 0; j < num_vectors; j++) w[j] = vload_bits(codes + (first + j) * 4 * LANES);
        return;
    }
    codes += first * 2 * LANES;
#pragma GCC unroll 4
    for (int j = 0; j < num_vectors; j++, codes += 2 * LANES) {
        const vfloat one = widened_codes(codes), other = widened_codes(codes + LANES);
        w[j] = (vuint)one >> 16 | (vuint)other;  // whole numbers below 256: the low half of a float is 0
    }
}

// Fetch what lies AHEAD_BYTES after the codes of two steps.
static inline __attribute__((always_inline)) void fetch_ahead(const char *codes, const int bits) {
    for (int line = 0; line < bits / 4; line++) __builtin_prefetch(codes + AHEAD_BYTES + line * 64);
}

// sums += rows of x times pairs of steps of a group.
static inline __attribute__((always_inline)) void add_pairs(
    const int num_rows, const long num_pairs, const void *x, long x_stride, const char *codes, vuint table,
    vfloat sums[HALF_ROWS][VECTORS], const int first, const int num_vectors, const int bits, const int is_bf16) {
#pragma GCC unroll 4
    for (long pair = 0; pair < num_pairs; pair++) {
        const char *from = codes + pair * 2 * PANEL * bits / 8;
        vuint w[VECTORS];
        widen_pair(from, table, w, first, num_vectors, bits);
        if (!first && bits != WIDENED_BITS) fetch_ahead(from, bits);
#pragma GCC unroll 8
        for (int m = 0; m < num_rows; m++) {
            if (is_bf16) {
                uint32_t both;
                memcpy(&both, (const uint16_t *)x + m * x_stride + 2 * pair, 4);
#pragma GCC unroll 4
                for (int j = 0; j < num_vectors; j++) sums[m][j] = pair_sum(sums[m][j], both, w[j]);
            } else {
                const float *two = (const float *)x + m * x_stride + 2 * pair;
#pragma GCC unroll 4
                for (int j = 0; j < num_vectors; j++) {
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

// of_x[m, PART_GROUPS]: sums of the groups of rows of x.
static void sums_of_rows(long num_rows, long width, const void *x, long x_stride, float *of_x, const int is_bf16) {
    for (long m = 0; m < num_rows; m++)
        for (long k = 0; k < width; k += GROUP) {
            const long count = width - k < GROUP ? width - k : GROUP;
            const void *from = at(x, m * x_stride + k, is_bf16);
            of_x[m * PART_GROUPS + k / GROUP] = is_bf16 ? sum_of_x(from, count, 1) : sum_of_x(from, count, 0);
        }
}

// Some groups of a panel along K, the last of which may end early.
typedef struct {
    long width;             // steps along K
    const char *groups;
    long each;              // bytes of a group
    const uint32_t *widened;  // [groups, GROUP / 2, PANEL]: pairs of bf16, with WIDENED_BITS
    const uint16_t *levels;
} CodedPart;

// Columns of c[m, 64], some vectors of them, += rows of x times a part. of_x: see `sums_of_rows`, if there are zeros.
static inline __attribute__((always_inline)) void add_part(
    const int num_rows, const CodedPart *part, const void *x, long x_stride, const float *of_x, float *c,
    const int first, const int num_vectors, const int bits, const int has_zeros, const int is_bf16) {
    const vuint table = level_table(bits == 4 ? part->levels : NULL);
    const char *group = part->groups;
    const long width = part->width;
    for (long k = 0; k < width; k += GROUP, group += part->each) {
        const void *from = at(x, k, is_bf16);
        const char *codes = group + SCALE_BYTES + zero_bytes(has_zeros);
        if (bits == WIDENED_BITS) codes = (const char *)(part->widened + k / 2 * PANEL);
        vfloat sums[HALF_ROWS][VECTORS] = {};
        if (width - k >= GROUP)  // a number of turns that the compiler knows
            add_pairs(num_rows, GROUP / 2, from, x_stride, codes, table, sums, first, num_vectors, bits, is_bf16);
        else add_pairs(num_rows, (width - k) / 2, from, x_stride, codes, table, sums, first, num_vectors, bits, is_bf16);
#pragma GCC unroll 4
        for (int j = 0; j < num_vectors; j++) {
            const long column = (first + j) * LANES;
            if (has_zeros) {
                const vfloat zero = widened_codes(group + SCALE_BYTES + column);
#pragma GCC unroll 8
                for (int m = 0; m < num_rows; m++)
                    sums[m][j] = vfma(zero, vset(-of_x[m * PART_GROUPS + k / GROUP]), sums[m][j]);
            }
            const vfloat scale = widened_scales(group + 2 * column);
#pragma GCC unroll 8
            for (int m = 0; m < num_rows; m++)
                vstore(c + m * PANEL + column, vfma(sums[m][j], scale, vload(c + m * PANEL + column)));
        }
    }
}

static inline __attribute__((always_inline)) void quantised_tile_of(
    const int num_rows, const CodedPart *part, const void *x, long x_stride, const float *of_x, float *c,
    const int bits, const int has_zeros, const int is_bf16) {
    if (num_rows <= WHOLE_ROWS) {
        add_part(num_rows, part, x, x_stride, of_x, c, 0, VECTORS, bits, has_zeros, is_bf16);
    } else {
        add_part(num_rows, part, x, x_stride, of_x, c, 0, VECTORS / 2, bits, has_zeros, is_bf16);
        add_part(num_rows, part, x, x_stride, of_x, c, VECTORS / 2, VECTORS / 2, bits, has_zeros, is_bf16);
    }
}

typedef void (*QuantisedTile)(const CodedPart *, const void *, long, const float *, float *);

#define QUANTISED_TILE(ROWS, BITS, ZEROS, BF16)                                                          \
    static void quantised_tile_##ROWS##_##BITS##_##ZEROS##_##BF16(                                       \
        const CodedPart *part, const void *x, long x_stride, const float *of_x, float *c) {                   \
        quantised_tile_of(ROWS, part, x, x_stride, of_x, c, BITS, ZEROS, BF16);                          \
    }
#define QUANTISED_TILES(BITS, ZEROS, BF16)                                                               \
    QUANTISED_TILE(1, BITS, ZEROS, BF16) QUANTISED_TILE(2, BITS, ZEROS, BF16)                            \
    QUANTISED_TILE(3, BITS, ZEROS, BF16) QUANTISED_TILE(4, BITS, ZEROS, BF16)                            \
    QUANTISED_TILE(5, BITS, ZEROS, BF16) QUANTISED_TILE(6, BITS, ZEROS, BF16)                            \
    QUANTISED_TILE(7, BITS, ZEROS, BF16) QUANTISED_TILE(8, BITS, ZEROS, BF16)
QUANTISED_TILES(4, 0, 0)
QUANTISED_TILES(4, 0, 1)
QUANTISED_TILES(4, 1, 0)
QUANTISED_TILES(4, 1, 1)
QUANTISED_TILES(8, 0, 0)
QUANTISED_TILES(8, 0, 1)
QUANTISED_TILES(16, 0, 0)
QUANTISED_TILES(16, 0, 1)
#define QUANTISED_ROW(BITS, ZEROS, BF16)                                                                 \
    {quantised_tile_1_##BITS##_##ZEROS##_##BF16, quantised_tile_2_##BITS##_##ZEROS##_##BF16,             \
     quantised_tile_3_##BITS##_##ZEROS##_##BF16, quantised_tile_4_##BITS##_##ZEROS##_##BF16,             \
     quantised_tile_5_##BITS##_##ZEROS##_##BF16, quantised_tile_6_##BITS##_##ZEROS##_##BF16,             \
     quantised_tile_7_##BITS##_##ZEROS##_##BF16, quantised_tile_8_##BITS##_##ZEROS##_##BF16}
enum { FOUR_BITS, FOUR_WITH_ZEROS, EIGHT_BITS, WIDENED };
static const QuantisedTile QUANTISED_TILE_FUNCTIONS[4][2][HALF_ROWS] = {  // [kind][is_bf16][rows - 1]
    {QUANTISED_ROW(4, 0, 0), QUANTISED_ROW(4, 0, 1)},
    {QUANTISED_ROW(4, 1, 0), QUANTISED_ROW(4, 1, 1)},
    {QUANTISED_ROW(8, 0, 0), QUANTISED_ROW(8, 0, 1)},
    {QUANTISED_ROW(16, 0, 0), QUANTISED_ROW(16, 0, 1)}};

// Codes of 8 bits of whole groups, as pairs of bf16 in memory: see `CodedPart`.
static void widen_groups(const char *groups, long num_groups, long each, uint32_t *widened) {
    const vuint none = {};
    for (long g = 0; g < num_groups; g++)
        for (long pair = 0; pair < GROUP / 2; pair++, widened += PANEL) {
            const char *codes = groups + g * each + SCALE_BYTES + pair * 2 * PANEL;
            vuint w[VECTORS];
            widen_pair(codes, none, w, 0, VECTORS, 8);
            fetch_ahead(codes, 8);
            for (int j = 0; j < VECTORS; j++) vstore_bits(widened + j * LANES, w[j]);
        }
}

// Memory of a thread for the products of one panel.
typedef struct {
    float sums[CHUNK_ROWS * PANEL];
    uint32_t widened[WIDENED_GROUPS * GROUP / 2 * PANEL];
    float of_x[CHUNK_ROWS * PART_GROUPS];
} PanelScratch;

// scratch->sums[num_rows, 64] = rows of x times a panel.
static void quantised_panel_product(
    long num_rows, long width, const void *x, const char *panel, int bits, int has_zeros,
    const uint16_t *levels, int is_bf16, PanelScratch *scratch) {
    const int is_widened = bits == 8 && num_rows >= WIDENED_ROWS;
    const int kind = is_widened ? WIDENED : bits == 8 ? EIGHT_BITS : has_zeros ? FOUR_WITH_ZEROS : FOUR_BITS;
    const QuantisedTile *tiles = QUANTISED_TILE_FUNCTIONS[kind][is_bf16];
    const long num_tiles = (num_rows + HALF_ROWS - 1) / HALF_ROWS, each = group_bytes(bits, has_zeros);
    const long most = (is_widened ? WIDENED_GROUPS : K_PART_BYTES / each) * GROUP;
    memset(scratch->sums, 0, (size_t)num_rows * PANEL * sizeof *scratch->sums);
    for (long k = 0; k < width; k += most) {
        const CodedPart part = {.width = width - k < most ? width - k : most, .groups = panel + k / GROUP * each,
                           .each = each, .widened = scratch->widened, .levels = levels};
        if (is_widened) widen_groups(part.groups, num_groups(part.width), each, scratch->widened);
        if (has_zeros) sums_of_rows(num_rows, part.width, at(x, k, is_bf16), width, scratch->of_x, is_bf16);
        for (long tile = 0; tile < num_tiles; tile++) {
            const long row = num_rows * tile / num_tiles, end = num_rows * (tile + 1) / num_tiles;
            tiles[end - row - 1](
                &part, at(x, row * width + k, is_bf16), width, scratch->of_x + row * PART_GROUPS,
                scratch->sums + row * PANEL);
        }
    }
}
