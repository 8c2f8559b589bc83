// What attention keeps of its rows, and from scores of a tile of 64 keys to weights, with a running maximum and sum for each.

#pragma once

#include "amx.h"
#include "product.h"

#define TILE_KEYS PANEL

static inline size_t round_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Set where parts of so many items lie, one after another in whole lines of the cache; returns their bytes.
static inline size_t lay_out_parts(size_t num_parts, void **const *parts, const size_t *items, size_t item_bytes, char *at) {
    size_t used = 0;
    for (size_t i = 0; i < num_parts; i++) {
        *parts[i] = at + used;
        used += round_lines(items[i] * item_bytes);
    }
    return used;
}

// What one task needs of scratch memory, as [rows or keys, ...] arrays one after another.
typedef struct {
    uint32_t *q;       // [rows, attended_words]
    uint32_t *k_panel; // [steps, TILE_KEYS]
    uint32_t *v_panel; // [panels of D][steps of keys, PANEL]
    float *scores;     // [rows, TILE_KEYS]
    uint32_t *weights; // [rows, x_words of keys]
    float *sums;       // [rows, panels of D * PANEL]
    float *largest;    // [rows]: weights are e^(score - largest)
    float *totals;     // [rows, LANES]: of weights, by the lane that a key came in
} AttentionScratch;

// Words of a row of Q; those behind its numbers are zeros.
static inline long attended_words(long width, int is_bf16) {
    return takes_amx(is_bf16) ? amx_blocks(width) * AMX_STEPS : x_words(num_steps(width, is_bf16), is_bf16);
}

static inline void copy_attended(const void *from, long width, uint32_t *q, int is_bf16) {
    copy_x(from, width, q, is_bf16);
    if (takes_amx(is_bf16)) memset((uint16_t *)q + width, 0, (size_t)(attended_words(width, 1) * 4 - width * 2));
}

// For so many rows; `width` of Q and K, `value_width` of V.
static size_t lay_out_rows(size_t rows, long width, long value_width, int is_bf16, char *at, AttentionScratch *scratch) {
    if (takes_amx(is_bf16)) rows += AMX_ROWS;  // whose rows go beyond those that there are
    const size_t words = (size_t)x_words(1, is_bf16), key_steps = (size_t)num_steps(TILE_KEYS, is_bf16);
    const size_t steps = (size_t)attended_words(width, is_bf16) / words;
    const size_t columns = ((size_t)value_width + PANEL - 1) / PANEL * PANEL;
    void **parts[] = {(void **)&scratch->q, (void **)&scratch->k_panel, (void **)&scratch->v_panel,
                      (void **)&scratch->scores, (void **)&scratch->weights, (void **)&scratch->sums,
                      (void **)&scratch->largest, (void **)&scratch->totals};
    const size_t items[] = {rows * steps * words, steps * TILE_KEYS, key_steps * columns, rows * TILE_KEYS,
                            rows * key_steps * words, rows * columns, rows, rows * LANES};
    return lay_out_parts(sizeof items / sizeof *items, parts, items, 4, at);
}

// What the scores of a task's rows are made of.
typedef struct {
    float scale;
    float soft_cap;
    const float *slopes;     // of the heads that a group of rows has, or NULL
    long position;           // of the first row's token
    long window;             // keys a query sees, itself included; 0: all
    long group;              // heads of a KV head: rows of a token
} Weighing;

// Whether weights are powers of 2: scores are log2(e) times as large then.
static inline int takes_powers_of_2(int is_bf16) {
#if defined(__AVX512F__)
    return is_bf16;
#else
    return 0;
#endif
}
static inline float unit_of_scores(int is_bf16) { return takes_powers_of_2(is_bf16) ? LOG2_E : 1.0f; }
static inline vfloat weights_of(vfloat x, int is_bf16) {
#if defined(__AVX512F__)
    if (is_bf16) return vexp2_for_bf16(x);
#endif
    return vexp(x);
}

static inline int is_capped(const Weighing *by) { return by->soft_cap > 0 || by->slopes; }

// Scores of one tile that are more than products of Q and K, or that their row does not see, become so. `before`: rows of
// the task before these.
static OUT_OF_LINE void cap_and_mask(const AttentionScratch *s, const Weighing *by, long before, long num_rows, long first_key) {
    const long last_own = by->position + (before + num_rows - 1) / by->group;
    const int is_seen = by->position + before / by->group >= first_key + TILE_KEYS - 1 &&
        (!by->window || last_own - by->window < first_key);
    if (is_seen && !is_capped(by)) return;
    for (long row = 0; row < num_rows; row++) {
        const long own = by->position + (before + row) / by->group;
        const long first_seen = by->window && own + 1 > by->window ? own + 1 - by->window : 0;
        const int sees_all = first_seen <= first_key && own >= first_key + TILE_KEYS - 1;
        if (sees_all && !is_capped(by)) continue;
        for (int j = 0; j < VECTORS; j++) {
            float *scores = s->scores + row * TILE_KEYS + j * LANES;
            vfloat x = vload(scores);
            const vint key = LANE_NUMBERS + (int)(first_key + j * LANES);
            if (is_capped(by)) x *= by->scale;
            if (by->soft_cap > 0) x = by->soft_cap - 2.0f * by->soft_cap / (1.0f + vexp(x * (2.0f / by->soft_cap)));
            if (by->slopes) x += by->slopes[(before + row) % by->group] * __builtin_convertvector(key - (int)own, vfloat);
            if (!sees_all) x = vselect((key < (int)first_seen) | (key > (int)own), vset(-INFINITY), x);
            vstore(scores, x);
        }
    }
}

// `to` is a row's largest score from now on; its sums follow.
static OUT_OF_LINE void raise_largest(const AttentionScratch *s, long row, float to, long columns, int is_bf16) {
    const float from = s->largest[row];
    s->largest[row] = to;
    if (from == -INFINITY) return;  // nothing was seen yet
    const vfloat shrink = weights_of(vset(from - to), is_bf16);
    float *sums = s->sums + row * columns, *totals = s->totals + row * LANES;
    vstore(totals, vload(totals) * shrink);
    for (long d = 0; d < columns; d += LANES) vstore(sums + d, vload(sums + d) * shrink);
}

// Scores of one tile become weights, of each row by itself, and sums of the tiles before follow where there is a larger one.
static inline __attribute__((always_inline)) void weigh_rows(const AttentionScratch *s, const Weighing *by, long first_row,
                                                             long end_row, long columns, const int is_bf16) {
    const int is_pairs = is_bf16 && TAKES_PAIRS;
    const long words = x_words(num_steps(TILE_KEYS, is_bf16), is_bf16);
    const float unit = unit_of_scores(is_bf16), scale = is_capped(by) ? unit : by->scale * unit;
    for (long row = first_row; row < end_row; row++) {
        vfloat x[VECTORS], total = vload(s->totals + row * LANES), here = vset(-INFINITY);
#pragma GCC unroll 16
        for (int j = 0; j < VECTORS; j++) {
            x[j] = vload(s->scores + row * TILE_KEYS + j * LANES);
            here = vmax(x[j], here);
        }
        if (vany_above(here * scale, vset(s->largest[row]))) {
            raise_largest(s, row, vlargest(here) * scale, columns, is_bf16);
            total = vload(s->totals + row * LANES);
        }
        // Where nothing was seen yet, or all scores are minus infinity: a broken model's.
        const float largest = s->largest[row] == -INFINITY ? 0 : s->largest[row];
#pragma GCC unroll 16
        for (int j = 0; j < VECTORS; j++) {
            const vfloat weight = weights_of(vfma(x[j], vset(scale), vset(-largest)), is_bf16);
            total += weight;
            vstore_any(s->weights + row * words, j * LANES, weight, is_pairs);
        }
        vstore(s->totals + row * LANES, total);
    }
}

static OUT_OF_LINE void weigh(const AttentionScratch *s, const Weighing *by, long num_rows, long first_key, long columns, int is_bf16) {
    cap_and_mask(s, by, 0, num_rows, first_key);
    if (is_bf16) weigh_rows(s, by, 0, num_rows, columns, 1);
    else weigh_rows(s, by, 0, num_rows, columns, 0);
}

// Before the first tile; `sink`: a score beside those of keys, with no value, or minus infinity.
static inline void begin_weights(const AttentionScratch *s, long row, float sink, int is_bf16) {
    s->largest[row] = sink * unit_of_scores(is_bf16);
    memset(s->totals + row * LANES, 0, LANES * sizeof *s->totals);
    if (sink != -INFINITY) s->totals[row * LANES] = 1;
}

static inline float total_weight(const AttentionScratch *s, long row) { return vsum(vload(s->totals + row * LANES)); }
