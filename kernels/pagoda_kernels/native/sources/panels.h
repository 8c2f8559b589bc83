// How products cut a weight, dense or quantised: panels of 64 outputs, walked in steps along K, some rows and some
// vectors of outputs at a time, as many as there are registers for.
//
// With VDPBF16PS a step is a pair of bf16, of x and of the weight. Else x is widened before, once for all outputs, and
// each step of a pair by itself.

#pragma once

#include "vectors.h"

#define PANEL 64
#define VECTORS (PANEL / LANES)
#define MAX_ROWS 6
// Of a panel's vectors, those that are multiplied at a time for so many rows.
#define FITS_TILE(rows, vectors) (((rows) > 1 ? (rows) + 1 : 1) * (vectors) <= TILE_REGISTERS)
#define TILE_VECTORS(rows)                            \
    (FITS_TILE(rows, VECTORS)       ? VECTORS         \
     : FITS_TILE(rows, VECTORS / 2) ? VECTORS / 2     \
     : FITS_TILE(rows, VECTORS / 4) ? VECTORS / 4     \
                                    : VECTORS / 8)
#if defined(__AVX512BF16__)
#define TAKES_PAIRS 1
#else
#define TAKES_PAIRS 0
#endif
#if defined(__AMX_BF16__)
#define TAKES_AMX 1  // for bf16 (amx.h)
#else
#define TAKES_AMX 0
#endif
#define LINE_WORDS 16         // of the caches
#define CHUNK_ROWS (TAKES_AMX ? 512 : 160)  // of one task
#define NEAR_STEPS 16         // ahead of those multiplied: from the second-level cache to the first
#define K_PART_STEPS 96       // of a panel: 24 KiB, which stay in the first-level cache

// Steps along K: pairs of bf16, or floats. Each has PANEL words of 32 bits.
static inline long num_steps(long width, int is_bf16) { return is_bf16 ? width / 2 : width; }

// Rows in tiles of at most so many, as even as they can be: of `rows` each, from tile `first_more` on of one more.
typedef struct {
    long count, rows, first_more;
} RowTiles;

static inline RowTiles row_tiles(long num_rows, const long most) {
    const long count = (num_rows + most - 1) / most;
    return (RowTiles){count, num_rows / count, count - num_rows % count};
}

static inline long rows_of_tile(const RowTiles *tiles, long tile) { return tiles->rows + (tile >= tiles->first_more); }

// Products take bf16 of x as floats.
static inline int widens_x(int is_bf16) { return is_bf16 && !TAKES_PAIRS; }
static inline long x_item(int is_bf16) { return is_bf16 && TAKES_PAIRS ? 2 : 4; }  // bytes of a number, as they take it

// Words of x for so many steps, as products take it: pairs of bf16, or floats.
static inline long x_words(long steps, int is_bf16) { return widens_x(is_bf16) ? 2 * steps : steps; }

// sum += x * w of one step, the same on all lanes of x: a pair of bf16, or a float.
static inline __attribute__((always_inline)) void add_product(vfloat *sum, const uint32_t *x, vuint w, int is_bf16) {
#if TAKES_PAIRS
    if (is_bf16) {
        *sum = (vfloat)_mm512_dpbf16_ps((__m512)*sum, (__m512bh)_mm512_set1_epi32((int)*x), (__m512bh)w);
        return;
    }
#endif
    (void)is_bf16;
    float f;
    memcpy(&f, x, 4);
    vadd_product(sum, vset(f), (vfloat)w);
}

// out[count] = bf16 as floats.
static inline void widen_numbers(const void *x, long count, float *out) {
    for (long i = 0; i < count; i += LANES) vstore_some(out, i, count - i, vload_some(x, i, count - i, 1), 0);
}

// A row of x as products take it.
static inline void copy_x(const void *x, long width, void *out, int is_bf16) {
    if (widens_x(is_bf16)) widen_numbers(x, width, out);
    else memcpy(out, x, (size_t)(width * x_item(is_bf16)));
}

// Pairs of bf16, or floats, as floats of one step of each pair.
static inline vuint half_of(vuint w, int half, int is_bf16) {
    if (!is_bf16 || TAKES_PAIRS) return w;
    return half ? w & 0xffff0000u : w << 16;
}
static inline int num_halves(int is_bf16) { return widens_x(is_bf16) ? 2 : 1; }
