// Products with bf16 weights that lie in memory in twelve bits each, none of them changed. The high byte of a bf16, its
// sign and all of its exponent but the last bit, is one of sixteen for nearly all numbers of a weight, so four bits say
// which, beside the low byte as it is. What has another high byte is an exception, kept beside the panel, and takes its
// place as its step is read.
//
// A step of a panel is its low bytes, then its codes. A register of low bytes has those of two vectors, 8 of the one and
// 8 of the other by turns, as UNPCK joins them with high bytes to the pairs of product.h: so are all sums. A byte of a
// register of codes has those of that byte of two registers of low bytes, the first one's in its low half.
//
// Few rows are bound by what they read, which is a quarter less. With more than a tile has, the first one
// also writes what it widens into the first-level cache, for the others; where registers do not hold both its sums and
// what it widens, a part is widened before.

#pragma once

#include "quantised.h"

#define TWELVE_BITS 12
#define NEAR_TWELVE 24         // steps ahead of those multiplied: from the second-level cache to the first
#define FEW_ROWS_AHEAD 32      // and of a single tile from memory to the second-level cache
#define STEP_BYTES (PANEL * 2 * TWELVE_BITS / 8)
#define STEP_LINES (STEP_BYTES / 64)
#define NUM_HIGH_BYTES 16
#define NO_STEP INT32_MAX  // of the entry behind the last exception of a panel
#if TILE_REGISTERS > 16
#define FUSED_ROWS MAX_ROWS    // of a tile that widens what it multiplies, at most
#else
#define FUSED_ROWS 1
#endif
#define WIDENED_TOGETHER(vectors) (TAKES_PAIRS ? (vectors) : 2)  // of so many vectors that have sums

typedef struct {
    int32_t step;    // of its panel
    uint16_t place;  // of the step's PANEL * 2 bf16, as a dense panel has them
    uint16_t value;
} Exception;

typedef struct {
    const Exception *all;
    const int64_t *first;       // [panels]: of each; they end with NO_STEP
    const uint8_t *high_bytes;  // [NUM_HIGH_BYTES]: of the bf16 that have a code
} Exceptions;

typedef struct { uint8_t of[256]; } HighByteCodes;  // NUM_HIGH_BYTES: none
static inline HighByteCodes codes_of(const uint8_t *high_bytes) {
    HighByteCodes codes;
    memset(&codes, NUM_HIGH_BYTES, sizeof codes);
    for (int code = 0; code < NUM_HIGH_BYTES; code++) codes.of[high_bytes[code]] = (uint8_t)code;
    return codes;
}

// Where a bf16 of a step has its low byte, and its code.
typedef struct {
    long low, code, shift;
} TwelvePlace;

static inline TwelvePlace place_of_twelve(long place) {
    const long vector = place / (2 * LANES), word = place % (2 * LANES), of_two = vector / 2;
    const long byte = word / 8 * 16 + vector % 2 * 8 + word % 8;
    return (TwelvePlace){of_two * 4 * LANES + byte, PANEL * 2 + of_two / 2 * 4 * LANES + byte, of_two % 2 * 4};
}

static inline void place_twelve(uint8_t *step, long place, uint16_t value, int code) {
    const TwelvePlace at = place_of_twelve(place);
    step[at.low] = (uint8_t)value;
    step[at.code] = (uint8_t)(step[at.code] | code << at.shift);
}

// One bf16 of a step, unless it is an exception.
static inline uint16_t twelve_at(const uint8_t *step, long place, const uint8_t *high_bytes) {
    const TwelvePlace at = place_of_twelve(place);
    return (uint16_t)(high_bytes[step[at.code] >> at.shift & 15] << 8 | step[at.low]);
}

static inline vuint high_byte_table(const uint8_t *high_bytes) {  // again in every 16 bytes
    uint8_t bytes[4 * LANES];
    for (int i = 0; i < 4 * LANES; i++) bytes[i] = high_bytes[i % NUM_HIGH_BYTES];
    return vload_bits(bytes);
}

// Vectors `first` and on of a step, pairs of bf16; `first` and their number are even.
static inline __attribute__((always_inline)) void widen_twelve(
    const uint8_t *step, const vuint table, const int first, const int num_vectors, vuint *w) {
#pragma GCC unroll 8
    for (int j = 0; j < num_vectors; j += 2) {
        const int of_two = (first + j) / 2;
        const vuint codes = vload_bits(step + PANEL * 2 + of_two / 2 * 4 * LANES);
        const vuint high = vlook_up(table, (of_two % 2 ? codes >> 4 : codes) & 0x0f0f0f0f);
        const vuint low = vload_bits(step + of_two * 4 * LANES);
        w[j] = vjoin_first(low, high);
        w[j + 1] = vjoin_last(low, high);
    }
}

// A step with exceptions, of which `exception` is the first; return the first one of a later step.
static __attribute__((noinline)) const Exception *widen_exceptions(
    const uint8_t *step, const Exception *exception, const vuint table, uint32_t *words) {
    vuint w[VECTORS];
    widen_twelve(step, table, 0, VECTORS, w);
    for (int j = 0; j < VECTORS; j++) vstore_bits(words + j * LANES, w[j]);
    for (const int32_t number = exception->step; exception->step == number; exception++)
        ((uint16_t *)words)[exception->place] = exception->value;
    return exception;
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

// sums[m, num_vectors] += rows of x times one step: `step`, or `words` of an exceptional one. keeps: write what is widened.
static inline __attribute__((always_inline)) void add_twelve(
    const int num_rows, const int first, const int num_vectors, vfloat sums[MAX_ROWS][VECTORS], const uint32_t *x, long x_stride,
    const uint8_t *step, const uint32_t *words, const vuint table, uint32_t *widened, const int keeps) {
    const int together = WIDENED_TOGETHER(num_vectors);
#pragma GCC unroll 8
    for (int from = 0; from < num_vectors; from += together) {
        vuint w[VECTORS];
        if (!words) widen_twelve(step, table, first + from, together, w);
#pragma GCC unroll 4
        for (int j = 0; j < together; j++) {
            if (words) w[j] = vload_bits(words + (first + from + j) * LANES);
            stay_in_register(&w[j]);
            if (keeps) vstore_bits(widened + (first + from + j) * LANES, w[j]);
        }
#pragma GCC unroll 2
        for (int half = 0; half < num_halves(1); half++)
#pragma GCC unroll 6
            for (int m = 0; m < num_rows; m++)
#pragma GCC unroll 4
                for (int j = 0; j < together; j++)
                    add_product(&sums[m][from + j], x + m * x_stride + half, half_of(w[j], half, 1), 1);
    }
}

// c[m, 64] (+)= rows of x times a part.
static inline __attribute__((always_inline)) void twelve_tile_of(
    const int num_rows, const TwelvePart *part, const uint32_t *x, long x_stride, float *c, const int adds, const int keeps) {
    const int each = TILE_VECTORS(num_rows);
    const vuint table = part->table;
    const long end = part->first + part->count;
    for (int first = 0; first < VECTORS; first += each) {
        const uint8_t *step = part->steps, *ahead = part->ahead;
        const Exception *exception = part->exception;
        const uint32_t *x_step = x;
        uint32_t *widened = part->widened, words[PANEL];
        vfloat sums[MAX_ROWS][VECTORS];
#pragma GCC unroll 6
        for (int m = 0; m < num_rows; m++)
#pragma GCC unroll 16
            for (int j = 0; j < each; j++) sums[m][j] = adds ? vload(c + m * PANEL + (first + j) * LANES) : (vfloat){};
        for (long number = part->first; number < end; number++) {
            if (!first)
#pragma GCC unroll 3
                for (int line = 0; line < STEP_LINES; line++) {
                    __builtin_prefetch(step + NEAR_TWELVE * STEP_BYTES + line * 64);
                    __builtin_prefetch(ahead + line * 64, 0, 2);
                }
            if (__builtin_expect(exception->step != number, 1)) {
                add_twelve(num_rows, first, each, sums, x_step, x_stride, step, NULL, table, widened, keeps);
            } else {
                exception = widen_exceptions(step, exception, table, words);
                add_twelve(num_rows, first, each, sums, x_step, x_stride, step, words, table, widened, keeps);
            }
            step += STEP_BYTES, ahead += part->ahead_stride, x_step += x_words(1, 1);
            if (keeps) widened += PANEL;
        }
#pragma GCC unroll 6
        for (int m = 0; m < num_rows; m++)
#pragma GCC unroll 16
            for (int j = 0; j < each; j++) vstore(c + m * PANEL + (first + j) * LANES, sums[m][j]);
    }
}

// Write a part as pairs of bf16. What comes next is left to the tiles to fetch, which memory would wait for else.
static void widen_part(const TwelvePart *part) {
    const uint8_t *step = part->steps;
    const Exception *exception = part->exception;
    const vuint table = part->table;
    uint32_t *widened = part->widened;
    for (long number = part->first; number < part->first + part->count; number++) {
#pragma GCC unroll 3
        for (int line = 0; line < STEP_LINES; line++) __builtin_prefetch(step + NEAR_TWELVE * STEP_BYTES + line * 64);
        if (__builtin_expect(exception->step != number, 1)) {
            vuint w[VECTORS];
            widen_twelve(step, table, 0, VECTORS, w);
#pragma GCC unroll 16
            for (int j = 0; j < VECTORS; j++) vstore_bits(widened + j * LANES, w[j]);
        } else {
            exception = widen_exceptions(step, exception, table, widened);
        }
        step += STEP_BYTES, widened += PANEL;
    }
}

typedef void (*TwelveTile)(const TwelvePart *, const uint32_t *, long, float *);

#define TWELVE_TILE(ROWS, ADDS, KEEPS)                                                                       \
    static void twelve_tile_##ROWS##_##ADDS##_##KEEPS(                                                       \
        const TwelvePart *part, const uint32_t *x, long x_stride, float *c) {                                \
        twelve_tile_of(ROWS, part, x, x_stride, c, ADDS, KEEPS);                                             \
    }
#define TWELVE_TILE_NAME(ROWS, ADDS, KEEPS) twelve_tile_##ROWS##_##ADDS##_##KEEPS
TWELVE_TILE(1, 0, 0)
TWELVE_TILE(1, 1, 0)
#if FUSED_ROWS > 1
#define TWELVE_TILES(ADDS, KEEPS)                                                                            \
    TWELVE_TILE(3, ADDS, KEEPS) TWELVE_TILE(4, ADDS, KEEPS)                                                  \
    TWELVE_TILE(5, ADDS, KEEPS) TWELVE_TILE(6, ADDS, KEEPS)
#define TWELVE_NAMES(ADDS, KEEPS)                                                                            \
    TWELVE_TILE_NAME(3, ADDS, KEEPS), TWELVE_TILE_NAME(4, ADDS, KEEPS),                                      \
    TWELVE_TILE_NAME(5, ADDS, KEEPS), TWELVE_TILE_NAME(6, ADDS, KEEPS)
#define TWELVE_ROW(ADDS)                                                                                     \
    {{TWELVE_TILE_NAME(1, ADDS, 0), TWELVE_TILE_NAME(2, ADDS, 0), TWELVE_NAMES(ADDS, 0)},                    \
     {NULL, NULL, TWELVE_NAMES(ADDS, 1)}}
TWELVE_TILE(2, 0, 0)
TWELVE_TILE(2, 1, 0)
TWELVE_TILES(0, 0)
TWELVE_TILES(1, 0)
TWELVE_TILES(0, 1)
TWELVE_TILES(1, 1)
#else
#define TWELVE_ROW(ADDS) {{TWELVE_TILE_NAME(1, ADDS, 0)}}
#endif
// [adds][keeps][rows - 1]. A tile that keeps is one of several, which have 3 rows at least.
static const TwelveTile TWELVE_TILE_FUNCTIONS[2][2][FUSED_ROWS] = {TWELVE_ROW(0), TWELVE_ROW(1)};
