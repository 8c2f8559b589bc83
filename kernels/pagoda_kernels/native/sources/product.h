// y = x @ weight.T + bias, for any number of rows, with one order of additions for every element: along K
// from its start to its end into one fp32 accumulator. So a row's product is bit for bit the same whatever
// rows come with it, which oneDNN does not promise.
//
// Weights are packed once into panels of 64 outputs. bf16: [N / 64][K / 2][64][2], pairs along K side by
// side as VDPBF16PS wants them; fp32: [N / 64][K][64]. A panel's K is walked in parts that fit the
// first-level cache; several rows share each load, and while a part is multiplied the next one comes. bf16 lies in
// twelve bits a weight (twelve_bits.h), if that is worth it. Where products take floats, more rows than a tile that widens
// have its parts widened before, and x in the same parts (parts.h).

#pragma once

#include "amx_coded.h"
#include "amx_panel.h"
#include "lora.h"
#include "quantised.h"
#include "threads.h"
#include "twelve_bits.h"

enum { GATE_SILU, GATE_CLAMPED, GATE_GELU_TANH, GATE_GELU };

typedef struct {
    const void *panels;
    const void *bias;  // [N] or NULL
    int64_t num_outputs;  // N; with a gate 2 * N of the weight
    int64_t width;     // K, even if bf16
    int32_t is_bf16;
    int32_t is_gated;  // a panel has 32 of the gate, then 32 of up; y = silu(gate) * up, or see `gate`
    int32_t bits;      // of a code of quantised panels (quantised.h), 4 or 8; 0: dense; TWELVE_BITS: dense bf16
    int32_t has_zeros; // 4 bits: groups have zero points
    const uint16_t *levels;  // 4 bits: [16] bf16 that the codes stand for
    const Lora *lora;  // adapters that may be asked for; NULL: none
    int32_t gate;      // of one that has a gate, or whose outputs are activated: GATE_...
    float gate_limit;  // GATE_CLAMPED: bound of gate and up
    float gate_alpha;  // and factor within the sigmoid
    int32_t is_activated;  // y = gate(y), both rounded; it has no gate
    Exceptions exceptions;  // of twelve bits
} Linear;

static inline long panel_outputs(const Linear *linear) { return linear->is_gated ? PANEL / 2 : PANEL; }
static inline long num_panels(const Linear *linear) {
    return (linear->num_outputs + panel_outputs(linear) - 1) / panel_outputs(linear);
}

static inline long panel_bytes(const Linear *linear) {
    const long steps = num_steps(linear->width, linear->is_bf16);
    if (linear->bits == TWELVE_BITS) return steps * STEP_BYTES;
    if (linear->bits) return num_groups(linear->width) * group_bytes(linear->bits, linear->has_zeros);
    return steps * PANEL * 4;
}
static inline const void *panel_at(const Linear *linear, long panel) {
    return (const char *)linear->panels + panel * panel_bytes(linear);
}

// Whether products of so many rows take x in parts (parts.h); else row by row, see copy_x.
static inline int takes_parts(const Linear *linear, long num_rows) {
    return widens_x(linear->is_bf16) && linear->bits == TWELVE_BITS && num_rows > MAX_ROWS;
}

// Whether products take x from elsewhere than where it lies.
static inline int places_x(int is_bf16) { return widens_x(is_bf16) || takes_amx(is_bf16); }

// Numbers that a row of x needs room for, however they take it.
static inline long x_room(long width, int is_bf16) {
    if (takes_amx(is_bf16)) return amx_blocks(width) * AMX_WIDTH;
    return widens_x(is_bf16) ? num_parts(width) * PART_WIDTH : width;
}

// Bytes that are read behind x.
static inline size_t behind_x(int is_bf16) { return takes_amx(is_bf16) ? AMX_ROOM : 0; }

// Row `row` of `num_rows` to where products find it in `x`.
static inline void place_row(const Linear *linear, const void *from, void *x, long row, long num_rows) {
    const long width = linear->width;
    const int is_bf16 = linear->is_bf16;
    if (takes_amx(linear->is_bf16)) copy_to_blocks(from, width, x, row, num_rows);
    else if (takes_parts(linear, num_rows)) copy_to_parts(from, width, x, row, num_rows);
    else copy_x(from, width, (char *)x + row * width * x_item(is_bf16), is_bf16);
}

int64_t pagoda_packed_bytes(const Linear *linear) { return num_panels(linear) * panel_bytes(linear); }

// Row of the weight of a panel's column, with a gate of gate, then up; negative: there is none.
static inline long row_at(const Linear *linear, long panel, long column) {
    const long each = panel_outputs(linear), output = panel * each + column % each;
    return output < linear->num_outputs ? output + column / each * linear->num_outputs : -1;
}

typedef struct {
    const Linear *linear;
    const void *weight;
    uint32_t *panels;
} PackJob;

static void pack_task(const void *argument, long panel, int thread) {
    const PackJob *job = argument;
    const Linear *linear = job->linear;
    const long width = linear->width, steps = num_steps(width, linear->is_bf16);
    (void)thread;
    for (long column = 0; column < PANEL; column++) {
        const long row = row_at(linear, panel, column);
        uint32_t *to = job->panels + panel * steps * PANEL + column;
        for (long step = 0; step < steps; step++) {
            uint32_t word = 0;
            if (row >= 0) {
                if (linear->is_bf16) {
                    const uint16_t *from = (const uint16_t *)job->weight + row * width + 2 * step;
                    word = from[0] | (uint32_t)from[1] << 16;
                } else {
                    word = ((const uint32_t *)job->weight)[row * width + step];
                }
            }
            to[step * PANEL] = word;
        }
    }
}

typedef struct {
    const Linear *linear;
    const int8_t *codes;      // [N, K]; with a gate [2 N, K]
    const uint16_t *scales;   // [N, groups] bf16
    const int8_t *zeros;      // [N, groups] if it has some
    uint8_t *panels;
} PackQuantisedJob;

static void pack_quantised_task(const void *argument, long panel, int thread) {
    const PackQuantisedJob *job = argument;
    const Linear *linear = job->linear;
    const long width = linear->width, groups = num_groups(width);
    const long each_bytes = group_bytes(linear->bits, linear->has_zeros);
    uint8_t *to = job->panels + panel * panel_bytes(linear);
    (void)thread;
    memset(to, 0, (size_t)panel_bytes(linear));
    for (long column = 0; column < PANEL; column++) {
        const long row = row_at(linear, panel, column);
        if (row < 0) continue;
        for (long g = 0; g < groups; g++) {
            uint8_t *group = to + g * each_bytes, *codes = group + SCALE_BYTES + zero_bytes(linear->has_zeros);
            memcpy(group + 2 * column, job->scales + row * groups + g, 2);
            if (linear->has_zeros) group[SCALE_BYTES + column] = (uint8_t)job->zeros[row * groups + g];
            for (long k = g * GROUP; k < width && k < (g + 1) * GROUP; k++)
                place_code(codes, linear->bits, k % GROUP, column, job->codes[row * width + k]);
        }
    }
}

// Fill `panels` of a quantised weight.
void pagoda_pack_quantised(
    Threads *threads, const Linear *linear, const int8_t *codes, const uint16_t *scales, const int8_t *zeros,
    uint8_t *panels) {
    PackQuantisedJob job = {linear, codes, scales, zeros, panels};
    enter(threads);
    in_parallel(threads, pack_quantised_task, &job, num_panels(linear));
    leave(threads);
}

// Fill `panels` from a dense weight [N, K]; with a gate [2 N, K]: gate, then up.
void pagoda_pack(Threads *threads, const Linear *linear, const void *weight, uint32_t *panels) {
    PackJob job = {linear, weight, panels};
    enter(threads);
    in_parallel(threads, pack_task, &job, num_panels(linear));
    leave(threads);
}

typedef struct {
    const Linear *linear;
    const uint16_t *weight;
    int64_t *counts;        // [panels]
    uint8_t *panels;        // NULL: exceptions are counted
    Exception *exceptions;  // at the places that `linear->exceptions.first` has, with room for NO_STEP
} PackTwelveJob;

static int compare_exceptions(const void *a, const void *b) { return ((const Exception *)a)->step - ((const Exception *)b)->step; }

static void pack_twelve_task(const void *argument, long panel, int thread) {
    const PackTwelveJob *job = argument;
    const Linear *linear = job->linear;
    const long width = linear->width, packs = job->panels != NULL;
    const HighByteCodes codes = codes_of(linear->exceptions.high_bytes);
    uint8_t *to = packs ? job->panels + panel * panel_bytes(linear) : NULL;
    Exception *first = packs ? job->exceptions + linear->exceptions.first[panel] : NULL;
    long count = 0;
    (void)thread;
    if (packs) memset(to, 0, (size_t)panel_bytes(linear));
    for (long column = 0; column < PANEL; column++) {
        const long row = row_at(linear, panel, column);
        if (row < 0) continue;
        const uint16_t *from = job->weight + row * width;
        for (long k = 0; k < width; k++) {
            const int code = codes.of[from[k] >> 8];
            const long place = 2 * column + k % 2;
            if (packs) place_twelve(to + k / 2 * STEP_BYTES, place, from[k], code & 15);
            if (code < NUM_HIGH_BYTES) continue;
            if (packs) first[count] = (Exception){(int32_t)(k / 2), (uint16_t)place, from[k]};
            count++;
        }
    }
    if (!packs) {
        job->counts[panel] = count;
        return;
    }
    qsort(first, (size_t)count, sizeof *first, compare_exceptions);
    first[count] = (Exception){NO_STEP, 0, 0};
}

// counts[panels]: what has none of the high bytes of `linear`.
void pagoda_count_exceptions(Threads *threads, const Linear *linear, const uint16_t *weight, int64_t *counts) {
    PackTwelveJob job = {linear, weight, counts, NULL, NULL};
    enter(threads);
    in_parallel(threads, pack_twelve_task, &job, num_panels(linear));
    leave(threads);
}

// Fill `panels` and `exceptions` from a dense weight of bf16, as `pagoda_pack` does.
void pagoda_pack_twelve(
    Threads *threads, const Linear *linear, const uint16_t *weight, uint8_t *panels, Exception *exceptions) {
    PackTwelveJob job = {linear, weight, NULL, panels, exceptions};
    enter(threads);
    in_parallel(threads, pack_twelve_task, &job, num_panels(linear));
    leave(threads);
}

// One row [K] of a dense weight without a gate, out of its panel.
static inline void unpack_row(const Linear *linear, long row, void *out) {
    const long steps = num_steps(linear->width, linear->is_bf16), column = row % PANEL;
    const void *panel = panel_at(linear, row / PANEL);
    if (linear->bits == TWELVE_BITS) {
        const Exceptions *exceptions = &linear->exceptions;
        uint16_t *to = out;
        for (long i = 0; i < 2 * steps; i++)
            to[i] = twelve_at((const uint8_t *)panel + i / 2 * STEP_BYTES, 2 * column + i % 2, exceptions->high_bytes);
        for (const Exception *each = exceptions->all + exceptions->first[row / PANEL]; each->step != NO_STEP; each++)
            if (each->place / 2 == column) to[2 * each->step + each->place % 2] = each->value;
        return;
    }
    const uint32_t *from = (const uint32_t *)panel + column;
    for (long step = 0; step < steps; step++) ((uint32_t *)out)[step] = from[step * PANEL];
}

// Rows [n, K] of such a weight.
void pagoda_unpack_rows(const Linear *linear, const int64_t *rows, int64_t num_rows, void *out) {
    const long steps = num_steps(linear->width, linear->is_bf16);
    for (long i = 0; i < num_rows; i++) unpack_row(linear, rows[i], (uint32_t *)out + i * steps);
}

// sums[m, num_vectors * LANES] += x[m] times one step's words. Meanwhile memory is asked for those at `ahead`, for the
// second-level cache: the first one has room for what is multiplied now, and as few misses under way as there are
// would hold up its loads. Those `near` by come from there.
static inline __attribute__((always_inline)) void add_step(
    const int num_rows, const int num_vectors, vfloat sums[MAX_ROWS][VECTORS], const uint32_t *x, long x_stride,
    const uint32_t *words, const uint32_t *near, const void *ahead, const int is_bf16) {
#pragma GCC unroll 4
    for (int word = 0; word < num_vectors * LANES; word += LINE_WORDS) {
        __builtin_prefetch(near + word);
        __builtin_prefetch((const uint32_t *)ahead + word, 0, 2);
    }
    // Two addresses for six rows: one for each, as GCC would have it, are more than there are registers.
    const uint32_t *x3 = x + 3 * x_stride;
    __asm__("" : "+r"(x));
    if (num_rows > 3) __asm__("" : "+r"(x3));
#pragma GCC unroll 2
    for (int half = 0; half < num_halves(is_bf16); half++) {
        vuint w[VECTORS];
#pragma GCC unroll 16
        for (int j = 0; j < num_vectors; j++) {
            w[j] = half_of(vload_bits(words + j * LANES), half, is_bf16);
            stay_in_register(&w[j]);
        }
#pragma GCC unroll 6
        for (int m = 0; m < num_rows; m++)
#pragma GCC unroll 16
            for (int j = 0; j < num_vectors; j++)
                add_product(&sums[m][j], (m < 3 ? x + m * x_stride : x3 + (m - 3) * x_stride) + half, w[j], is_bf16);
    }
}

// c[m, 64] (+)= rows of x, see copy_x, times a panel, along `steps` steps. x_stride and c_stride: words of 32 bits.
// Meanwhile memory is fetched from `ahead` on, evenly: more requests at a time than it takes would hold up loads.
static inline __attribute__((always_inline)) void tile_of(
    const int num_rows, long steps, const uint32_t *x, long x_stride, const uint32_t *panel, float *c,
    long c_stride, const char *ahead, long ahead_bytes, int adds, const int is_bf16) {
    const int each = TILE_VECTORS(num_rows);
    const long ahead_stride = (ahead_bytes * each / VECTORS + steps - 1) / steps;
    for (long first = 0; first < PANEL; first += each * LANES) {
        const uint32_t *words = panel + first;
        const char *later = ahead + ahead_bytes * first / PANEL;
        vfloat sums[MAX_ROWS][VECTORS];
#pragma GCC unroll 6
        for (int m = 0; m < num_rows; m++)
#pragma GCC unroll 16
            for (int j = 0; j < each; j++)
                sums[m][j] = adds ? vload(c + m * c_stride + first + j * LANES) : (vfloat){};
        long step = 0;
        do {  // one at least: told so, GCC has registers enough
            add_step(num_rows, each, sums, x + x_words(step, is_bf16), x_stride, words, words + NEAR_STEPS * PANEL,
                     later, is_bf16);
            words += PANEL, later += ahead_stride;
        } while (++step < steps);
#pragma GCC unroll 6
        for (int m = 0; m < num_rows; m++)
#pragma GCC unroll 16
            for (int j = 0; j < each; j++) vstore(c + m * c_stride + first + j * LANES, sums[m][j]);
    }
}

typedef void (*Tile)(long, const uint32_t *, long, const uint32_t *, float *, long, const char *, long, int);

#define TILE(ROWS, BF16)                                                                                \
    static void tile_##ROWS##_##BF16(long steps, const uint32_t *x, long x_stride, const uint32_t *panel, \
                                     float *c, long c_stride, const char *ahead, long ahead_bytes, int adds) { \
        tile_of(ROWS, steps, x, x_stride, panel, c, c_stride, ahead, ahead_bytes, adds, BF16);          \
    }
#define TILES(BF16)                                                                                     \
    TILE(1, BF16) TILE(2, BF16) TILE(3, BF16) TILE(4, BF16) TILE(5, BF16) TILE(6, BF16)
TILES(0)
TILES(1)
#define TILE_ROW(BF16)                                                                                  \
    {tile_1_##BF16, tile_2_##BF16, tile_3_##BF16, tile_4_##BF16, tile_5_##BF16, tile_6_##BF16}
static const Tile TILE_FUNCTIONS[2][MAX_ROWS] = {TILE_ROW(0), TILE_ROW(1)};  // [is_bf16][rows - 1]

// c[rows, 64] (+)= x times a panel: tiles of at most MAX_ROWS rows, as even as they can be. Each fetches its
// share of the `steps` steps from `ahead` on: what comes next should be near by then, and memory never idle.
// done: told of each tile; NULL: there is more to be added to them.
static inline void panel_product(
    long num_rows, long steps, const uint32_t *x, long x_stride, const uint32_t *panel, float *c,
    long c_stride, const void *ahead, int adds, int is_bf16, const RowsDone *done) {
    const RowTiles tiles = row_tiles(num_rows, MAX_ROWS);
    const long ahead_bytes = steps * PANEL * 4 / tiles.count;
    for (long tile = 0, row = 0, end; tile < tiles.count; tile++, row = end) {
        end = row + rows_of_tile(&tiles, tile);
        TILE_FUNCTIONS[is_bf16][end - row - 1](
            steps, x + row * x_stride, x_stride, panel, c + row * c_stride, c_stride,
            (const char *)ahead + tile * ahead_bytes, ahead_bytes, adds);
        if (done) done->tell(done, row, end);
    }
}

typedef struct {
    const Linear *linear;
    const void *x;  // [rows, K], see place_row
    void *y;        // [rows, N]
    long y_stride;  // elements from one row of y to the next
    int places_y;   // as products by AMX take x
    long first_panel, end_panel;
    long num_rows;
    long num_chunks;
    const int32_t *adapters;  // [rows]: a slot of `linear->lora`; negative: none. NULL: none at all
    const float *shrunk;      // [rows, shrunk_width]
    Threads *threads;
} ProductJob;

static inline vfloat silu(vfloat x, const int is_bf16) {
    return is_bf16 ? vdivided_for_bf16(x, 1.0f + vexp_for_bf16(-x)) : x / (1.0f + vexp(-x));
}

// By the approximation with tanh(u): (1 + tanh(u)) / 2 is the sigmoid of 2 u.
static inline vfloat gelu_tanh(vfloat x) { return x / (1.0f + vexp(-x * (1.59576912f + 0.0713548163f * x * x))); }

// x times the normal distribution up to x, whose tail at |x| is e^(-x^2 / 2) times a polynomial of 1 / (1 + 0.3 |x|)
// without a constant: fitted to a relative error of 1.5e-7 from 0 to 14.
static inline vfloat gelu(vfloat x) {
    static const float coefficients[] = {  // the highest power first
        0.0356748758f, -0.157203495f, 0.20635419f, -0.0536842408f, 0.128561922f, 0.0999134093f, 0.120753968f, 0.119629298f};
    const vfloat t = 1.0f / (1.0f + 0.3f * vmax(x, -x));
    vfloat tail = vset(coefficients[0]);
#pragma GCC unroll 8
    for (int i = 1; i < 8; i++) tail = vfma(tail, t, vset(coefficients[i]));
    tail *= t * vexp(-0.5f * x * x);
    return x * vselect(x < 0.0f, tail, 1.0f - tail);
}

static inline vfloat activated(const Linear *linear, vfloat x, const int is_bf16) {
    if (linear->gate == GATE_SILU) return silu(x, is_bf16);
    return linear->gate == GATE_GELU_TANH ? gelu_tanh(x) : gelu(x);
}

// One result of gate and up, both rounded already; rounded where the separate operators round.
static inline vfloat gated(const Linear *linear, vfloat gate, vfloat up, const int is_bf16) {
    if (linear->gate != GATE_CLAMPED) return vrounded(activated(linear, gate, is_bf16), is_bf16) * up;
    const vfloat low = vset(-linear->gate_limit);
    gate = -vmax(low, -gate);
    up = -vmax(low, -vmax(low, up));
    return gate / (1.0f + vexp(-linear->gate_alpha * gate)) * (up + 1.0f);
}

// Outputs of rows from `first_row` of a job on.
static inline __attribute__((always_inline)) void finish_rows(
    const ProductJob *job, float *sums, long panel, long first_row, long num_rows, const int is_bf16) {
    const Linear *linear = job->linear;
    const long each = panel_outputs(linear), first = panel * each;
    const long left = linear->num_outputs - first, used = left < each ? left : each;
    for (long row = first_row; row < first_row + num_rows; row++, sums += PANEL) {
        if (linear->bias)
            for (long j = 0; j < used; j++)
                for (long half = 0; half < PANEL / each; half++)
                    sums[half * each + j] += load_any(linear->bias, half * linear->num_outputs + first + j, is_bf16);
        if (linear->is_gated)
            for (long j = 0; j < each; j += LANES) {
                vfloat gate = vrounded(vload(sums + j), is_bf16), up = vrounded(vload(sums + each + j), is_bf16);
                vstore(sums + j, gated(linear, gate, up, is_bf16));
            }
        if (linear->is_activated)
            for (long j = 0; j < PANEL; j += LANES)
                vstore(sums + j, activated(linear, vrounded(vload(sums + j), is_bf16), is_bf16));
        if (TAKES_AMX && job->places_y) {  // blocks are whole
            char *to = (char *)job->y + amx_place(row, job->num_rows, amx_blocks(linear->num_outputs), first);
            const long block_bytes = amx_block_bytes(row / AMX_GROUP * AMX_GROUP, job->num_rows);
            for (long j = 0; j < used; j += AMX_WIDTH, to += block_bytes)
                for (long i = 0; i < AMX_WIDTH; i += LANES) vstore_any(to, i, vload(sums + j + i), is_bf16);
            continue;
        }
        const long to = row * job->y_stride + first;
        long j = 0;
        for (; j + LANES <= used; j += LANES) vstore_any(job->y, to + j, vload(sums + j), is_bf16);
        for (; j < used; j++) store_any(job->y, to + j, sums[j], is_bf16);
    }
}

// Of a panel's tiles, those that may fetch what is upcoming: few rows have memory wait for nothing.
static inline long upcoming_tiles(long num_tiles) { return num_tiles > 2 ? num_tiles / 2 : 0; }

// A panel in twelve bits, from its start on.
static inline TwelvePart first_part(const Linear *linear, long panel, uint32_t *widened) {
    const Exceptions *exceptions = &linear->exceptions;
    return (TwelvePart){.steps = panel_at(linear, panel), .exception = exceptions->all + exceptions->first[panel],
                        .table = high_byte_table(exceptions->high_bytes), .nibbles = (vuint){} + 0x0f0f0f0f,
                        .odd = (vuint){} + 0xffff0000u, .widened = widened};
}

// scratch->sums[num_rows, 64] = rows of x times a panel of twelve bits. x_rows: those that x has in parts; 0: it is not.
// `later` is fetched meanwhile, by the first half of all tiles if the others fetch what is upcoming; NULL: nothing is.
static void twelve_panel_product(
    long num_rows, long steps, const uint32_t *x, long x_rows, const Linear *linear, long panel, const void *later,
    Upcoming *upcoming, PanelScratch *scratch, const RowsDone *done) {
    const RowTiles tiles = row_tiles(num_rows, MAX_ROWS);
    const long num_tiles = tiles.count, end = tiles.rows, x_stride = x_rows ? PART_WIDTH : x_words(steps, 1);
    const long num_fetching = num_tiles - (upcoming ? upcoming_tiles(num_tiles) : 0), stride = STEP_BYTES / num_fetching;
    TwelvePart part = first_part(linear, panel, scratch->widened);
    part.ahead_stride = stride;
    // By turns of several steps, to which x in parts is filled up.
    const int in_turns = x_rows || (TAKES_PAIRS && steps % STEPS_TOGETHER == 0);
    // A single tile that takes all vectors at a time reads a part once: all but its last steps are one.
    const int is_fused = !x_rows && end <= FUSED_ROWS, is_once = num_tiles == 1 && TILE_VECTORS(end) == VECTORS;
    for (; part.first < steps; part.steps += part.count * STEP_BYTES, part.first += part.count) {
        const long left = steps - part.first, adds = part.first > 0;
        const long most = x_rows ? PART_WIDTH / 2 : is_once ? FEW_ROWS_AHEAD : K_PART_STEPS;
        part.count = is_once && left > most ? left - most : left < most ? left : most;
        part.ahead = left > most ? part.steps + most * STEP_BYTES : later;
        while (part.exception->step < part.first) part.exception++;
        const int is_last = part.count == left;
        if (is_fused) {
            TWELVE_TILE_FUNCTIONS[NUM_KEEPING && num_tiles > 1][end - 1](&part, x, x_stride, scratch->sums, adds);
            if (is_last) done->tell(done, 0, end);
        } else if (x_rows) {
            widen_part_to_floats(&part);
        } else {
            widen_part(&part);
        }
        for (long tile = is_fused, row = is_fused ? end : 0, next; tile < num_tiles; tile++, row = next) {
            next = row + rows_of_tile(&tiles, tile);
            size_t ahead_bytes = (size_t)(part.count * stride);
            const char *ahead = (const char *)part.ahead + (tile < num_fetching ? tile : tile - num_fetching) * (long)ahead_bytes;
            if (tile >= num_fetching) {
                const char *kv = next_part(upcoming, &ahead_bytes);
                if (kv) ahead = kv;
            }
            float *sums = scratch->sums + row * PANEL;
            if (in_turns)
                PART_TILE_FUNCTIONS[next - row - 1](
                    whole_turns(x_words(part.count, 1)), x + row * x_stride, x_stride, scratch->widened, sums, ahead,
                    (long)ahead_bytes, adds);
            else
                TILE_FUNCTIONS[1][next - row - 1](
                    part.count, x + row * x_stride, x_stride, scratch->widened, sums, PANEL, ahead, (long)ahead_bytes, adds);
            if (is_last) done->tell(done, row, next);
        }
        x += x_rows ? x_rows * PART_WIDTH : x_words(part.count, 1);
    }
}

// Of a panel and the rows of a chunk.
typedef struct {
    RowsDone done;  // the first, so that a pointer to it is one to this
    const ProductJob *job;
    long panel;
    long first_row;  // of the chunk
    float *sums;     // [rows of the chunk, PANEL]
} Ending;

// Outputs of sums, which are overwritten: what adapters add, bias, gate; rounded.
static void end_rows(const RowsDone *done, long row, long end) {
    const Ending *ending = (const Ending *)done;
    const ProductJob *job = ending->job;
    const Linear *linear = job->linear;
    const int is_bf16 = linear->is_bf16;
    const long first = ending->first_row + row, num_rows = end - row;
    float *sums = ending->sums + row * PANEL;
    if (job->adapters) {
        const Lora *lora = linear->lora;
        const float *shrunk = job->shrunk + first * shrunk_width(lora);
        const long outputs = linear->num_outputs, each = panel_outputs(linear);
        if (is_bf16) expand_rows(lora, job->adapters + first, shrunk, num_rows, ending->panel, outputs, each, sums, 1);
        else expand_rows(lora, job->adapters + first, shrunk, num_rows, ending->panel, outputs, each, sums, 0);
    }
    if (is_bf16) finish_rows(job, sums, ending->panel, first, num_rows, 1);
    else finish_rows(job, sums, ending->panel, first, num_rows, 0);
}

// The first row of a chunk. Those of AMX begin with a group.
static inline long first_of_chunk(const ProductJob *job, long chunk) {
    const long row = job->num_rows * chunk / job->num_chunks, up = (row + AMX_GROUP - 1) / AMX_GROUP * AMX_GROUP;
    return !TAKES_AMX ? row : up < job->num_rows ? up : job->num_rows;
}

// The outputs of one panel for the rows of one chunk. `later`: what this thread reads next, if it is dense.
static inline void panel_rows(const ProductJob *job, long panel, long chunk, const void *later, int thread) {
    const Linear *linear = job->linear;
    const int is_bf16 = linear->is_bf16;
    const long row = first_of_chunk(job, chunk), end = first_of_chunk(job, chunk + 1);
    const long steps = num_steps(linear->width, is_bf16);
    const long x_rows = takes_parts(linear, job->num_rows) ? job->num_rows : 0;
    const long x_stride = x_rows ? PART_WIDTH : x_words(steps, is_bf16);
    const uint32_t *weights = panel_at(linear, panel);
    const uint32_t *x = (const uint32_t *)job->x + row * x_stride;
    PanelScratch *scratch = scratch_of(job->threads, thread);
    const Ending ending = {{end_rows}, job, panel, row, scratch->sums};
#if TAKES_AMX
    if (takes_amx(linear->is_bf16)) {
        const AmxX blocks = {job->x, amx_blocks(linear->width), job->num_rows};
        take_amx(job->threads, thread, end - row);
        if (linear->bits == TWELVE_BITS) {
            const TwelvePart part = first_part(linear, panel, scratch->widened);
            amx_twelve_product(end - row, steps, &blocks, row, &part, later, scratch, &ending.done);
        } else if (linear->bits) {
            amx_coded_product(end - row, linear->width, &blocks, row, panel_at(linear, panel), linear->bits, linear->has_zeros,
                              linear->levels, scratch, &ending.done);
        } else {
            amx_dense_product(end - row, steps, &blocks, row, weights, scratch, &ending.done);
        }
        return;
    }
#endif
    if (linear->bits == TWELVE_BITS) {
        Upcoming *upcoming = &job->threads->upcoming;
        twelve_panel_product(
            end - row, steps, x, x_rows, linear, panel, later, upcoming->is_due ? upcoming : NULL, scratch, &ending.done);
    } else if (linear->bits) {
        quantised_panel_product(
            end - row, linear->width, x, panel_at(linear, panel), linear->bits, linear->has_zeros, linear->levels,
            is_bf16, scratch, &ending.done);
    } else {
        for (long step = 0; step < steps; step += K_PART_STEPS) {
            const long next = step + K_PART_STEPS, count = (next < steps ? next : steps) - step;
            const uint32_t *part = weights + step * PANEL;
            const void *ahead = next < steps ? weights + next * PANEL : later;
            panel_product(
                end - row, count, x + x_words(step, is_bf16), x_stride, part, scratch->sums, PANEL, ahead, step > 0, is_bf16,
                next < steps ? NULL : &ending.done);
        }
    }
}

// Tasks of a chunk follow one another: its rows of x stay in the second-level cache meanwhile.
static void product_task(const void *argument, long task, int thread) {
    const ProductJob *job = argument;
    const long panels = job->end_panel - job->first_panel, panel = job->first_panel + task % panels;
    panel_rows(job, panel, task / panels, panel_at(job->linear, panel + 1), thread);
}

static inline long num_chunks(long num_rows) { return (num_rows + CHUNK_ROWS - 1) / CHUNK_ROWS; }

// Parts of what is upcoming that a product of so many rows may fetch.
static inline long upcoming_parts(const Linear *linear, long num_rows) {
    if (!linear || linear->bits != TWELVE_BITS || takes_amx(linear->is_bf16)) return 0;
    const long chunks = num_chunks(num_rows), num_tiles = row_tiles(num_rows / chunks, MAX_ROWS).count;
    const long steps = num_steps(linear->width, 1);
    const long k_parts = takes_parts(linear, num_rows) ? num_parts(linear->width) : (steps + K_PART_STEPS - 1) / K_PART_STEPS;
    return chunks * upcoming_tiles(num_tiles) * num_panels(linear) * k_parts;
}

#define PLACE_NUMBERS 8192  // of one task, or a row

typedef struct {
    const Linear *linear;
    const void *x;  // [rows, K]
    void *out;      // as products by `linear` take it
    long num_rows;
} PlaceJob;

static inline long rows_to_place(const Linear *linear) {  // by one task
    return linear->width < PLACE_NUMBERS ? PLACE_NUMBERS / linear->width : 1;
}

static void place_task(const void *argument, long task, int thread) {
    const PlaceJob *job = argument;
    const Linear *linear = job->linear;
    const long each = rows_to_place(linear), first = task * each, left = job->num_rows - first;
    (void)thread;
    for (long row = first; row < first + (left < each ? left : each); row++)
        place_row(linear, at(job->x, row * linear->width, linear->is_bf16), job->out, row, job->num_rows);
}

// Have `out` as products of so many rows by `linear` take x.
static void place_rows(Threads *threads, const Linear *linear, const void *x, long num_rows, void *out) {
    const PlaceJob job = {linear, x, out, num_rows};
    const long each = rows_to_place(linear);
    in_parallel(threads, place_task, &job, (num_rows + each - 1) / each);
}

// Rows whose x has room where it is placed.
static inline long most_placed(const Linear *linear) { return WIDE_NUMBERS / x_room(linear->width, linear->is_bf16); }

// Where x of the next product may be placed before it, and whether it may. Adapters take x by rows.
static inline void *placed_x(Threads *threads) { return threads->wide_x; }
static inline int may_place_x(const Linear *linear, long num_rows, const int32_t *adapters) {
    return places_x(linear->is_bf16) && num_rows <= most_placed(linear) && !(adapters && linear->lora);
}

// The same of y of that product, for the one behind it: by AMX, behind what x takes of that room; half a page further, lest stores
// to the first rows' y hold up loads of their x.
static inline void *placed_y(Threads *threads) { return (char *)threads->wide_x + WIDE_NUMBERS * 2 + AMX_ROOM; }

static inline int may_place_y(const Linear *linear, const Linear *next, long num_rows, const int32_t *adapters) {
    return takes_amx(next->is_bf16) && next->width % AMX_WIDTH == 0 && may_place_x(next, num_rows, adapters) &&
        num_rows <= most_placed(linear) && num_rows * next->width * 2 + 2 * AMX_ROOM <= WIDE_NUMBERS * 2;
}

// Outputs of panels [first_panel, end_panel), others stay as they are. adapters: of each row, see ProductJob; shrunk: room
// for `shrunk_width` of each row, if there are some. is_placed: x is; places_y: y is to be.
static void product_of_panels(
    Threads *threads, const Linear *linear, long first_panel, long end_panel, const void *x, long num_rows, void *y,
    const int32_t *adapters, float *shrunk, int is_placed, int places_y) {
    const int is_bf16 = linear->is_bf16;
    if (!linear->lora) adapters = NULL;
    if (adapters) {
        ShrinkJob job = {linear->lora, x, adapters, shrunk, num_rows, linear->width, is_bf16};
        shrink(threads, &job);
    }
    const long most = places_x(is_bf16) && !is_placed ? most_placed(linear) : num_rows;
    for (long row = 0; row < num_rows; row += most) {
        ProductJob job = {.linear = linear, .x = at(x, row * linear->width, is_bf16),
                          .y = (void *)at(y, row * linear->num_outputs, is_bf16), .y_stride = linear->num_outputs, .places_y = places_y,
                          .first_panel = first_panel, .end_panel = end_panel,
                          .num_rows = num_rows - row < most ? num_rows - row : most, .threads = threads};
        job.num_chunks = num_chunks(job.num_rows);
        if (adapters) job.adapters = adapters + row, job.shrunk = shrunk + row * shrunk_width(linear->lora);
        if (places_x(is_bf16) && !is_placed) {
            place_rows(threads, linear, job.x, job.num_rows, threads->wide_x);
            job.x = threads->wide_x;
        }
        in_parallel(threads, product_task, &job, (end_panel - first_panel) * job.num_chunks);
    }
}

static void product_to(
    Threads *threads, const Linear *linear, const void *x, long num_rows, void *y, const int32_t *adapters,
    float *shrunk, int is_placed, int places_y) {
    product_of_panels(threads, linear, 0, num_panels(linear), x, num_rows, y, adapters, shrunk, is_placed, places_y);
}

static void product(
    Threads *threads, const Linear *linear, const void *x, long num_rows, void *y, const int32_t *adapters,
    float *shrunk) {
    product_to(threads, linear, x, num_rows, y, adapters, shrunk, 0, 0);
}

void pagoda_product(
    Threads *threads, const Linear *linear, const void *x, int64_t num_rows, void *y, const int32_t *adapters,
    float *shrunk) {
    enter(threads);
    product(threads, linear, x, num_rows, y, adapters, shrunk);
    leave(threads);
}
