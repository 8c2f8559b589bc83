// Paged attention, read in place from the block pool: prefill chunks and decodes of one step together.
//
// Keys are walked in tiles of 64 that begin at multiples of 64, with a running maximum and sum for
// each row (Milakov and Gimelshein 2018; Dao et al. 2022). A row's result therefore depends on its query
// and the keys it sees alone, as long as these are finite: not on the chunk it came in, nor on the batch.
//
// K and V of a tile are packed as weights are (product.h): scores are queries times K's panel, outputs are
// weights times V's panels.

#pragma once

#include "attention_tasks.h"
#include "packed_kv.h"

static size_t lay_out(const AttentionShape *shape, char *at, AttentionScratch *scratch) {
    const size_t rows = (size_t)(most_tokens(shape) * (shape->num_heads / shape->num_kv_heads));
    return lay_out_rows(rows, shape->head_dim, shape->head_dim, shape->is_bf16, at, scratch);
}

// [LANES rows, LANES words] -> [LANES words, LANES rows]: blocks off the diagonal change places, of 1, 2, 4 and 8 words.
#define SWAP(WIDTH)                                                                                         \
    for (int i = 0; i < LANES; i++)                                                                         \
        if (!(i & WIDTH)) {                                                                                 \
            const vuint a = r[i], b = r[i + WIDTH];                                                         \
            const vuint others = ((vuint){LANE_LIST} & WIDTH) * (LANES / WIDTH);                            \
            r[i] = __builtin_shuffle(a, b, ((vuint){LANE_LIST} & ~(uint32_t)WIDTH) + others);               \
            r[i + WIDTH] = __builtin_shuffle(a, b, ((vuint){LANE_LIST} | WIDTH) + others);                  \
        }
static inline __attribute__((always_inline)) void transpose(vuint r[LANES]) {
#pragma GCC unroll 16
    SWAP(1)
#pragma GCC unroll 16
    SWAP(2)
#if LANES > 4
#pragma GCC unroll 16
    SWAP(4)
#endif
#if LANES > 8
#pragma GCC unroll 16
    SWAP(8)
#endif
}
#undef SWAP

// Rows of `num_keys` keys -> panel [steps, TILE_KEYS]; keys that are not there become zeros. Meanwhile memory
// is asked for the `later` rows, a few lines at a time: all at once they would hold up the loads.
static inline __attribute__((always_inline)) void pack_keys_of(
    const void *const *rows, const void *const *later, long num_keys, long width, uint32_t *panel, const int is_bf16,
    const int kind) {
    const long steps = num_steps(width, is_bf16), step_bytes = cache_item(kind, is_bf16) * (is_bf16 ? 2 : 1);
    for (long first = 0; first < TILE_KEYS; first += LANES) {
        long step = 0;
        for (; step + LANES <= steps; step += LANES) {
            vuint words[LANES];
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++)
                __builtin_prefetch((const char *)later[first + i] + step * step_bytes, 0, 2);
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++)
                words[i] = first + i < num_keys ? cached_words(rows[first + i], step, is_bf16, kind) : (vuint){};
            transpose(words);
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) vstore_bits(panel + (step + i) * TILE_KEYS + first, words[i]);
        }
        for (; step < steps; step++)
            for (int i = 0; i < LANES; i++)
                panel[step * TILE_KEYS + first + i] =
                    first + i >= num_keys ? 0
                    : is_bf16 ? cached_bits(rows[first + i], 2 * step, 1, kind) |
                                    cached_bits(rows[first + i], 2 * step + 1, 1, kind) << 16
                              : cached_bits(rows[first + i], step, 0, kind);
    }
}

// Rows of keys' values -> panels [D / PANEL][steps of keys, PANEL]; `later` as above, or `rows`: nothing is asked for.
static inline __attribute__((always_inline)) void pack_values_of(
    const void *const *rows, const void *const *later, long num_keys, long width, uint32_t *panels, const int is_bf16,
    const int kind) {
    const long key_steps = num_steps(TILE_KEYS, is_bf16), each = TILE_KEYS / key_steps;
    for (long step = 0; step < key_steps; step++) {
        for (long key = step * each; key < (step + 1) * each && later != rows; key++)
            for (long line = 0; line < width * cache_item(kind, is_bf16); line += 64)
                __builtin_prefetch((const char *)later[key] + line, 0, 2);
        if (!is_bf16) {
            const void *row = step < num_keys ? rows[step] : NULL;
            for (long d = 0; d < width; d += LANES) {
                uint32_t *to = panels + (d / PANEL * key_steps + step) * PANEL + d % PANEL;
                if (d + LANES <= width) vstore_bits(to, row ? cached_words(row, d, 0, kind) : (vuint){});
                else for (long i = 0; i < width - d; i++) to[i] = row ? cached_bits(row, d + i, 0, kind) : 0;
            }
            continue;
        }
        const void *even = 2 * step < num_keys ? rows[2 * step] : NULL;
        const void *odd = 2 * step + 1 < num_keys ? rows[2 * step + 1] : NULL;
        long d = 0;
        for (; d + 2 * LANES <= width; d += 2 * LANES) {
            const vshort a = even ? (vshort)cached_words(even, d / 2, 1, kind) : (vshort){};
            const vshort b = odd ? (vshort)cached_words(odd, d / 2, 1, kind) : (vshort){};
            uint32_t *to = panels + (d / PANEL * key_steps + step) * PANEL + d % PANEL;
            vstore_bits(to, (vuint)__builtin_shuffle(a, b, FIRST_PAIRS));
            vstore_bits(to + LANES, (vuint)__builtin_shuffle(a, b, FIRST_PAIRS + LANES));
        }
        for (; kind == CACHE_AS_ROWS && d + LANES <= width; d += LANES) {
            vhalf a = {}, b = {};
            if (even) memcpy(&a, (const uint16_t *)even + d, sizeof a);
            if (odd) memcpy(&b, (const uint16_t *)odd + d, sizeof b);
            vuint pairs = __builtin_convertvector(a, vuint) | __builtin_convertvector(b, vuint) << 16;
            vstore_bits(panels + (d / PANEL * key_steps + step) * PANEL + d % PANEL, pairs);
        }
        for (; d < width; d++)
            panels[(d / PANEL * key_steps + step) * PANEL + d % PANEL] =
                (even ? cached_bits(even, d, 1, kind) : 0) | (odd ? cached_bits(odd, d, 1, kind) : 0) << 16;
    }
}

// One of both with `is_bf16` and `kind` as constants.
#define PACK_KIND(PACK, KIND, ...)               \
    do {                                         \
        if (is_bf16) PACK(__VA_ARGS__, 1, KIND); \
        else PACK(__VA_ARGS__, 0, KIND);         \
    } while (0)
#define PACK_ANY_KIND(PACK, ...)                                               \
    do {                                                                       \
        if (kind == CACHE_E4M3) PACK_KIND(PACK, CACHE_E4M3, __VA_ARGS__);      \
        else if (kind == CACHE_INT8) PACK_KIND(PACK, CACHE_INT8, __VA_ARGS__); \
        else PACK_KIND(PACK, CACHE_AS_ROWS, __VA_ARGS__);                      \
    } while (0)
static OUT_OF_LINE void pack_keys(const void *const *rows, const void *const *later, long num_keys, long width, uint32_t *panel,
                                  int is_bf16, int kind) {
    PACK_ANY_KIND(pack_keys_of, rows, later, num_keys, width, panel);
}
static OUT_OF_LINE void pack_values(const void *const *rows, const void *const *later, long num_keys, long width, uint32_t *panels,
                                    int is_bf16, int kind) {
    PACK_ANY_KIND(pack_values_of, rows, later, num_keys, width, panels);
}

// Where the keys and values of a tile lie; beyond the last one it stands for the others.
typedef struct {
    const void *keys[TILE_KEYS], *values[TILE_KEYS];
    long num_keys;
} TileRows;

static inline void find_tile(const AttentionJob *job, const Walk *walk, TileRows *rows, int is_bf16) {
    const Part *part = &walk->part;
    const long tile = walk->tile;
    const AttentionShape *shape = job->shape;
    const Batch *batch = job->batch;
    const int32_t *table = batch->block_tables + part->sequence * batch->table_stride;
    const long width = shape->head_dim, row_stride = shape->num_kv_heads * width;
    const long item = cache_item(batch->cache_kind, is_bf16);
    rows->num_keys = part->end_key - tile < TILE_KEYS ? part->end_key - tile : TILE_KEYS;
    // Blocks before a window may be somebody else's by now: the first key that is seen stands for theirs.
    const long from = tile < part->first_key ? part->first_key : tile;
    for (long key = from; key < tile + rows->num_keys;) {
        const long inside = key % batch->block_size, left = tile + rows->num_keys - key;
        const long count = batch->block_size - inside < left ? batch->block_size - inside : left;
        const long first = table[key / batch->block_size] * batch->block_stride + inside * row_stride + walk->head * width;
        for (long i = 0; i < count; i++) {
            rows->keys[key - tile + i] = (const char *)job->k_cache + (first + i * row_stride) * item;
            rows->values[key - tile + i] = (const char *)job->v_cache + (first + i * row_stride) * item;
        }
        key += count;
    }
    for (long i = 0; i < from - tile; i++)
        rows->keys[i] = rows->keys[from - tile], rows->values[i] = rows->values[from - tile];
    for (long i = rows->num_keys; i < TILE_KEYS; i++)
        rows->keys[i] = rows->keys[rows->num_keys - 1], rows->values[i] = rows->values[rows->num_keys - 1];
}

// Where a tile lies in packed blocks.
typedef struct {
    const uint32_t *keys[TILE_GROUPS], *values[TILE_GROUPS];
} TileGroups;

// Groups that nobody sees stand for others.
static inline void find_groups(const AttentionJob *job, const Walk *walk, TileGroups *groups, int is_bf16) {
    const Part *part = &walk->part;
    const long tile = walk->tile;
    const AttentionShape *shape = job->shape;
    const Batch *batch = job->batch;
    const int32_t *table = batch->block_tables + part->sequence * batch->table_stride + tile / batch->block_size;
    const long width = shape->head_dim;
    long slot = tile % batch->block_size, seen = -1;
    for (long g = 0; g < TILE_GROUPS; g++, slot += GROUP_KEYS) {
        if (slot == batch->block_size) slot = 0, table++;
        const long key = tile + g * GROUP_KEYS;
        groups->keys[g] = NULL;
        if (key >= part->end_key || key + GROUP_KEYS <= part->first_key) continue;
        const long from = *table * batch->block_stride + group_offset(slot, shape->num_kv_heads, walk->head, width);
        groups->keys[g] = at(job->k_cache, from, is_bf16);
        groups->values[g] = at(job->v_cache, from, is_bf16);
        seen = g;
    }
    for (int g = 0; g < TILE_GROUPS; g++)
        if (!groups->keys[g]) groups->keys[g] = groups->keys[seen], groups->values[g] = groups->values[seen];
}

// Of V without all keys of the tile: zeros where nobody sees a group, with which `room` begins, and of a group that
// has fewer keys a masked copy behind them.
static inline void mask_groups(const AttentionJob *job, const Walk *walk, TileGroups *groups, uint32_t *room, int is_bf16) {
    const Part *part = &walk->part;
    const long width = job->shape->head_dim, group_words = num_steps(GROUP_KEYS, is_bf16) * width;
    for (long g = 0; g < TILE_GROUPS; g++) {
        const long key = walk->tile + g * GROUP_KEYS, left = part->end_key - key;
        if (left <= 0 || key + GROUP_KEYS <= part->first_key) {
            groups->values[g] = room;
        } else if (left < GROUP_KEYS) {
            mask_group(groups->values[g], left, width, room + group_words, is_bf16);
            groups->values[g] = room + group_words;
        }
    }
}

// V of a tile's group as unpacked V lie, [panels of D][steps of keys, PANEL], zeros where nobody sees a key. Meanwhile memory
// is asked for what is `ahead`, or NULL.
static inline __attribute__((always_inline)) void amx_copy_group(const AttentionJob *job, const Part *part, long tile, long g,
                                                                 const TileGroups *groups, const uint32_t *ahead, uint32_t *panels) {
    const long width = job->shape->head_dim, steps = GROUP_KEYS / 2, key = tile + g * GROUP_KEYS, left = part->end_key - key;
    const long seen = left <= 0 || key + GROUP_KEYS <= part->first_key ? 0 : left < GROUP_KEYS ? left : GROUP_KEYS;
    for (long d = 0; d < width; d += PANEL / 2) {  // a multiple of 32
        const uint32_t *from = groups->values[g] + d;
        uint32_t *to = panels + d / PANEL * V_PANEL_WORDS + g * steps * PANEL + d % PANEL;
        for (long step = 0; step < steps; step++) {
            const uint32_t mask = 2 * step + 1 < seen ? ~0u : 2 * step < seen ? 0xffff : 0;
#pragma GCC unroll 4
            for (long i = 0; i < PANEL / 2; i += LANES) {
                if (ahead) __builtin_prefetch(ahead + step * width + d + i, 0, 2);
                vstore_bits(to + i, vload_bits(from + i) & mask);
            }
            from += width, to += PANEL;
        }
    }
}

// The same of a whole tile.
static inline void amx_copy_values(const AttentionJob *job, const Part *part, long tile, const TileGroups *groups,
                                   const TileGroups *later, uint32_t *panels) {
    for (long g = 0; g < TILE_GROUPS; g++) amx_copy_group(job, part, tile, g, groups, later->values[g], panels);
}

// Zeros where panels have no step or column.
static inline void begin_panels(const AttentionJob *job, long columns, const AttentionScratch *s) {
    const long width = job->shape->head_dim, steps = num_steps(width, 1), all_steps = attended_words(width, 1);
    if (columns != width) memset(s->v_panel, 0, (size_t)(TILE_KEYS / 2 * columns) * 4);
    memset(s->k_panel + steps * TILE_KEYS, 0, (size_t)((all_steps - steps) * TILE_KEYS) * 4);
}

// Widths of a job's rows, in words or numbers.
typedef struct {
    long q, weights, columns;
} RowWidths;

// The scratch memory of a task's rows from this one on.
static inline AttentionScratch from_row(const AttentionScratch *s, long row, const RowWidths *widths) {
    return (AttentionScratch){.q = s->q + row * widths->q, .k_panel = s->k_panel, .v_panel = s->v_panel,
                              .scores = s->scores + row * TILE_KEYS, .weights = s->weights + row * widths->weights,
                              .sums = s->sums + row * widths->columns, .largest = s->largest + row,
                              .totals = s->totals + row * LANES};
}

// The rows of one head.
static inline AttentionScratch of_head(const AttentionScratch *all, const Part *part, long head, const RowWidths *widths) {
    return from_row(all, part->first_row + (head - part->head) * part->num_rows, widths);
}

static inline __attribute__((always_inline)) void begin_rows(const AttentionJob *job, const Part *part, long head,
                                                             const AttentionScratch *s, const RowWidths *widths, const int is_bf16) {
    const long width = job->shape->head_dim, group = group_of(job->shape);
    for (long row = 0; row < part->num_rows; row++) {
        const long token = part->first_token + row / group, of = head * group + row % group;
        copy_attended(at(job->q, token * job->q_stride + of * width, is_bf16), width, s->q + row * widths->q, is_bf16);
        begin_weights(s, row, job->sinks ? job->sinks[of] : -INFINITY, is_bf16);
    }
    memset(s->sums, 0, (size_t)(part->num_rows * widths->columns) * 4);
}

static inline __attribute__((always_inline)) void end_rows_of(const AttentionJob *job, const Part *part, long head,
                                                              const AttentionScratch *s, const RowWidths *widths, const int is_bf16) {
    const AttentionShape *shape = job->shape;
    const long width = shape->head_dim, group = group_of(shape);
    const float v_scale = job->batch->cache_kind != CACHE_AS_ROWS ? job->v_scale[head] : 1.0f;
    for (long row = 0; row < part->num_rows; row++) {
        const long token = part->first_token + row / group, of = head * group + row % group;
        const long to = (token * shape->num_heads + of) * width;
        const float total = total_weight(s, row), *sums = s->sums + row * widths->columns;
        long d = 0;
        for (; d + LANES <= width; d += LANES)
            vstore_any(job->out, to + d, vload(sums + d) / total * v_scale, is_bf16);
        for (; d < width; d++) store_any(job->out, to + d, sums[d] / total * v_scale, is_bf16);
    }
}

// Codes are multiplied as they are, exactly; their scales belong to the scores and to what is attended.
static inline Weighing weighing_of(const AttentionJob *job, const Part *part, long head) {
    const AttentionShape *shape = job->shape;
    const long group = group_of(shape);
    const int is_coded = job->batch->cache_kind != CACHE_AS_ROWS;
    return (Weighing){.scale = shape->scale * (is_coded ? job->k_scale[head] : 1.0f), .soft_cap = shape->soft_cap,
                      .slopes = job->slopes ? job->slopes + head * group : NULL, .position = part->position,
                      .window = job->window, .group = group};
}

#if TAKES_AMX
// Attend to the packed keys of a part by sixteens of its rows, two of them at least: beside the weights of one are the next
// one's scores, and values of the one before. Whole sixteens are computed: rows behind the part's are nobody's.
static void attend_by_sixteens(const AttentionJob *job, const Walk *first, const AttentionScratch *s, const RowWidths *widths) {
    const Part *part = &first->part;
    const Weighing by = weighing_of(job, part, first->head);
    const long columns = widths->columns, num_rows = part->num_rows;
    Walk later = *first;
    TileGroups groups, later_groups;
    find_groups(job, first, &later_groups, 1);
    amx_scores(AMX_ROWS, widths->q, s->q, later_groups.keys, later_groups.keys, s->scores);
    AmxValues values = {.panels = s->v_panel, .columns = columns};
    int turn = 0;  // scores and weights lie in two buffers
    for (long tile = first->tile; tile < part->end_key; tile += TILE_KEYS) {
        const int is_last = tile + TILE_KEYS >= part->end_key;
        groups = later_groups;
        if (walk_on(job, &later)) find_groups(job, &later, &later_groups, 1);
        for (long row = 0; row < num_rows; row += AMX_ROWS, turn = !turn) {
            const long left = num_rows - row, rows = left < AMX_ROWS ? left : AMX_ROWS, next_row = left > AMX_ROWS ? row + AMX_ROWS : 0;
            AttentionScratch here = from_row(s, row, widths);
            here.scores = s->scores + turn * AMX_ROWS * TILE_KEYS, here.weights = s->weights + turn * AMX_ROWS * widths->weights;
            const AmxScores scores = {.q = s->q + next_row * widths->q, .steps = widths->q, .groups = next_row ? groups.keys : later_groups.keys,
                                      .later = row ? NULL : later_groups.keys, .scores = s->scores + !turn * AMX_ROWS * TILE_KEYS};
            cap_and_mask(&here, &by, row, rows, tile);
            amx_weigh_beside(&here, &by, rows, columns, is_last && !next_row ? NULL : &scores, values.weights ? &values : NULL);
            if (!row) amx_copy_values(job, part, tile, &groups, &later_groups, s->v_panel);  // the last tile's are not needed any more
            values.weights = here.weights, values.sums = here.sums;
        }
    }
    for (long d = 0; d < columns; d += PANEL)
        amx_attended(AMX_ROWS, PANEL / AMX_WIDTH, values.weights, widths->weights, values.panels + d / PANEL * V_PANEL_WORDS,
                     values.sums + d, columns, 1);
}

// A tile's keys, then its values, that memory is asked for.
typedef struct {
    TileGroups of;
    long group_bytes;    // of each of its 8 groups
    long group, inside;  // what comes next
} Fetch;

#define FETCHED (8 * 64)  // bytes at a time: a quarter of a group of 64 columns
// Ask for so many bytes more, as long as there are some.
static inline __attribute__((always_inline)) void fetch_on(Fetch *fetch, long bytes) {
    for (; bytes > 0 && fetch->group < 2 * TILE_GROUPS; bytes -= FETCHED) {
        const long group = fetch->group;
        const char *from = (const char *)(group < TILE_GROUPS ? fetch->of.keys[group] : fetch->of.values[group - TILE_GROUPS]);
#pragma GCC unroll 8
        for (int line = 0; line < FETCHED; line += 64) __builtin_prefetch(from + fetch->inside + line, 0, 2);
        fetch->inside += FETCHED;
        if (fetch->inside == fetch->group_bytes) fetch->inside = 0, fetch->group++;
    }
}

// Attend to the packed keys of a part with 16 rows of each head, at the most. There is little to compute, and memory should
// never idle: lines of the item after the next one are asked for all the time, an item being a tile of one head. And nothing
// waits for what has just been computed: an item's scores are there before its turn, its values are multiplied in the next one's.
// A core has about 64 lines on their way, so of eight groups three are asked for beside values, one before weights, two beside
// copies and two beside scores.
static void attend_few_rows(const AttentionJob *job, const Walk *first, const AttentionScratch *all, const RowWidths *widths) {
    const Part *part = &first->part;
    const long columns = widths->columns, halves = columns / (PANEL / 2), end_head = part->head + part->num_heads;
    Walk ahead = *first;
    TileGroups groups, next_groups;
    Fetch fetch = {.group_bytes = GROUP_KEYS * job->shape->head_dim * 2};
    find_groups(job, &ahead, &next_groups, 1);
    fetch.of = next_groups;
    int is_ahead = walk_on(job, &ahead);
    if (is_ahead) find_groups(job, &ahead, &fetch.of, 1);
    AmxScores scores = {.q = of_head(all, part, part->head, widths).q, .steps = widths->q, .groups = next_groups.keys, .scores = all->scores};
    for (int half = 0; half < 2; half++) {
        amx_begin_scores(&scores, half);
        amx_end_scores(&scores, half);
    }
    AmxValues values = {.panels = all->v_panel, .columns = columns};
    for (long tile = first->tile; tile < part->end_key; tile += TILE_KEYS)
        for (long head = part->head; head < end_head; head++) {
            const int is_last = tile + TILE_KEYS >= part->end_key && head + 1 == end_head;
            AttentionScratch here = of_head(all, part, head, widths);
            here.scores = all->scores;
            const Weighing by = weighing_of(job, part, head);
            groups = next_groups, next_groups = fetch.of;
            if (is_ahead && (is_ahead = walk_on(job, &ahead))) find_groups(job, &ahead, &fetch.of, 1);
            fetch.group = fetch.inside = 0;
            for (long half = 0; half < halves; half++) {
                if (values.weights) amx_begin_values(&values, half);
                fetch_on(&fetch, fetch.group_bytes * 3 / halves);
                if (values.weights) amx_end_values(&values, half);
            }
            fetch_on(&fetch, fetch.group_bytes);
            cap_and_mask(&here, &by, 0, part->num_rows, tile);
            weigh_rows(&here, &by, 0, part->num_rows, columns, 1);
            values.weights = here.weights, values.sums = here.sums;
            for (long g = 0; g < TILE_GROUPS; g++) {
                amx_copy_group(job, part, tile, g, &groups, NULL, all->v_panel);
                fetch_on(&fetch, fetch.group_bytes / 2);
            }
            scores.q = of_head(all, part, head + 1 < end_head ? head + 1 : part->head, widths).q;
            for (long half = 0; half < 2; half++) {
                if (!is_last) amx_begin_scores(&scores, half);
                fetch_on(&fetch, half ? 2 * TILE_GROUPS * fetch.group_bytes : fetch.group_bytes);
                if (!is_last) amx_end_scores(&scores, half);
            }
        }
    for (long half = 0; half < halves; half++) {
        amx_begin_values(&values, half);
        amx_end_values(&values, half);
    }
}
#endif

// Attend to the keys of a part, all rows of a head at a time.
static inline __attribute__((always_inline)) void attend_tiles(const AttentionJob *job, const Walk *first, const AttentionScratch *all,
                                                               const RowWidths *widths, const int is_bf16) {
    const long width = job->shape->head_dim, num_rows = first->part.num_rows, columns = widths->columns;
    const long steps = num_steps(width, is_bf16), key_steps = num_steps(TILE_KEYS, is_bf16);
    const int is_packed = job->batch->is_packed != 0, is_amx = takes_amx(is_bf16), kind = job->batch->cache_kind;
    TileRows rows[2];
    TileGroups groups, later_groups;
    Walk here = *first, next;
    if (is_packed) find_groups(job, &here, &later_groups, is_bf16);
    else find_tile(job, &here, &rows[0], is_bf16);
    for (int now = 0, has_later = 1; has_later && here.task == first->task && here.nth == first->nth; here = next, now = !now) {
        const AttentionScratch s = of_head(all, &here.part, here.head, widths);
        const Weighing by = weighing_of(job, &here.part, here.head);
        next = here;
        has_later = walk_on(job, &next);
        if (is_packed) {
            groups = later_groups;
            if (has_later) find_groups(job, &next, &later_groups, is_bf16);
            if (is_amx) amx_copy_values(job, &here.part, here.tile, &groups, &later_groups, s.v_panel);
            else mask_groups(job, &here, &groups, s.v_panel, is_bf16);
            packed_scores(num_rows, steps, s.q, groups.keys, later_groups.keys, s.scores, is_bf16);
        } else {
            const TileRows *of_here = &rows[now], *later = has_later ? &rows[!now] : of_here;
            if (has_later) find_tile(job, &next, &rows[!now], is_bf16);
            pack_keys(of_here->keys, later->keys, of_here->num_keys, width, s.k_panel, is_bf16, kind);
            pack_values(of_here->values, later->values, of_here->num_keys, width, s.v_panel, is_bf16, kind);
            attended_product(num_rows, steps, s.q, widths->q, s.k_panel, s.scores, TILE_KEYS, s.v_panel, 0, is_bf16);
        }
        weigh(&s, &by, num_rows, here.tile, columns, is_bf16);
        if (is_packed && !is_amx) {
            packed_values(num_rows, width, s.weights, groups.values, later_groups.values, s.sums, columns, is_bf16);
            continue;
        }
        for (long d = 0; d < columns; d += PANEL)
            attended_product(num_rows, key_steps, s.weights, widths->weights, s.v_panel + d / PANEL * key_steps * PANEL,
                             s.sums + d, columns, s.k_panel, 1, is_bf16);
    }
}

static inline __attribute__((always_inline)) void attend(const AttentionJob *job, long task, int thread,
                                                         const int is_bf16) {
    const AttentionShape *shape = job->shape;
    const long width = shape->head_dim, key_steps = num_steps(TILE_KEYS, is_bf16);
    const RowWidths widths = {attended_words(width, is_bf16), x_words(key_steps, is_bf16), (width + PANEL - 1) / PANEL * PANEL};
    const int is_packed = job->batch->is_packed != 0, is_amx = takes_amx(is_bf16);
    Part part;
    AttentionScratch all;
    lay_out(shape, scratch_of(job->threads, thread), &all);
    for (long nth = 0; part_of(job, task, nth, &part); nth++) {
        for (long head = part.head; head < part.head + part.num_heads && part.first_token >= 0; head++) {
            const AttentionScratch s = of_head(&all, &part, head, &widths);
            begin_rows(job, &part, head, &s, &widths, is_bf16);
        }
    }
    if (is_amx) begin_panels(job, widths.columns, &all);
    else if (is_packed) memset(all.v_panel, 0, (size_t)(key_steps / TILE_GROUPS * width) * 4);
    else if (widths.columns != width) memset(all.v_panel, 0, (size_t)(key_steps * widths.columns) * 4);

    Walk here;
    for (long nth = 0; begin_part(job, task, nth, &here); nth++) {
        part = here.part;
#if TAKES_AMX
        if (is_amx) take_amx(job->threads, thread, part.num_rows);
        if (is_amx && is_packed && part.num_rows <= AMX_ROWS) {
            attend_few_rows(job, &here, &all, &widths);
        } else if (is_amx && is_packed && nth == 0) {  // behind the rows of what a task walks first are nobody's
            attend_by_sixteens(job, &here, &all, &widths);
        } else
#endif
            attend_tiles(job, &here, &all, &widths, is_bf16);
        for (long head = part.head; head < part.head + part.num_heads && part.first_token >= 0; head++) {
            const AttentionScratch s = of_head(&all, &part, head, &widths);
            end_rows_of(job, &part, head, &s, &widths, is_bf16);
        }
    }
}

static void attention_task(const void *argument, long task, int thread) {
    const AttentionJob *job = argument;
    if (job->shape->is_bf16) attend(job, task, thread, 1);
    else attend(job, task, thread, 0);
}

static void attention(Threads *threads, const AttentionJob *job) {
    in_parallel(threads, attention_task, job, num_tasks_of(job->tasks));
}
