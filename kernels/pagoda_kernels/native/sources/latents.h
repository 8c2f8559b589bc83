// Multi-head latent attention (DeepSeek-AI, "DeepSeek-V2", 2024): a token's K and V of all heads are made of one
// latent of R dims, which is cached with one K of P dims that has turned.
//
// Nothing is made of what is cached: with K = W_k c and V = W_v c of the latent c, q . K = (W_k^T q) . c, and the
// sum of weighted V is W_v times that of weighted c. So all heads attend to the same rows, whose first R dims are
// their values, prompts as decodes: a row's result depends on its own tokens alone.

#pragma once

#include "rows.h"

#define MIN_HEADS MAX_ROWS  // of one task: fewer hardly take less time

typedef struct {
    const Linear *down;   // [Q + R + P, hidden]: to Q's latent, or to Q itself; to the latent; to the K that turns
    const Linear *q_up;   // [H (N + P), Q]; NULL: there is no latent of Q
    const void *q_norm;   // [Q], with q_up
    const void *kv_norm;  // [R]
    const Linear *const *k_up;  // [H] of [R, N]: W_k^T of each head
    const Linear *const *v_up;  // [H] of [value, R]
    int64_t kv_rank;    // R
    int64_t nope_dim;   // N: of a head's Q, that do not turn
    int64_t rope_dim;   // P
    int64_t value_dim;
    float eps;          // of both norms
    int32_t is_interleaved;  // pairs lie side by side; else in halves
} Latents;

// What some tokens need besides; by head where tokens of a head follow one another.
typedef struct {
    void *down;      // [T, Q + R + P]
    void *q_latent;  // [T, Q]
    void *q;         // [T, H (N + P)]
    void *plain;     // [H, T, N], see place_row
    void *absorbed;  // [H, T, R + P]
    void *attended;  // [H, T, R]
    char *placed_attended;  // so, where products take x from elsewhere
} LatentsRoom;

static size_t lay_out_latents(const Latents *latents, const AttentionShape *shape, long num_tokens, char *at, LatentsRoom *room) {
    const size_t tokens = (size_t)num_tokens, heads = (size_t)shape->num_heads, item = shape->is_bf16 ? 2 : 4;
    const size_t x_items = (size_t)x_item(shape->is_bf16) / item;
    const size_t rank = (size_t)latents->kv_rank, nope = (size_t)latents->nope_dim, rope = (size_t)latents->rope_dim;
    const size_t nope_room = (size_t)x_room((long)nope, shape->is_bf16);
    void **parts[] = {&room->down, &room->q_latent, &room->q, &room->plain, &room->absorbed, &room->attended,
                      (void **)&room->placed_attended};
    const size_t widths[] = {(size_t)latents->down->num_outputs, latents->q_up ? (size_t)latents->q_up->width : 0,
                             latents->q_up ? heads * (nope + rope) : 0, heads * nope_room * x_items, heads * (rank + rope), heads * rank,
                             places_x(shape->is_bf16) ? heads * (size_t)x_room((long)rank, shape->is_bf16) * x_items : 0};
    return lay_out_parts(sizeof widths / sizeof *widths, parts, widths, tokens * item, at) + behind_x(shape->is_bf16);
}

// Bytes that so many tokens need besides.
int64_t pagoda_latents_bytes(const Latents *latents, const AttentionShape *shape, int64_t num_tokens) {
    LatentsRoom room;
    return (int64_t)lay_out_latents(latents, shape, num_tokens, NULL, &room);
}

static inline long most_heads(const AttentionShape *shape) {  // of one task
    return shape->num_heads < TASK_ROWS ? shape->num_heads : TASK_ROWS;
}

// Scratch memory of each thread.
int64_t pagoda_latents_scratch_bytes(const Latents *latents, const AttentionShape *shape) {
    AttentionScratch scratch;
    const size_t rows = (size_t)(most_tokens(shape) * most_heads(shape));
    return (int64_t)lay_out_rows(rows, shape->head_dim, latents->kv_rank, shape->is_bf16, NULL, &scratch);
}

typedef struct {
    const Latents *latents;
    const LatentsRoom *room;
    AttentionJob attention;  // of one KV head, whose K are the cached rows and V what they begin with
    const int32_t *positions;  // [T]
    const float *cos_sin;      // [positions, P]: cosines, then sines
    void *out;                 // [T, H value]
    long num_parts;            // of the heads
} LatentsJob;

static inline __attribute__((always_inline)) void rotate_pairs(
    void *x, const float *cos_sin, long width, const int is_bf16) {
    for (long i = 0; i < width / 2; i++) {
        const float a = load_any(x, 2 * i, is_bf16), b = load_any(x, 2 * i + 1, is_bf16);
        const float c = cos_sin[i], s = cos_sin[width / 2 + i];
        store_any(x, 2 * i, fmaf(-b, s, a * c), is_bf16);
        store_any(x, 2 * i + 1, fmaf(a, s, b * c), is_bf16);
    }
}

static inline __attribute__((always_inline)) void turn(const LatentsJob *job, long token, void *x, const int is_bf16) {
    const long width = job->latents->rope_dim;
    const float *cos_sin = job->cos_sin + job->positions[token] * width;
    if (job->latents->is_interleaved) rotate_pairs(x, cos_sin, width, is_bf16);
    else rotate(x, cos_sin, width, is_bf16);
}

// Norms of both latents; that of K and V goes to its slot, with the K that turned.
static inline __attribute__((always_inline)) void write_latents(const LatentsJob *job, long task, const int is_bf16) {
    const Latents *latents = job->latents;
    const Batch *batch = job->attention.batch;
    const long rank = latents->kv_rank, rope = latents->rope_dim, width = latents->down->num_outputs;
    for (long token = task * TASK_TOKENS; token < end_of(task, batch->num_tokens); token++) {
        const void *row = at(job->room->down, token * width, is_bf16);
        if (latents->q_up) {
            const long q_rank = latents->q_up->width;
            norm_row(row, 0, latents->q_norm, NORM_RMS, q_rank, latents->eps, job->room->q_latent, token * q_rank, is_bf16);
        }
        const long slot = batch->slot_mapping[token];
        if (slot < 0) continue;
        const long block = slot / batch->block_size, inside = slot % batch->block_size * (rank + rope);
        void *to = (void *)at(job->attention.k_cache, block * batch->block_stride + inside, is_bf16);
        void *turned = (void *)at(to, rank, is_bf16);
        norm_row(row, width - rope - rank, latents->kv_norm, NORM_RMS, rank, latents->eps, to, 0, is_bf16);
        memcpy(turned, at(row, width - rope, is_bf16), (size_t)rope * (is_bf16 ? 2 : 4));
        turn(job, token, turned, is_bf16);
    }
}

static void write_latents_task(const void *argument, long task, int thread) {
    const LatentsJob *job = argument;
    (void)thread;
    if (job->attention.shape->is_bf16) write_latents(job, task, 1);
    else write_latents(job, task, 0);
}

// Q of some tokens, brought together by head; what turns turns.
static inline __attribute__((always_inline)) void part_heads(const LatentsJob *job, long task, const int is_bf16) {
    const Latents *latents = job->latents;
    const Batch *batch = job->attention.batch;
    const long heads = job->attention.shape->num_heads, tokens = batch->num_tokens, rank = latents->kv_rank;
    const long nope = latents->nope_dim, rope = latents->rope_dim, item = is_bf16 ? 2 : 4;
    const long stride = latents->q_up ? heads * (nope + rope) : latents->down->num_outputs;
    const void *q = latents->q_up ? job->room->q : job->room->down;
    const long plain_bytes = x_room(nope, is_bf16) * x_item(is_bf16);
    for (long token = task * TASK_TOKENS; token < end_of(task, tokens); token++)
        for (long head = 0; head < heads; head++) {
            const void *from = at(q, token * stride + head * (nope + rope), is_bf16);
            const long to = head * tokens + token;
            void *turned = (void *)at(job->room->absorbed, to * (rank + rope) + rank, is_bf16);
            place_row(latents->k_up[head], from, (char *)job->room->plain + head * tokens * plain_bytes, token, tokens);
            memcpy(turned, at(from, nope, is_bf16), (size_t)(rope * item));
            turn(job, token, turned, is_bf16);
        }
}

static void part_heads_task(const void *argument, long task, int thread) {
    const LatentsJob *job = argument;
    (void)thread;
    if (job->attention.shape->is_bf16) part_heads(job, task, 1);
    else part_heads(job, task, 0);
}

// One panel of one head's product, x as products take it: tasks of a head follow one another.
static inline void head_task(const LatentsJob *job, const Linear *const *linears, const void *x, void *y,
                             long y_head_stride, long y_stride, long task, int thread) {
    const long tokens = job->attention.batch->num_tokens, chunks = num_chunks(tokens), panels = num_panels(linears[0]);
    const long head = task / (chunks * panels), panel = task % panels;
    const long next_head = (task + 1) / (chunks * panels), later = next_head < job->attention.shape->num_heads ? next_head : head;
    const int is_bf16 = linears[0]->is_bf16;
    const ProductJob product_job = {
        .linear = linears[head], .x = (const char *)x + head * tokens * x_room(linears[0]->width, is_bf16) * x_item(is_bf16),
        .y = (void *)at(y, head * y_head_stride, is_bf16), .y_stride = y_stride, .num_rows = tokens,
        .num_chunks = chunks, .threads = job->attention.threads};
    panel_rows(&product_job, panel, task / panels % chunks, panel_at(linears[later], (task + 1) % panels), thread);
}

static void absorb_task(const void *argument, long task, int thread) {
    const LatentsJob *job = argument;
    const long width = job->attention.shape->head_dim;
    head_task(job, job->latents->k_up, job->room->plain, job->room->absorbed,
              job->attention.batch->num_tokens * width, width, task, thread);
}

// What was attended to, to where products by `v_up` take it from: tasks of a head follow one another.
static void place_attended_task(const void *argument, long task, int thread) {
    const LatentsJob *job = argument;
    const long tokens = job->attention.batch->num_tokens, rank = job->latents->kv_rank;
    const long head = task / tasks_of(tokens), nth = task % tasks_of(tokens);
    (void)thread;
    for (long token = nth * TASK_TOKENS; token < end_of(nth, tokens); token++)
        place_row(job->latents->v_up[head], at(job->room->attended, (head * tokens + token) * rank, 1),
                  job->room->placed_attended + head * tokens * x_room(rank, 1) * x_item(1), token, tokens);
}

static void value_task(const void *argument, long task, int thread) {
    const LatentsJob *job = argument;
    const long width = job->latents->value_dim;
    const int is_placed = places_x(job->attention.shape->is_bf16);
    head_task(job, job->latents->v_up, is_placed ? job->room->placed_attended : job->room->attended, job->out, width,
              width * job->attention.shape->num_heads, task, thread);
}

// As `attend` of attention.h: rows are tokens times some of the heads.
static inline __attribute__((always_inline)) void attend_latents(const LatentsJob *all, long task, int thread,
                                                                 const int is_bf16) {
    const AttentionJob *job = &all->attention;
    const AttentionShape *shape = job->shape;
    const long width = shape->head_dim, value_width = all->latents->kv_rank, tokens = job->batch->num_tokens;
    const long steps = num_steps(width, is_bf16), key_steps = num_steps(TILE_KEYS, is_bf16);
    const long columns = (value_width + PANEL - 1) / PANEL * PANEL, q_words = attended_words(width, is_bf16);
    Walk walk = {0};
    begin_part(job, task / all->num_parts, 0, &walk);
    const Part part = walk.part;
    const long nth = task % all->num_parts;
    const long first_head = shape->num_heads * nth / all->num_parts;
    const long heads = shape->num_heads * (nth + 1) / all->num_parts - first_head;
    const long num_rows = part.num_rows / shape->num_heads * heads;
    TileRows rows[2];
    find_tile(job, &walk, &rows[0], is_bf16);
    const Weighing by = {.scale = shape->scale, .soft_cap = shape->soft_cap, .position = part.position, .group = heads};
    AttentionScratch s;
    const size_t most_rows = (size_t)(most_tokens(shape) * most_heads(shape));
    lay_out_rows(most_rows, width, value_width, is_bf16, scratch_of(job->threads, thread), &s);
    for (long row = 0; row < num_rows; row++) {
        const long token = part.first_token + row / heads, head = first_head + row % heads;
        copy_attended(at(job->q, (head * tokens + token) * width, is_bf16), width, s.q + row * q_words, is_bf16);
        begin_weights(&s, row, -INFINITY, is_bf16);
    }
    memset(s.sums, 0, (size_t)(num_rows * columns) * 4);
    if (takes_amx(is_bf16)) {
        take_amx(job->threads, thread, num_rows);
        memset(s.k_panel + steps * TILE_KEYS, 0, (size_t)((q_words - steps) * TILE_KEYS) * 4);
    }
    if (columns != value_width) memset(s.v_panel, 0, (size_t)(key_steps * columns) * 4);
    for (int now = 0; walk.tile < part.end_key; now = !now) {
        const long tile = walk.tile;
        const TileRows *here = &rows[now], *later = here;
        walk.tile += TILE_KEYS;
        if (walk.tile < part.end_key) {
            find_tile(job, &walk, &rows[!now], is_bf16);
            later = &rows[!now];
        }
        pack_keys(here->keys, later->keys, here->num_keys, width, s.k_panel, is_bf16, CACHE_AS_ROWS);
        pack_values(here->keys, here->keys, here->num_keys, value_width, s.v_panel, is_bf16, CACHE_AS_ROWS);
        attended_product(num_rows, steps, s.q, q_words, s.k_panel, s.scores, TILE_KEYS, s.v_panel, 0, is_bf16);
        weigh(&s, &by, num_rows, tile, columns, is_bf16);
        for (long d = 0; d < columns; d += PANEL)
            attended_product(num_rows, key_steps, s.weights, x_words(key_steps, is_bf16), s.v_panel + d / PANEL * key_steps * PANEL,
                             s.sums + d, columns, s.k_panel, 1, is_bf16);
    }
    for (long row = 0; row < num_rows; row++) {
        const long token = part.first_token + row / heads, head = first_head + row % heads;
        const long to = (head * tokens + token) * value_width;
        const float total = total_weight(&s, row);
        for (long d = 0; d < value_width; d += LANES)
            vstore_some(job->out, to + d, value_width - d, vload(s.sums + row * columns + d) / total, is_bf16);
    }
}

static void attend_latents_task(const void *argument, long task, int thread) {
    const LatentsJob *job = argument;
    if (job->attention.shape->is_bf16) attend_latents(job, task, thread, 1);
    else attend_latents(job, task, thread, 0);
}

// Write what is cached of the new tokens.
static void write_to_cache(Threads *threads, const LatentsJob *job, const void *hidden, const int32_t *adapters, float *shrunk) {
    const long tokens = job->attention.batch->num_tokens;
    product(threads, job->latents->down, hidden, tokens, job->room->down, adapters, shrunk);
    in_parallel(threads, write_latents_task, job, tasks_of(tokens));
}

// How many parts the heads are cut into, so that all threads have something to do and scratch memory will do.
static long parts_of_heads(const LatentsJob *job, long num_tasks) {
    const long heads = job->attention.shape->num_heads, most = (heads + MIN_HEADS - 1) / MIN_HEADS;
    const long least = (heads + TASK_ROWS - 1) / TASK_ROWS, threads = job->attention.threads->num_threads;
    long parts = (threads + num_tasks - 1) / num_tasks;
    if (parts > most) parts = most;
    return parts > least ? parts : least;
}

// Fill `out` after that.
static void attention_to_latents(Threads *threads, LatentsJob *job, const int32_t *adapters, float *shrunk) {
    const Latents *latents = job->latents;
    const AttentionJob *attention = &job->attention;
    const long tokens = attention->batch->num_tokens, heads = attention->shape->num_heads;
    const long num_tasks = num_tasks_of(attention->tasks);
    if (!tokens) return;
    if (latents->q_up) product(threads, latents->q_up, job->room->q_latent, tokens, job->room->q, adapters, shrunk);
    in_parallel(threads, part_heads_task, job, tasks_of(tokens));
    in_parallel(threads, absorb_task, job, heads * num_panels(latents->k_up[0]) * num_chunks(tokens));
    job->num_parts = parts_of_heads(job, num_tasks);
    in_parallel(threads, attend_latents_task, job, num_tasks * job->num_parts);
    if (places_x(attention->shape->is_bf16))
        in_parallel(threads, place_attended_task, job, heads * tasks_of(tokens));
    in_parallel(threads, value_task, job, heads * num_panels(latents->v_up[0]) * num_chunks(tokens));
}
