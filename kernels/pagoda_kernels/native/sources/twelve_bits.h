// Products with bf16 weights that lie in memory in twelve bits each, none of them changed. The high byte of a bf16, its
// sign and all of its exponent but the last bit, is one of sixteen for nearly all numbers of a weight, so four bits say
// which, beside the low byte as it is. What has another high byte is an exception, kept beside the panel, and takes its
// place as its step is read.
//
// A step of a panel is its low bytes, then its codes. A register of low bytes has those of two vectors, 8 of the one and
// 8 of the other by turns, as UNPCK joins them with high bytes to the pairs of product.h: so are all sums. A byte of a
// register of codes has those of that byte of two registers of low bytes, the first one's in its low half.
//
// Few rows are bound by what they read, which is a quarter less. Where registers do not hold both a tile's sums and what
// it widens, as those of six rows, a part is widened into the first-level cache before. With more than a tile has, the
// first one also writes what it widens there, for the others; where products take floats, a part is widened to those.

#pragma once

#include "parts.h"
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
#define FUSED_ROWS 5
#endif
#define NUM_KEEPING TAKES_PAIRS  // kinds of tiles that also write what they widen
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

// Some steps of a panel.
typedef struct {
    const uint8_t *steps;
    long first;  // number of the first one
    long count;
    const Exception *exception;  // the first one at or after it
    vuint table, nibbles, odd;   // high bytes; masks of codes and of the second bf16 of pairs
    const uint8_t *ahead;  // what is fetched meanwhile,
    long ahead_stride;     // so many bytes a step
    uint32_t *widened;     // [count, PANEL]
} TwelvePart;

// Have loads where they are written. GCC has constants and x in registers as early as it can, and then some sums in memory.
static inline __attribute__((always_inline)) void load_no_earlier(void) {
#if TILE_REGISTERS < 16
    __asm__ volatile("" : : : "memory");
#endif
}

// Vectors `first` and on of a step, pairs of bf16; `first` and their number are even.
static inline __attribute__((always_inline)) void widen_twelve(
    const uint8_t *step, const TwelvePart *part, const int first, const int num_vectors, vuint *w) {
#pragma GCC unroll 8
    for (int j = 0; j < num_vectors; j += 2) {
        const int of_two = (first + j) / 2;
        const vuint codes = vload_bits(step + PANEL * 2 + of_two / 2 * 4 * LANES);
        const vuint high = vlook_up(part->table, (of_two % 2 ? codes >> 4 : codes) & part->nibbles);
        const vuint low = vload_bits(step + of_two * 4 * LANES);
        w[j] = vjoin_first(low, high);
        w[j + 1] = vjoin_last(low, high);
    }
}

// Write a step, with its exceptions if `exception` and those behind it are some; return the first one of a later step. Nothing is
// called, and two vectors are widened at a time: all sums of a tile would go to memory else.
static inline __attribute__((always_inline)) const Exception *write_step(
    const uint8_t *step, long number, const Exception *exception, const TwelvePart *part, uint32_t *words) {
#pragma GCC unroll 8
    for (int j = 0; j < VECTORS; j += 2) {
        vuint w[2];
        widen_twelve(step, part, j, 2, w);
        vstore_bits(words + j * LANES, w[0]);
        vstore_bits(words + (j + 1) * LANES, w[1]);
    }
    for (; exception->step == number; exception++) ((uint16_t *)words)[exception->place] = exception->value;
    return exception;
}

// sums[m, num_vectors] += rows of x times one step: `step`, or `words` of an exceptional one. keeps: write what is widened.
static inline __attribute__((always_inline)) void add_twelve(
    const int num_rows, const int first, const int num_vectors, vfloat sums[MAX_ROWS][VECTORS], const uint32_t *x, long x_stride,
    const uint8_t *step, const uint32_t *words, const TwelvePart *part, uint32_t *widened, const int keeps) {
    const int together = WIDENED_TOGETHER(num_vectors);
#pragma GCC unroll 8
    for (int from = 0; from < num_vectors; from += together) {
        vuint w[VECTORS], of_half[VECTORS];
        load_no_earlier();
        if (!words) widen_twelve(step, part, first + from, together, w);
#pragma GCC unroll 4
        for (int j = 0; j < together; j++) {
            if (words) w[j] = vload_bits(words + (first + from + j) * LANES);
            stay_in_register(&w[j]);
            if (keeps) vstore_bits(widened + (first + from + j) * LANES, w[j]);
        }
#pragma GCC unroll 2
        for (int half = 0; half < num_halves(1); half++) {
            load_no_earlier();
#pragma GCC unroll 4  // `half_of`, by a mask in memory
            for (int j = 0; j < together; j++) of_half[j] = TAKES_PAIRS ? w[j] : half ? w[j] & part->odd : w[j] << 16;
#pragma GCC unroll 6
            for (int m = 0; m < num_rows; m++)
#pragma GCC unroll 4
                for (int j = 0; j < together; j++) add_product(&sums[m][from + j], x + m * x_stride + half, of_half[j], 1);
        }
    }
}

// c[m, 64] (+)= rows of x times a part.
static inline __attribute__((always_inline)) void twelve_tile_of(
    const int num_rows, const TwelvePart *part, const uint32_t *x, long x_stride, float *c, int adds, const int keeps) {
    const int each = TILE_VECTORS(num_rows), lines = (STEP_LINES * each + VECTORS - 1) / VECTORS;
    const long end = part->first + part->count, ahead_stride = (part->ahead_stride * each + VECTORS - 1) / VECTORS;
#pragma GCC unroll 4
    for (int first = 0; first < VECTORS; first += each) {
        const uint8_t *step = part->steps, *ahead = part->ahead + part->ahead_stride * part->count * first / VECTORS;
        const Exception *exception = part->exception;
        const uint32_t *x_step = x;
        uint32_t *widened = part->widened, words[PANEL];
        vfloat sums[MAX_ROWS][VECTORS];
#pragma GCC unroll 6
        for (int m = 0; m < num_rows; m++)
#pragma GCC unroll 16
            for (int j = 0; j < each; j++) sums[m][j] = adds ? vload(c + m * PANEL + (first + j) * LANES) : (vfloat){};
        for (long number = part->first;; number++) {
            const long stop = exception->step < end ? exception->step : end;
            for (long left = stop - number; left > 0; left--) {
#pragma GCC unroll 3
                for (int line = 0; line < lines; line++) {
                    if (each == VECTORS) __builtin_prefetch(step + NEAR_TWELVE * STEP_BYTES + line * 64);
                    __builtin_prefetch(ahead + line * 64, 0, 2);
                }
                add_twelve(num_rows, first, each, sums, x_step, x_stride, step, NULL, part, widened, keeps);
                step += STEP_BYTES, ahead += ahead_stride, x_step += x_words(1, 1);
                if (keeps) widened += PANEL;
            }
            if (stop == end) break;
            number = stop;
            exception = write_step(step, number, exception, part, words);
            add_twelve(num_rows, first, each, sums, x_step, x_stride, step, words, part, widened, keeps);
            step += STEP_BYTES, ahead += ahead_stride, x_step += x_words(1, 1);
            if (keeps) widened += PANEL;
        }
#pragma GCC unroll 6
        for (int m = 0; m < num_rows; m++)
#pragma GCC unroll 16
            for (int j = 0; j < each; j++) vstore(c + m * PANEL + (first + j) * LANES, sums[m][j]);
    }
}

// The same as floats, [2, PANEL].
static inline __attribute__((always_inline)) const Exception *write_step_as_floats(
    const uint8_t *step, long number, const Exception *exception, const TwelvePart *part, uint32_t *words) {
#pragma GCC unroll 8
    for (int j = 0; j < VECTORS; j += 2) {
        vuint w[2];
        widen_twelve(step, part, j, 2, w);
        for (int i = 0; i < 2; i++) {
            vstore_bits(words + (j + i) * LANES, w[i] << 16);
            vstore_bits(words + PANEL + (j + i) * LANES, w[i] & part->odd);
        }
    }
    for (; exception->step == number; exception++)
        words[exception->place % 2 * PANEL + exception->place / 2] = (uint32_t)exception->value << 16;
    return exception;
}

// Write a part, and return where it ends. What comes next is left to the tiles to fetch, which memory would wait for else.
static inline __attribute__((always_inline)) uint32_t *write_part(const TwelvePart *part, const int is_floats) {
    const TwelvePart constants = *part;  // nobody else's, so that they stay in registers
    const uint8_t *step = part->steps;
    const Exception *exception = part->exception;
    uint32_t *widened = part->widened;
    for (long number = part->first; number < part->first + part->count; number++) {
#pragma GCC unroll 3
        for (int line = 0; line < STEP_LINES; line++) __builtin_prefetch(step + NEAR_TWELVE * STEP_BYTES + line * 64);
        if (is_floats) exception = write_step_as_floats(step, number, exception, &constants, widened);
        else exception = write_step(step, number, exception, &constants, widened);
        step += STEP_BYTES, widened += (1 + is_floats) * PANEL;
    }
    return widened;
}

// As pairs of bf16.
static void widen_part(const TwelvePart *part) { write_part(part, 0); }

// As floats, [2 * count, PANEL], filled up to whole turns (parts.h).
static void widen_part_to_floats(const TwelvePart *part) {
    uint32_t *end = write_part(part, 1);
    memset(end, 0, (size_t)(whole_turns(2 * part->count) - 2 * part->count) * PANEL * sizeof *end);
}

typedef void (*TwelveTile)(const TwelvePart *, const uint32_t *, long, float *, int);

#define TWELVE_TILE(ROWS, KEEPS)                                                                             \
    static void twelve_tile_##ROWS##_##KEEPS(                                                                \
        const TwelvePart *part, const uint32_t *x, long x_stride, float *c, int adds) {                      \
        twelve_tile_of(ROWS, part, x, x_stride, c, adds, KEEPS);                                             \
    }
#if FUSED_ROWS == MAX_ROWS
#define TWELVE_SIX(KEEPS) TWELVE_TILE(6, KEEPS)
#define TWELVE_SIX_NAME(KEEPS) , twelve_tile_6_##KEEPS
#else
#define TWELVE_SIX(KEEPS)
#define TWELVE_SIX_NAME(KEEPS)
#endif
#define TWELVE_TILES(KEEPS) TWELVE_TILE(3, KEEPS) TWELVE_TILE(4, KEEPS) TWELVE_TILE(5, KEEPS) TWELVE_SIX(KEEPS)
#define TWELVE_NAMES(KEEPS) twelve_tile_3_##KEEPS, twelve_tile_4_##KEEPS, twelve_tile_5_##KEEPS TWELVE_SIX_NAME(KEEPS)
TWELVE_TILE(1, 0)
TWELVE_TILE(2, 0)
TWELVE_TILES(0)
#if NUM_KEEPING
TWELVE_TILES(1)
#endif
// [keeps][rows - 1]. A tile that keeps is one of several, which have 3 rows at least.
static const TwelveTile TWELVE_TILE_FUNCTIONS[1 + NUM_KEEPING][FUSED_ROWS] = {
    {twelve_tile_1_0, twelve_tile_2_0, TWELVE_NAMES(0)},
#if NUM_KEEPING
    {NULL, NULL, TWELVE_NAMES(1)},
#endif
};
