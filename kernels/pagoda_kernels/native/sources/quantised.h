// Products with quantised weights: a code of 4 or 8 bits a weight, a scale for every 32 of them along K.
//
// Codes stand for whole numbers that bf16 holds exactly: an int8 itself, or one of 16 levels. In registers
// they become the pairs of bf16 that VDPBF16PS wants, or floats; a group is added along K into one fp32
// accumulator, which is then multiplied by the scale and added to the groups before it: one order of additions,
// as product.h has. A tile of rows widens the codes beside its products.
//
// With pairs, tiles of more than four rows take half a panel at a time: eight rows share what is widened, and the
// sums of all groups so far stay in registers beside those of one. Codes of 8 bits, which cost more to widen, are
// widened into memory first where there are many rows; with 4 bits that is no faster. As floats, codes take more
// instructions each: both are widened into memory from twelve rows on.
//
// Codes of 4 bits may have a zero point for every group, too, a whole number that is taken off each of them.
// It is taken off the sum, times the sum of x, which costs little beside the products: w is (level - zero) *
// scale, and a product of a group is scale * (sum of level * x - zero * sum of x). Levels about 0 keep the two
// of one size, so that little is lost in their difference.
//
// A panel: for every group 64 scales of bf16, 64 zero points of int8 if it has some, then its codes, a pair of steps after the other. Of a pair
// 8 bits: for every vector of outputs its codes of the one step, then those of the other. 4 bits, with AVX-512: 32
// words of 16, word i with the codes of lane i of the four vectors, lowest first; lane i of vector j is of output
// 16 j + i / 2 and step i % 2. Else two pairs together, bytes with a code of the first pair in the low half: as many
// as a register holds for every two vectors, as UNPCK takes the codes of the one and of the other out of 16 bytes.

#pragma once

#include "panels.h"

#define GROUP 32                      // steps along K that share a scale
#define SCALE_BYTES (PANEL * 2)       // of a group
#define NUM_LEVELS 16
#define K_PART_BYTES (24 * 1024)      // of a panel, which stay in the first-level cache
#define AHEAD_BYTES 8192              // what is fetched into the caches before it is used
#define WIDENED_BITS 16               // of a code that was widened into memory, whatever it takes there
#if TAKES_PAIRS
#define TILE_ROWS 8                   // at most
#define CODED_VECTORS(rows) ((rows) <= 4 ? VECTORS : VECTORS / 2)  // of a tile
#define WIDENED_ROWS 48               // so many rows, at least, have codes widened into memory
#else
#define TILE_ROWS MAX_ROWS
#define CODED_VECTORS(rows) TILE_VECTORS(rows)
#define WIDENED_ROWS 12
#endif
#define WIDENED_BYTES (24 * 1024)     // at a time, which stay in the first-level cache
#define WIDENED_GROUPS (WIDENED_BYTES / (GROUP * PANEL * (TAKES_PAIRS ? 2 : 4)))
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
    } else if (LANES == 16) {
        const long word = 2 * lane + half;
        codes[pair * PANEL + 2 * word + vector / 2] |= (uint8_t)((code & 15) << vector % 2 * 4);
    } else {
        const long byte = lane / 4 * 16 + vector % 2 * 8 + lane % 4 * 2 + half;
        codes[pair / 2 * PANEL * 2 + vector / 2 * 4 * LANES + byte] |= (uint8_t)((code & 15) << pair % 2 * 4);
    }
}

#if LANES == 16
typedef vuint Levels;  // 32, of which the last 16 repeat the first: a lane's bit above the code then does not matter
static inline Levels level_table(const uint16_t *levels) {
    vuint table = {};
    if (levels) {
        memcpy(&table, levels, 2 * NUM_LEVELS);
        memcpy((char *)&table + 2 * NUM_LEVELS, levels, 2 * NUM_LEVELS);
    }
    return table;
}

// Of the codes of two steps, pairs of bf16: vectors `first` and on.
static inline __attribute__((always_inline)) void look_up_pairs(
    const char *codes, long pair, const int is_odd, const Levels *table, vuint *w, int first, const int num_vectors) {
    const vshort words = (vshort)vload_bits(codes + pair * PANEL);
    (void)is_odd;
#pragma GCC unroll 4
    for (int j = 0; j < num_vectors; j++) {
        const vshort lanes = words >> 4 * (first + j);  // of which the low five bits count
#if defined(__AVX512BW__)
        w[j] = (vuint)_mm512_permutexvar_epi16((__m512i)lanes, (__m512i)*table);
#endif
    }
}
#else
typedef struct { vuint low, high; } Levels;  // bytes of 16 levels, again in every 16 bytes
static inline Levels level_table(const uint16_t *levels) {
    uint8_t bytes[2][4 * LANES];
    for (int i = 0; levels && i < 4 * LANES; i++)
        bytes[0][i] = (uint8_t)levels[i % NUM_LEVELS], bytes[1][i] = (uint8_t)(levels[i % NUM_LEVELS] >> 8);
    return levels ? (Levels){vload_bits(bytes[0]), vload_bits(bytes[1])} : (Levels){};
}

static inline __attribute__((always_inline)) void look_up_pairs(
    const char *codes, long pair, const int is_odd, const Levels *table, vuint *w, int first, const int num_vectors) {
#pragma GCC unroll 8
    for (int j = 0; j < num_vectors; j += 2) {
        const vuint both = vload_bits(codes + pair / 2 * PANEL * 2 + (first + j) * 2 * LANES);
        const vuint index = (is_odd ? both >> 4 : both) & 0x0f0f0f0f;
        const vuint low = vlook_up(table->low, index), high = vlook_up(table->high, index);
        w[j] = vjoin_first(low, high);
        w[j + 1] = vjoin_last(low, high);
    }
}
#endif

// LANES of int8 as floats.
static inline vfloat widened_codes(const void *codes) { return __builtin_convertvector(vwiden_bytes(codes), vfloat); }

#if TAKES_PAIRS
// Vectors `first` and on of a panel's, of the pairs of bf16 that the codes of two steps stand for.
static inline __attribute__((always_inline)) void widen_pair(
    const char *codes, long pair, const Levels *table, vuint *w, const int first, const int num_vectors, const int bits) {
    if (bits == 4) {
        look_up_pairs(codes, pair, pair % 2, table, w, first, num_vectors);
        return;
    }
    if (bits == WIDENED_BITS) {
#pragma GCC unroll 4
        for (int j = 0; j < num_vectors; j++) w[j] = vload_bits(codes + (pair * VECTORS + first + j) * 4 * LANES);
        return;
    }
    codes += (pair * VECTORS + first) * 2 * LANES;
#pragma GCC unroll 4
    for (int j = 0; j < num_vectors; j++, codes += 2 * LANES) {
        const vfloat one = widened_codes(codes), other = widened_codes(codes + LANES);
        w[j] = (vuint)one >> 16 | (vuint)other;  // whole numbers below 256: the low half of a float is 0
    }
}
#endif

// Fetch what lies AHEAD_BYTES after the codes of two steps.
static inline __attribute__((always_inline)) void fetch_ahead(const char *codes, long pair, const int bits) {
    for (int line = 0; line < bits / 4; line++)
        __builtin_prefetch(codes + pair * 2 * PANEL * bits / 8 + AHEAD_BYTES + line * 64);
}

#if TAKES_PAIRS
// sums += rows of x times pairs of steps of a group.
static inline __attribute__((always_inline)) void add_pairs(
    const int num_rows, const long num_pairs, const void *x, long x_stride, const char *codes, const Levels *table,
    vfloat sums[TILE_ROWS][VECTORS], const int first, const int num_vectors, const int bits, const int is_bf16) {
#pragma GCC unroll 4
    for (long pair = 0; pair < num_pairs; pair++) {
        vuint w[VECTORS];
        widen_pair(codes, pair, table, w, first, num_vectors, bits);
        if (!first && bits != WIDENED_BITS) fetch_ahead(codes, pair, bits);
#pragma GCC unroll 8
        for (int m = 0; m < num_rows; m++) {
            if (is_bf16) {
                const uint32_t *both = (const uint32_t *)((const uint16_t *)x + m * x_stride + 2 * pair);
#pragma GCC unroll 4
                for (int j = 0; j < num_vectors; j++) add_product(&sums[m][j], both, w[j], 1);
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
#else
// Of two vectors from `first` on, the floats that the codes of two steps stand for: [step][vector].
static inline __attribute__((always_inline)) void widen_floats(
    const char *codes, long pair, const int is_odd, const Levels *table, vfloat w[2][2], const int first, const int bits) {
    if (bits == 4) {
        vuint pairs[2];
        look_up_pairs(codes, pair, is_odd, table, pairs, first, 2);
        for (int j = 0; j < 2; j++) w[0][j] = (vfloat)(pairs[j] << 16), w[1][j] = (vfloat)(pairs[j] & 0xffff0000u);
        return;
    }
    for (int step = 0; step < 2; step++)
        for (int j = 0; j < 2; j++) w[step][j] = widened_codes(codes + ((pair * VECTORS + first + j) * 2 + step) * LANES);
}

// sums += rows of x, floats, times a pair of steps of a group; is_odd: of its number.
static inline __attribute__((always_inline)) void add_pair(
    const int num_rows, long pair, const int is_odd, const float *x, long x_stride, const char *codes, const Levels *table,
    vfloat sums[TILE_ROWS][VECTORS], const int first, const int num_vectors, const int bits) {
    if (!first && bits != WIDENED_BITS) fetch_ahead(codes, pair, bits);
#pragma GCC unroll 8
    for (int j = 0; j < num_vectors; j += 2) {
        vfloat w[2][2];
        if (bits != WIDENED_BITS) widen_floats(codes, pair, is_odd, table, w, first + j, bits);
#pragma GCC unroll 2
        for (int step = 0; step < 2; step++) {
            const float *words = (const float *)codes + (2 * pair + step) * PANEL + (first + j) * LANES;
            if (bits == WIDENED_BITS) w[step][0] = vload(words), w[step][1] = vload(words + LANES);
#pragma GCC unroll 8
            for (int m = 0; m < num_rows; m++) {
                const vfloat of_row = vset(x[m * x_stride + 2 * pair + step]);
                vadd_product(&sums[m][j], of_row, w[step][0]);
                vadd_product(&sums[m][j + 1], of_row, w[step][1]);
            }
        }
    }
}

static inline __attribute__((always_inline)) void add_pairs(
    const int num_rows, const long num_pairs, const float *x, long x_stride, const char *codes, const Levels *table,
    vfloat sums[TILE_ROWS][VECTORS], const int first, const int num_vectors, const int bits, const int is_bf16) {
    long pair = 0;
    (void)is_bf16;
#pragma GCC unroll 1
    for (; pair + 2 <= num_pairs; pair += 2) {
        add_pair(num_rows, pair, 0, x, x_stride, codes, table, sums, first, num_vectors, bits);
        add_pair(num_rows, pair + 1, 1, x, x_stride, codes, table, sums, first, num_vectors, bits);
    }
    if (pair < num_pairs) add_pair(num_rows, pair, 0, x, x_stride, codes, table, sums, first, num_vectors, bits);
}
#endif

// x[0] + ... + x[GROUP - 1], or fewer, always in the same order.
static inline __attribute__((always_inline)) float sum_of_x(const void *x, long count, const int is_bf16) {
#if TAKES_PAIRS
    if (count == GROUP && is_bf16) {
        const vuint pairs = vload_bits(x);
        return vsum((vfloat)(pairs << 16) + (vfloat)(pairs & 0xffff0000u));
    }
#endif
    if (count == GROUP) {
        vfloat sums = vload(x);
        for (long i = LANES; i < GROUP; i += LANES) sums += vload((const float *)x + i);
        return vsum(sums);
    }
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
    const uint32_t *widened;  // with WIDENED_BITS, [groups, GROUP / 2, PANEL]: pairs of bf16; or [groups, GROUP, PANEL]: floats
    const uint16_t *levels;
} CodedPart;

// Columns of c[m, 64], some vectors of them, += rows of x times a part. of_x: see `sums_of_rows`, if there are zeros.
static inline __attribute__((always_inline)) void add_part(
    const int num_rows, const CodedPart *part, const void *x, long x_stride, const float *of_x, float *c,
    const int first, const int num_vectors, const int bits, const int has_zeros, const int is_bf16) {
    const Levels table = level_table(bits == 4 ? part->levels : NULL);
    const char *group = part->groups;
    const long width = part->width;
    for (long k = 0; k < width; k += GROUP, group += part->each) {
        const void *from = at(x, k, is_bf16);
        const char *codes = group + SCALE_BYTES + zero_bytes(has_zeros);
        if (bits == WIDENED_BITS) codes = (const char *)(part->widened + (TAKES_PAIRS ? k / 2 : k) * PANEL);
        vfloat sums[TILE_ROWS][VECTORS] = {};
        if (width - k >= GROUP)  // a number of turns that the compiler knows
            add_pairs(num_rows, GROUP / 2, from, x_stride, codes, &table, sums, first, num_vectors, bits, is_bf16);
        else add_pairs(num_rows, (width - k) / 2, from, x_stride, codes, &table, sums, first, num_vectors, bits, is_bf16);
#pragma GCC unroll 16
        for (int j = 0; j < num_vectors; j++) {
            const long column = (first + j) * LANES;
            if (has_zeros) {
                const vfloat zero = widened_codes(group + SCALE_BYTES + column);
#pragma GCC unroll 8
                for (int m = 0; m < num_rows; m++)
                    sums[m][j] = vfma(zero, vset(-of_x[m * PART_GROUPS + k / GROUP]), sums[m][j]);
            }
            const vfloat scale = vload_any(group + 2 * column, 0, 1);
#pragma GCC unroll 8
            for (int m = 0; m < num_rows; m++)
                vstore(c + m * PANEL + column, vfma(sums[m][j], scale, vload(c + m * PANEL + column)));
        }
    }
}

static inline __attribute__((always_inline)) void quantised_tile_of(
    const int num_rows, const CodedPart *part, const void *x, long x_stride, const float *of_x, float *c,
    const int bits, const int has_zeros, const int is_bf16) {
#if TAKES_PAIRS  // codes are shifted by constants
#pragma GCC unroll 2
#endif
    for (int first = 0; first < VECTORS; first += CODED_VECTORS(num_rows))
        add_part(num_rows, part, x, x_stride, of_x, c, first, CODED_VECTORS(num_rows), bits, has_zeros, is_bf16);
}

typedef void (*QuantisedTile)(const CodedPart *, const void *, long, const float *, float *);

#define QUANTISED_TILE(ROWS, BITS, ZEROS, BF16)                                                          \
    static void quantised_tile_##ROWS##_##BITS##_##ZEROS##_##BF16(                                       \
        const CodedPart *part, const void *x, long x_stride, const float *of_x, float *c) {              \
        quantised_tile_of(ROWS, part, x, x_stride, of_x, c, BITS, ZEROS, BF16);                          \
    }
#define TILE_NAME(ROWS, BITS, ZEROS, BF16) quantised_tile_##ROWS##_##BITS##_##ZEROS##_##BF16
enum { FOUR_BITS, FOUR_WITH_ZEROS, EIGHT_BITS, WIDENED, WIDENED_WITH_ZEROS, NUM_KINDS };
#if TAKES_PAIRS
#define MORE_TILES(BITS, ZEROS, BF16) QUANTISED_TILE(7, BITS, ZEROS, BF16) QUANTISED_TILE(8, BITS, ZEROS, BF16)
#define MORE_NAMES(BITS, ZEROS, BF16) TILE_NAME(7, BITS, ZEROS, BF16), TILE_NAME(8, BITS, ZEROS, BF16)
#else
#define MORE_TILES(BITS, ZEROS, BF16)
#define MORE_NAMES(BITS, ZEROS, BF16)
#endif
#define QUANTISED_TILES(BITS, ZEROS, BF16)                                                               \
    QUANTISED_TILE(1, BITS, ZEROS, BF16) QUANTISED_TILE(2, BITS, ZEROS, BF16)                            \
    QUANTISED_TILE(3, BITS, ZEROS, BF16) QUANTISED_TILE(4, BITS, ZEROS, BF16)                            \
    QUANTISED_TILE(5, BITS, ZEROS, BF16) QUANTISED_TILE(6, BITS, ZEROS, BF16)                            \
    MORE_TILES(BITS, ZEROS, BF16)
#define QUANTISED_ROW(BITS, ZEROS, BF16)                                                                 \
    {TILE_NAME(1, BITS, ZEROS, BF16), TILE_NAME(2, BITS, ZEROS, BF16), TILE_NAME(3, BITS, ZEROS, BF16),  \
     TILE_NAME(4, BITS, ZEROS, BF16), TILE_NAME(5, BITS, ZEROS, BF16), TILE_NAME(6, BITS, ZEROS, BF16),  \
     MORE_NAMES(BITS, ZEROS, BF16)}
QUANTISED_TILES(4, 0, 0)
QUANTISED_TILES(4, 1, 0)
QUANTISED_TILES(8, 0, 0)
QUANTISED_TILES(16, 0, 0)
#if TAKES_AMX  // all pairs
static const QuantisedTile QUANTISED_TILE_FUNCTIONS[NUM_KINDS][1][TILE_ROWS] = {  // [kind][floats alone][rows - 1]
    {QUANTISED_ROW(4, 0, 0)}, {QUANTISED_ROW(4, 1, 0)}, {QUANTISED_ROW(8, 0, 0)}, {QUANTISED_ROW(16, 0, 0)}};
#elif TAKES_PAIRS
QUANTISED_TILES(4, 0, 1)
QUANTISED_TILES(4, 1, 1)
QUANTISED_TILES(8, 0, 1)
QUANTISED_TILES(16, 0, 1)
static const QuantisedTile QUANTISED_TILE_FUNCTIONS[NUM_KINDS][2][TILE_ROWS] = {  // [kind][is_bf16][rows - 1]
    {QUANTISED_ROW(4, 0, 0), QUANTISED_ROW(4, 0, 1)},
    {QUANTISED_ROW(4, 1, 0), QUANTISED_ROW(4, 1, 1)},
    {QUANTISED_ROW(8, 0, 0), QUANTISED_ROW(8, 0, 1)},
    {QUANTISED_ROW(16, 0, 0), QUANTISED_ROW(16, 0, 1)}};
#else
QUANTISED_TILES(16, 1, 0)
static const QuantisedTile QUANTISED_TILE_FUNCTIONS[NUM_KINDS][1][TILE_ROWS] = {  // [kind][all take floats][rows - 1]
    {QUANTISED_ROW(4, 0, 0)}, {QUANTISED_ROW(4, 1, 0)}, {QUANTISED_ROW(8, 0, 0)}, {QUANTISED_ROW(16, 0, 0)},
    {QUANTISED_ROW(16, 1, 0)}};
#endif

// Codes of whole groups, as pairs of bf16 or floats in memory: see `CodedPart`.
static inline __attribute__((always_inline)) void widen_groups_of(
    const char *groups, long num_groups, long each, const uint16_t *levels, uint32_t *widened, int has_zeros, const int bits) {
    const Levels table = level_table(bits == 4 ? levels : NULL);
    for (long g = 0; g < num_groups; g++) {
        const char *codes = groups + g * each + SCALE_BYTES + zero_bytes(has_zeros);
#pragma GCC unroll 2
        for (long pair = 0; pair < GROUP / 2; pair++) {
            fetch_ahead(codes, pair, bits);
#if TAKES_PAIRS
            vuint w[VECTORS];
            widen_pair(codes, pair, &table, w, 0, VECTORS, bits);
            for (int j = 0; j < VECTORS; j++, widened += LANES) vstore_bits(widened, w[j]);
#else
            for (int j = 0; j < VECTORS; j += 2) {
                vfloat w[2][2];
                widen_floats(codes, pair, pair % 2, &table, w, j, bits);
                for (int step = 0; step < 2; step++)
                    for (int v = 0; v < 2; v++)
                        vstore((float *)widened + step * PANEL + (j + v) * LANES, w[step][v]);
            }
            widened += 2 * PANEL;
#endif
        }
    }
}

static void widen_groups(
    const char *groups, long num_groups, long each, const uint16_t *levels, uint32_t *widened, int has_zeros, int bits) {
    if (bits == 8) widen_groups_of(groups, num_groups, each, NULL, widened, 0, 8);
    else widen_groups_of(groups, num_groups, each, levels, widened, has_zeros, 4);
}

// Memory of a thread for the products of one panel.
typedef struct {
    float sums[CHUNK_ROWS * PANEL];
    uint32_t widened[(1 + TAKES_AMX) * WIDENED_BYTES / 4];
    float of_x[CHUNK_ROWS * PART_GROUPS];
} PanelScratch;

// Told once the sums of rows [row, end) are complete, tile by tile: while they are in the first-level cache.
typedef struct RowsDone {
    void (*tell)(const struct RowsDone *, long row, long end);
} RowsDone;

// scratch->sums[num_rows, 64] = rows of x, see copy_x, times a panel.
static void quantised_panel_product(
    long num_rows, long width, const void *x, const char *panel, int bits, int has_zeros,
    const uint16_t *levels, int is_bf16, PanelScratch *scratch, const RowsDone *done) {
    const int is_widened = num_rows >= WIDENED_ROWS && (bits == 8 || !TAKES_PAIRS);
    const int kind = is_widened ? WIDENED + has_zeros : bits == 8 ? EIGHT_BITS : FOUR_BITS + has_zeros;
    const int is_pairs = is_bf16 && TAKES_PAIRS && !TAKES_AMX;
    const QuantisedTile *functions = QUANTISED_TILE_FUNCTIONS[kind][is_pairs];
    const RowTiles tiles = row_tiles(num_rows, TILE_ROWS);
    const long each = group_bytes(bits, has_zeros);
    const long most = (is_widened ? WIDENED_GROUPS : K_PART_BYTES / each) * GROUP;
    memset(scratch->sums, 0, (size_t)num_rows * PANEL * sizeof *scratch->sums);
    for (long k = 0; k < width; k += most) {
        const CodedPart part = {.width = width - k < most ? width - k : most, .groups = panel + k / GROUP * each,
                                .each = each, .widened = scratch->widened, .levels = levels};
        const void *x_part = at(x, k, is_pairs);
        if (is_widened) widen_groups(part.groups, num_groups(part.width), each, levels, scratch->widened, has_zeros, bits);
        if (has_zeros) sums_of_rows(num_rows, part.width, x_part, width, scratch->of_x, is_pairs);
        for (long tile = 0, row = 0, end; tile < tiles.count; tile++, row = end) {
            end = row + rows_of_tile(&tiles, tile);
            functions[end - row - 1](
                &part, at(x_part, row * width, is_pairs), width, scratch->of_x + row * PART_GROUPS,
                scratch->sums + row * PANEL);
            if (k + most >= width) done->tell(done, row, end);
        }
    }
}
