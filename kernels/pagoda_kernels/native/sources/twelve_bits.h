// Products with bf16 weights that lie in memory in twelve bits each, none of them changed. Few exponents occur in a
// weight: of nearly all numbers it is one of sixteen, so four bits say which, beside sign and mantissa in eight. What
// has another exponent is an exception, kept beside the panel, and takes its place as its step is read.
//
// A step of a panel is three registers of words of 16 bits. Word i of the first has sign and mantissa of bf16 i of
// vectors 0 and 1: those of vector 0 where a bf16 has them, those of vector 1 where it has them if the bytes change
// places. So has the second one of vectors 2 and 3. Word i of the third has their codes, the first vector's lowest.
// In registers a vector takes three or four instructions, and the pairs that VDPBF16PS wants are those of product.h:
// so are all sums.
//
// Few rows are bound by what they read, which is a quarter less. With more than a tile has, the first one
// also writes what it widens into the first-level cache, for the others.

#pragma once

#include "quantised.h"

#define TWELVE_BITS 12
#if TAKES_PAIRS && LANES == 16
#define HAS_TWELVE_BITS 1
#else
#define HAS_TWELVE_BITS 0
#endif
#define NEAR_TWELVE 24         // steps ahead of those multiplied: from the second-level cache to the first
#define FEW_ROWS_AHEAD 32      // and of a single tile from memory to the second-level cache
#define STEP_BYTES (PANEL * 2 * TWELVE_BITS / 8)
#define STEP_LINES (STEP_BYTES / 64)
#define NUM_EXPONENTS 16
#define NO_STEP INT32_MAX  // of the entry behind the last exception of a panel

typedef struct {
    int32_t step;    // of its panel
    uint16_t place;  // of the step's PANEL * 2 bf16, as a dense panel has them
    uint16_t value;
} Exception;

typedef struct {
    const Exception *all;
    const int64_t *first;       // [panels]: of each; they end with NO_STEP
    const uint16_t *exponents;  // [NUM_EXPONENTS]: in place, so the bits of a bf16 without sign and mantissa
} Exceptions;

#define SIGN_AND_MANTISSA 0x807f

static inline uint16_t swapped(uint16_t word) { return (uint16_t)(word << 8 | word >> 8); }

typedef struct { uint8_t codes[256]; } ExponentCodes;  // by exponent; NUM_EXPONENTS: none
static inline ExponentCodes codes_of(const uint16_t *exponents) {
    ExponentCodes made;
    memset(&made, NUM_EXPONENTS, sizeof made);
    for (int code = 0; code < NUM_EXPONENTS; code++) made.codes[exponents[code] >> 7] = (uint8_t)code;
    return made;
}
static inline int code_of(const ExponentCodes *codes, uint16_t value) { return codes->codes[value >> 7 & 0xff]; }

static inline void place_twelve(uint8_t *step, long place, uint16_t value, int code) {
    const long vector = place / (2 * LANES), word = place % (2 * LANES);
    uint16_t *both = (uint16_t *)step + vector / 2 * 2 * LANES + word, *codes = (uint16_t *)step + PANEL + word;
    const uint16_t kept = value & SIGN_AND_MANTISSA;
    *both |= vector % 2 ? swapped(kept) : kept;
    *codes = (uint16_t)(*codes | code << 4 * vector);
}

// One bf16 of a step, unless it is an exception.
static inline uint16_t twelve_at(const uint8_t *step, long place, const uint16_t *exponents) {
    const long vector = place / (2 * LANES), word = place % (2 * LANES);
    const uint16_t both = ((const uint16_t *)step)[vector / 2 * 2 * LANES + word];
    const int code = ((const uint16_t *)step)[PANEL + word] >> 4 * vector & 15;
    return (uint16_t)(((vector % 2 ? swapped(both) : both) & SIGN_AND_MANTISSA) | exponents[code]);
}

#if HAS_TWELVE_BITS
#define SWAP_BYTES(i) i + 1, i, i + 3, i + 2, i + 5, i + 4, i + 7, i + 6, i + 9, i + 8, i + 11, i + 10, i + 13, i + 12, i + 15, i + 14

static inline vuint exponent_table(const uint16_t *exponents) {  // of which the low five bits of a word choose
    vuint table;
    memcpy(&table, exponents, 2 * NUM_EXPONENTS);
    memcpy((char *)&table + 2 * NUM_EXPONENTS, exponents, 2 * NUM_EXPONENTS);
    return table;
}

static inline __attribute__((always_inline)) vuint widen_twelve(
    const uint8_t *step, const vshort codes, const int vector, const vuint table) {
    static const uint8_t SWAPPED[64] __attribute__((aligned(64))) = {SWAP_BYTES(0), SWAP_BYTES(16), SWAP_BYTES(32), SWAP_BYTES(48)};
    __m512i both = (__m512i)vload_bits(step + vector / 2 * 4 * LANES);
    if (vector % 2) both = _mm512_shuffle_epi8(both, (__m512i)vload_bits(SWAPPED));
    const __m512i exponents = _mm512_permutexvar_epi16((__m512i)(codes >> 4 * vector), (__m512i)table);
    return (vuint)_mm512_ternarylogic_epi32(  // both & mask | exponents
        both, _mm512_set1_epi16((short)SIGN_AND_MANTISSA), exponents, 0xea);
}

// A step with exceptions, widened.
static __attribute__((noinline)) void widen_exceptions(
    const uint8_t *step, const Exception *exception, const vuint table, uint32_t *words) {
    const vshort codes = (vshort)vload_bits(step + PANEL * 2);
    for (int j = 0; j < VECTORS; j++) vstore_bits(words + j * LANES, widen_twelve(step, codes, j, table));
    for (int32_t number = exception->step; exception->step == number; exception++)
        ((uint16_t *)words)[exception->place] = exception->value;
}

// Some steps of a panel.
typedef struct {
    const uint8_t *steps;
    long first;  // number of the first one
    long count;
    const Exception *exception;  // the first one at or after it
    vuint table;
    const uint8_t *ahead;  // what is fetched meanwhile,
    long ahead_stride;     // so many bytes a step
    uint32_t *widened;     // [count, PANEL]
} TwelvePart;

// c[m, 64] (+)= rows of x times a part. keeps: write what is widened.
static inline __attribute__((always_inline)) void twelve_tile_of(
    const int num_rows, const TwelvePart *part, const uint32_t *x, long x_stride, float *c, const int adds, const int keeps) {
    const uint8_t *step = part->steps, *ahead = part->ahead;
    const Exception *exception = part->exception;
    const vuint table = part->table;
    uint32_t *widened = part->widened, words[PANEL];
    vfloat sums[MAX_ROWS][VECTORS];
#pragma GCC unroll 6
    for (int m = 0; m < num_rows; m++)
#pragma GCC unroll 4
        for (int j = 0; j < VECTORS; j++) sums[m][j] = adds ? vload(c + m * PANEL + j * LANES) : (vfloat){};
    const long end = part->first + part->count;
    for (long number = part->first; number < end; number++, x++, step += STEP_BYTES, ahead += part->ahead_stride) {
#pragma GCC unroll 3
        for (int line = 0; line < STEP_LINES; line++) {
            __builtin_prefetch(step + NEAR_TWELVE * STEP_BYTES + line * 64);
            __builtin_prefetch(ahead + line * 64, 0, 2);
        }
        const int is_plain = __builtin_expect(exception->step != number, 1);
        if (!is_plain) {
            widen_exceptions(step, exception, table, words);
            while (exception->step == number) exception++;
        }
        const vshort codes = (vshort)vload_bits(step + PANEL * 2);
        vuint w[VECTORS];
#pragma GCC unroll 4
        for (int j = 0; j < VECTORS; j++) w[j] = widen_twelve(step, codes, j, table);
        if (!is_plain)
#pragma GCC unroll 4
            for (int j = 0; j < VECTORS; j++) w[j] = vload_bits(words + j * LANES);
#pragma GCC unroll 4
        for (int j = 0; j < VECTORS; j++) {
            stay_in_register(&w[j]);
            if (keeps) vstore_bits(widened + j * LANES, w[j]);
        }
#pragma GCC unroll 6
        for (int m = 0; m < num_rows; m++)
#pragma GCC unroll 4
            for (int j = 0; j < VECTORS; j++) add_product(&sums[m][j], x + m * x_stride, w[j], 1);
        if (keeps) widened += PANEL;
    }
#pragma GCC unroll 6
    for (int m = 0; m < num_rows; m++)
#pragma GCC unroll 4
        for (int j = 0; j < VECTORS; j++) vstore(c + m * PANEL + j * LANES, sums[m][j]);
}

typedef void (*TwelveTile)(const TwelvePart *, const uint32_t *, long, float *);

#define TWELVE_TILE(ROWS, ADDS, KEEPS)                                                                       \
    static void twelve_tile_##ROWS##_##ADDS##_##KEEPS(                                                       \
        const TwelvePart *part, const uint32_t *x, long x_stride, float *c) {                                \
        twelve_tile_of(ROWS, part, x, x_stride, c, ADDS, KEEPS);                                             \
    }
#define TWELVE_TILES(ADDS, KEEPS)                                                                            \
    TWELVE_TILE(3, ADDS, KEEPS) TWELVE_TILE(4, ADDS, KEEPS)                                                  \
    TWELVE_TILE(5, ADDS, KEEPS) TWELVE_TILE(6, ADDS, KEEPS)
#define TWELVE_ALONE(ADDS) TWELVE_TILE(1, ADDS, 0) TWELVE_TILE(2, ADDS, 0) TWELVE_TILES(ADDS, 0)
TWELVE_ALONE(0)
TWELVE_ALONE(1)
TWELVE_TILES(0, 1)
TWELVE_TILES(1, 1)
#define TWELVE_ROW(ADDS, KEEPS)                                                                              \
    twelve_tile_3_##ADDS##_##KEEPS, twelve_tile_4_##ADDS##_##KEEPS,                                          \
    twelve_tile_5_##ADDS##_##KEEPS, twelve_tile_6_##ADDS##_##KEEPS
#define TWELVE_ROW_ALONE(ADDS) twelve_tile_1_##ADDS##_0, twelve_tile_2_##ADDS##_0, TWELVE_ROW(ADDS, 0)
// [adds][keeps][rows - 1]. A tile that keeps is one of several, which have 3 rows at least.
static const TwelveTile TWELVE_TILE_FUNCTIONS[2][2][MAX_ROWS] = {
    {{TWELVE_ROW_ALONE(0)}, {NULL, NULL, TWELVE_ROW(0, 1)}}, {{TWELVE_ROW_ALONE(1)}, {NULL, NULL, TWELVE_ROW(1, 1)}}};
#endif
