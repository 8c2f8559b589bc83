// Low-rank adapters of a projection, another one for every row: what is added to a row's sums in fp32, before
// bias, gate and rounding, is scale * B (A x). A row without an adapter is left alone to the last bit; what one
// with an adapter gets depends on that row alone, whatever rows come with it.
//
// A joined projection has parts (Q, K and V; gate and up) with an A of their own. A lies with 16 ranks side by
// side, B in the panels of the projection's weight.

#pragma once

#include "panels.h"
#include "threads.h"

#define RANKS 16       // side by side in A, whatever the instruction set
#define SHRINK_ROWS 4  // of one task, and of a tile that shares the loads of A
#define SHRINK_SUMS (TILE_REGISTERS / 7)  // along K, so that additions need not wait for one another

typedef struct {
    const void *a;          // [slots, parts, max_rank / RANKS, K, RANKS]
    const void *b;          // [slots, panels, max_rank, PANEL]; zeros beyond the outputs
    const int32_t *ranks;   // [slots]; 0: nothing is added
    const float *scales;    // [slots]
    const int64_t *part_ends;  // [parts]: rows of the weight, ascending
    int64_t num_parts;
    int64_t max_rank;       // a multiple of RANKS
} Lora;

static inline long shrunk_width(const Lora *lora) { return lora->num_parts * lora->max_rank; }

typedef struct {
    const Lora *lora;
    const void *x;            // [rows, K]
    const int32_t *adapters;  // [rows]: a slot; negative: none
    float *shrunk;            // [rows, parts * max_rank]: scale * A x
    long num_rows;
    long width;
    int is_bf16;
} ShrinkJob;

// out[m, LANES] = scale * x[m] A.T of as many ranks; rows of x and out so many elements apart.
static inline __attribute__((always_inline)) void shrink_tile(
    const int num_rows, const void *x, long width, const void *a, float scale, float *out, long out_stride,
    const int is_bf16) {
    vfloat sums[SHRINK_ROWS][SHRINK_SUMS];
#pragma GCC unroll 4
    for (int m = 0; m < num_rows; m++)
#pragma GCC unroll 4
        for (int u = 0; u < SHRINK_SUMS; u++) sums[m][u] = (vfloat){};
    long k = 0;
    for (; k + SHRINK_SUMS <= width; k += SHRINK_SUMS)
#pragma GCC unroll 4
        for (int u = 0; u < SHRINK_SUMS; u++) {
            const vfloat ranks = vload_any(a, (k + u) * RANKS, is_bf16);
#pragma GCC unroll 4
            for (int m = 0; m < num_rows; m++)
                sums[m][u] = vfma(vset(load_any(x, m * width + k + u, is_bf16)), ranks, sums[m][u]);
        }
    for (; k < width; k++)
        for (int m = 0; m < num_rows; m++)
            sums[m][0] = vfma(vset(load_any(x, m * width + k, is_bf16)), vload_any(a, k * RANKS, is_bf16), sums[m][0]);
#pragma GCC unroll 4
    for (int m = 0; m < num_rows; m++)
        vstore(out + m * out_stride, (SHRINK_SUMS == 2 ? sums[m][0] + sums[m][1] : (sums[m][0] + sums[m][1]) + (sums[m][2] + sums[m][3])) * scale);
}

static inline __attribute__((always_inline)) void shrink_rows(const ShrinkJob *job, long task, const int is_bf16) {
    const Lora *lora = job->lora;
    const long part = task % lora->num_parts, first = task / lora->num_parts * SHRINK_ROWS;
    const long end = first + SHRINK_ROWS < job->num_rows ? first + SHRINK_ROWS : job->num_rows;
    const long tiles = lora->max_rank / RANKS, stride = shrunk_width(lora);
    int are_alike = end - first == SHRINK_ROWS;
    for (long row = first; row < end; row++) are_alike &= job->adapters[row] == job->adapters[first];
    for (long row = first; row < end; row += are_alike ? SHRINK_ROWS : 1) {
        const long slot = job->adapters[row];
        if (slot < 0) continue;
        for (long rank = 0; rank < lora->ranks[slot]; rank += LANES) {
            const long tile = (slot * lora->num_parts + part) * tiles + rank / RANKS;
            const void *a = at(lora->a, tile * job->width * RANKS + rank % RANKS, is_bf16);
            const void *x = at(job->x, row * job->width, is_bf16);
            float *out = job->shrunk + row * stride + part * lora->max_rank + rank;
            if (are_alike) shrink_tile(SHRINK_ROWS, x, job->width, a, lora->scales[slot], out, stride, is_bf16);
            else shrink_tile(1, x, job->width, a, lora->scales[slot], out, stride, is_bf16);
        }
    }
}

static void shrink_task(const void *argument, long task, int thread) {
    const ShrinkJob *job = argument;
    (void)thread;
    if (job->is_bf16) shrink_rows(job, task, 1);
    else shrink_rows(job, task, 0);
}

static void shrink(Threads *threads, const ShrinkJob *job) {
    const long num_blocks = (job->num_rows + SHRINK_ROWS - 1) / SHRINK_ROWS;
    in_parallel(threads, shrink_task, job, num_blocks * job->lora->num_parts);
}

// sums[num_vectors * LANES] += shrunk[rank] times rows of b, PANEL elements apart; rank by rank, whatever num_vectors.
static inline __attribute__((always_inline)) void expand_vectors(
    const int num_vectors, const float *shrunk, long rank, const void *b, float *sums, const int is_bf16) {
    vfloat added[VECTORS];
#pragma GCC unroll 16
    for (int v = 0; v < num_vectors; v++) added[v] = vload(sums + v * LANES);
    for (long r = 0; r < rank; r++)
#pragma GCC unroll 16
        for (int v = 0; v < num_vectors; v++)
            added[v] = vfma(vset(shrunk[r]), vload_any(b, r * PANEL + v * LANES, is_bf16), added[v]);
#pragma GCC unroll 16
    for (int v = 0; v < num_vectors; v++) vstore(sums + v * LANES, added[v]);
}

// sums[count] += shrunk[rank] times rows of b; several vectors at a time, so that additions need not wait.
static inline __attribute__((always_inline)) void expand_columns(
    const float *shrunk, long rank, const void *b, float *sums, long count, const int is_bf16) {
    long j = 0;
    const long most = TILE_VECTORS(1) * LANES;
    for (; j + most <= count; j += most)
        expand_vectors(TILE_VECTORS(1), shrunk, rank, at(b, j, is_bf16), sums + j, is_bf16);
    for (; j + most / 2 <= count; j += most / 2)
        expand_vectors(TILE_VECTORS(1) / 2, shrunk, rank, at(b, j, is_bf16), sums + j, is_bf16);
    for (; j + LANES <= count; j += LANES) expand_vectors(1, shrunk, rank, at(b, j, is_bf16), sums + j, is_bf16);
    for (; j < count; j++)
        for (long r = 0; r < rank; r++) sums[j] = fmaf(shrunk[r], load_any(b, r * PANEL + j, is_bf16), sums[j]);
}

// Add what the adapters of some rows add to a panel's sums [rows, PANEL].
// num_outputs, each: of the projection, and how many of them a panel has (see product.h).
static inline __attribute__((always_inline)) void expand_rows(
    const Lora *lora, const int32_t *adapters, const float *shrunk, long num_rows, long panel, long num_outputs,
    long each, float *sums, const int is_bf16) {
    const long num_panels = (num_outputs + each - 1) / each, left = num_outputs - panel * each;
    const long used = left < each ? left : each;
    for (long row = 0; row < num_rows; row++, sums += PANEL, shrunk += shrunk_width(lora)) {
        const long slot = adapters[row];
        if (slot < 0 || !lora->ranks[slot]) continue;
        const void *b = at(lora->b, (slot * num_panels + panel) * lora->max_rank * PANEL, is_bf16);
        for (long half = 0; half < PANEL / each; half++) {
            long weight_row = half * num_outputs + panel * each, column = half * each, part = 0;
            for (const long end = column + used; column < end;) {
                while (weight_row >= lora->part_ends[part]) part++;
                const long rest = lora->part_ends[part] - weight_row;
                const long count = rest < end - column ? rest : end - column;
                expand_columns(shrunk + part * lora->max_rank, lora->ranks[slot], at(b, column, is_bf16),
                               sums + column, count, is_bf16);
                weight_row += count, column += count;
            }
        }
    }
}
