// What is done to the rows between products: norms, residuals, rotation, KV write. Each row is one task or
// part of one, and is rounded where the separate operators of pagoda_kernels round.

#pragma once

#include "attention.h"

#define TASK_TOKENS 8  // of one task

static inline long tasks_of(long count) { return (count + TASK_TOKENS - 1) / TASK_TOKENS; }
static inline long end_of(long task, long count) {
    return (task + 1) * TASK_TOKENS < count ? (task + 1) * TASK_TOKENS : count;
}

// x / rms(x), rounded, times weight; x / rms(x) times 1 + weight; (x - mean(x)) / std(x) times weight, plus bias,
// rounded once: of it weights are [2, width], weights, then biases.
enum { NORM_RMS, NORM_RMS_OFFSET, NORM_LAYER };

typedef struct {
    const void *x;          // [T, width]; NULL: nothing is added, or with token_ids:
    const int64_t *token_ids;  // rows of `embedding`, or of `tied`, are looked up
    const void *embedding;  // [V, width]
    const Linear *tied;
    const void *position_table;  // [positions, width]: with token_ids, its rows at `positions` are added; or NULL
    const int32_t *positions;
    const void *beside;     // [T, width]: added to x before it is added to the residual; NULL: there is none
    void *residual;         // [T, width]: x is added to it; with token_ids it is set
    const void *weight;     // [width]; NULL: out is the residual
    void *out;              // [T, width]
    const Linear *placed_for;  // out is placed as well, see `placed_x`, for a product by that; NULL: it is not
    void *placed;
    int64_t num_rows;
    int64_t width;
    float eps;
    int32_t is_bf16;
    float multiplier;       // of x and `beside`, or of what is looked up; rounded before it is added
    const void *x_weight;   // [width]: x is normed before that, in place, or what was looked up at last; or NULL
    const void *beside_weight;  // so with `beside`
    const void *sum_weight;     // so with the sum of both; or NULL
    float scalar;           // of the residual after that, rounded by itself
    int kind;               // of all norms: NORM_...
} NormJob;

// out = norm of x, see NORM_...; sums are 16, along the row.
static inline __attribute__((always_inline)) void norm_row_of(
    const void *x, long from, const void *weight, int kind, long width, float eps, void *out, long to,
    const int is_bf16) {
    vfloat sums = {};
    float rest = 0, mean = 0;
    long i = 0;
    if (kind == NORM_LAYER) {
        for (; i + LANES <= width; i += LANES) sums += vload_any(x, from + i, is_bf16);
        for (; i < width; i++) rest += load_any(x, from + i, is_bf16);
        mean = (vsum(sums) + rest) / (float)width;
    }
    sums = (vfloat){};
    rest = 0;
    for (i = 0; i + LANES <= width; i += LANES) {
        vfloat v = vload_any(x, from + i, is_bf16) - mean;
        sums = vfma(v, v, sums);
    }
    for (long j = i; j < width; j++) {
        const float v = load_any(x, from + j, is_bf16) - mean;
        rest += v * v;
    }
    const float factor = 1.0f / sqrtf((vsum(sums) + rest) / (float)width + eps);
    for (i = 0; i < width; i += LANES) {
        const long left = width - i;
        const vfloat v = (vload_some(x, from + i, left, is_bf16) - mean) * factor;
        const vfloat w = vload_some(weight, i, left, is_bf16);
        vfloat y;
        if (kind == NORM_LAYER) y = vfma(v, w, vload_some(weight, width + i, left, is_bf16));
        else y = kind == NORM_RMS_OFFSET ? v * (1.0f + w) : vrounded(v, is_bf16) * w;
        vstore_some(out, to + i, left, y, is_bf16);
    }
}

static OUT_OF_LINE void norm_row(const void *x, long from, const void *weight, int kind, long width, float eps, void *out, long to,
                                 int is_bf16) {
    if (is_bf16) norm_row_of(x, from, weight, kind, width, eps, out, to, 1);
    else norm_row_of(x, from, weight, kind, width, eps, out, to, 0);
}

static inline __attribute__((always_inline)) void look_up_row(const NormJob *job, long row, const int is_bf16) {
    const long width = job->width, token = job->token_ids[row];
    void *residual = (void *)at(job->residual, row * width, is_bf16);
    if (job->tied) unpack_row(job->tied, token, residual);
    else memcpy(residual, at(job->embedding, token * width, is_bf16), (size_t)width * (is_bf16 ? 2 : 4));
    for (long i = 0; job->multiplier != 1 && i < width; i++)
        store_any(residual, i, load_any(residual, i, is_bf16) * job->multiplier, is_bf16);
    for (long i = 0; job->position_table && i < width; i++) {
        const float position = load_any(job->position_table, job->positions[row] * width + i, is_bf16);
        store_any(residual, i, load_any(residual, i, is_bf16) + position, is_bf16);
    }
    if (job->x_weight) norm_row(residual, 0, job->x_weight, job->kind, width, job->eps, residual, 0, is_bf16);
}

// x, and what is beside it, to the residual.
static inline __attribute__((always_inline)) void add_row(const NormJob *job, long row, const int is_bf16) {
    const long width = job->width, first = row * width;
    if (job->x_weight)
        norm_row(job->x, first, job->x_weight, job->kind, width, job->eps, (void *)job->x, first, is_bf16);
    if (job->beside && job->beside_weight)
        norm_row(job->beside, first, job->beside_weight, job->kind, width, job->eps, (void *)job->beside, first, is_bf16);
    if (job->sum_weight) {
        for (long i = 0; i < width; i += LANES) {
            const vfloat x = vload_some(job->x, first + i, width - i, is_bf16);
            const vfloat beside = vload_some(job->beside, first + i, width - i, is_bf16);
            vstore_some((void *)job->x, first + i, width - i, x + beside, is_bf16);
        }
        norm_row(job->x, first, job->sum_weight, job->kind, width, job->eps, (void *)job->x, first, is_bf16);
    }
    for (long i = 0; i < width; i += LANES) {
        const vfloat before = vload_some(job->residual, first + i, width - i, is_bf16);
        vfloat x = vrounded(vload_some(job->x, first + i, width - i, is_bf16) * job->multiplier, is_bf16);
        if (job->beside && !job->sum_weight) {
            const vfloat beside = vload_some(job->beside, first + i, width - i, is_bf16) * job->multiplier;
            x = vrounded(vrounded(beside, is_bf16) + x, is_bf16);
        }
        vfloat after = before + x;
        if (job->scalar != 1) after = vrounded(after, is_bf16) * job->scalar;
        vstore_some(job->residual, first + i, width - i, after, is_bf16);
    }
}

static inline __attribute__((always_inline)) void norm_rows(const NormJob *job, long task, const int is_bf16) {
    const long width = job->width;
    for (long row = task * TASK_TOKENS; row < end_of(task, job->num_rows); row++) {
        const long at_row = row * width;
        if (job->token_ids) look_up_row(job, row, is_bf16);
        else if (job->x) add_row(job, row, is_bf16);
        if (job->weight) norm_row(job->residual, at_row, job->weight, job->kind, width, job->eps, job->out, at_row, is_bf16);
        else memcpy((void *)at(job->out, at_row, is_bf16), at(job->residual, at_row, is_bf16), (size_t)width * (is_bf16 ? 2 : 4));
        if (job->placed_for) place_row(job->placed_for, at(job->out, at_row, is_bf16), job->placed, row, job->num_rows);
    }
}

static void norm_task(const void *argument, long task, int thread) {
    const NormJob *job = argument;
    (void)thread;
    if (job->is_bf16) norm_rows(job, task, 1);
    else norm_rows(job, task, 0);
}

static void norm(Threads *threads, const NormJob *job) {
    in_parallel(threads, norm_task, job, tasks_of(job->num_rows));
}

typedef struct {
    void *x;               // [rows, width]
    const void *by;        // [tokens, by_stride], what each row is multiplied with
    const int64_t *tokens; // [rows]; NULL: 0, 1, ...
    int64_t by_stride;
    int64_t num_rows;
    int64_t width;
    int32_t is_bf16;
} MultiplyJob;

static inline __attribute__((always_inline)) void multiply_rows(const MultiplyJob *job, long task, const int is_bf16) {
    const long width = job->width;
    for (long row = task * TASK_TOKENS; row < end_of(task, job->num_rows); row++) {
        const long from = (job->tokens ? job->tokens[row] : row) * job->by_stride;
        for (long i = 0; i < width; i += LANES) {
            const vfloat x = vload_some(job->x, row * width + i, width - i, is_bf16);
            vstore_some(job->x, row * width + i, width - i, x * vload_some(job->by, from + i, width - i, is_bf16), is_bf16);
        }
    }
}

static void multiply_task(const void *argument, long task, int thread) {
    const MultiplyJob *job = argument;
    (void)thread;
    if (job->is_bf16) multiply_rows(job, task, 1);
    else multiply_rows(job, task, 0);
}

// Norms of Q and K: over a head, with one weight for all; over all heads at once; over a head, a layer norm each.
enum { QK_NORM_HEAD, QK_NORM_JOINED, QK_NORM_EACH_HEAD };

typedef struct {
    const AttentionShape *shape;
    const Batch *batch;
    void *qkv;               // [T, (H + 2 HK) D], rotated in place; [T, H D] if is_q_alone
    const void *positions;   // [T] int32
    const float *cos_sin;    // [positions, R]: cosines, then sines; NULL where R is 0
    int64_t rotary_dim;      // R
    const void *q_norm;      // [D], joined [H D], of each head [H, 2, D]; or NULL
    const void *k_norm;
    const void *v_norm;      // [D], of each head of V; or NULL
    int32_t is_q_alone;
    int32_t leaves_q, leaves_kv;  // as they are; K and V are not written then
    int32_t norm_place;      // of both norms: QK_NORM_...
    int kind;                // of both norms, if they have one weight for all heads
    float clip;              // bound of Q, K and V, before norms with one weight for all heads; 0: none
    float eps;
    void *k_cache;           // of one layer
    void *v_cache;
    const float *k_scale;    // [HK], of a cache in one byte
    const float *v_scale;
} RotaryJob;

// K and V of one token, [HK, D] each, to their slot; of four tokens to as many slots of packed blocks.
static inline __attribute__((always_inline)) void write_slot(
    const RotaryJob *job, long slot, const void *k, const void *v, long stride, const int is_quad, const int is_bf16) {
    const AttentionShape *shape = job->shape;
    const Batch *batch = job->batch;
    const long width = shape->head_dim, item = cache_item(batch->cache_kind, is_bf16);
    const long block = slot / batch->block_size * batch->block_stride;
    if (batch->is_packed) {
        void *k_block = (void *)at(job->k_cache, block, is_bf16), *v_block = (void *)at(job->v_cache, block, is_bf16);
        slot %= batch->block_size;
        if (is_quad) write_packed_quad(k, v, stride, shape->num_kv_heads, width, slot, k_block, v_block, is_bf16);
        else write_packed(k, v, shape->num_kv_heads, width, slot, k_block, v_block, is_bf16);
        return;
    }
    const long to = (block + slot % batch->block_size * shape->num_kv_heads * width) * item;
    char *k_slot = (char *)job->k_cache + to, *v_slot = (char *)job->v_cache + to;
    if (!batch->cache_kind) {
        memcpy(k_slot, k, (size_t)(shape->num_kv_heads * width * item));
        memcpy(v_slot, v, (size_t)(shape->num_kv_heads * width * item));
        return;
    }
    for (long head = 0; head < shape->num_kv_heads; head++) {
        const long first = head * width;
        to_one_byte(at(k, first, is_bf16), job->k_scale[head], width, k_slot + first, is_bf16, batch->cache_kind);
        to_one_byte(at(v, first, is_bf16), job->v_scale[head], width, v_slot + first, is_bf16, batch->cache_kind);
    }
}

static inline __attribute__((always_inline)) void rotate(void *head, const float *cos_sin, long rotary_dim,
                                                         const int is_bf16) {
    const long half = rotary_dim / 2;
    const float *cosines = cos_sin, *sines = cos_sin + half;
    long i = 0;
    for (; i + LANES <= half; i += LANES) {
        vfloat a = vload_any(head, i, is_bf16), b = vload_any(head, half + i, is_bf16);
        vfloat c = vload(cosines + i), s = vload(sines + i);
        vstore_any(head, i, vfma(-b, s, a * c), is_bf16);
        vstore_any(head, half + i, vfma(a, s, b * c), is_bf16);
    }
    for (; i < half; i++) {
        const float a = load_any(head, i, is_bf16), b = load_any(head, half + i, is_bf16);
        store_any(head, i, fmaf(-b, sines[i], a * cosines[i]), is_bf16);
        store_any(head, half + i, fmaf(a, sines[i], b * cosines[i]), is_bf16);
    }
}

static inline __attribute__((always_inline)) void clip_row(void *x, long width, float clip, const int is_bf16) {
    const vfloat low = vset(-clip);
    for (long i = 0; i < width; i += LANES) {
        const vfloat value = vload_some(x, i, width - i, is_bf16);
        vstore_some(x, i, width - i, -vmax(low, -vmax(low, value)), is_bf16);
    }
}

// Tokens from `token` on, before `end`, that are written together.
static inline long tokens_to_write(const Batch *batch, long token, long end) {
    const int64_t *slot = batch->slot_mapping + token;
    if (!batch->is_packed || *slot < 0 || *slot % QUAD || end - token < QUAD) return 1;
    for (int i = 1; i < QUAD; i++)
        if (slot[i] != *slot + i) return 1;
    return QUAD;
}

// The first token of a task, and none that is written together with one before it.
static inline long first_token_of(const RotaryJob *job, long task) {
    const Batch *batch = job->batch;
    const int64_t *slots = batch->slot_mapping;
    long token = end_of(task - 1, batch->num_tokens);
    if (!batch->is_packed || job->leaves_kv || !token) return token;
    while (token < batch->num_tokens && slots[token] >= 0 && slots[token] % QUAD && slots[token] == slots[token - 1] + 1) token++;
    return token;
}

static inline __attribute__((always_inline)) void rotate_tokens(const RotaryJob *job, long task, const int is_bf16) {
    const AttentionShape *shape = job->shape;
    const Batch *batch = job->batch;
    const long width = shape->head_dim, num_heads = shape->num_heads, num_kv_heads = shape->num_kv_heads;
    const long row_heads = job->is_q_alone ? num_heads : num_heads + 2 * num_kv_heads;
    // Heads from `first_head` on are normed and rotated, V is behind them.
    const long first_head = job->leaves_q ? num_heads : 0, num_rotated = job->leaves_kv ? num_heads : num_heads + num_kv_heads;
    const long end_head = job->leaves_kv ? num_heads : row_heads;
    const long first_token = first_token_of(job, task), end_token = first_token_of(job, task + 1);
    for (long token = first_token; token < end_token; token++) {
        void *row = (void *)at(job->qkv, token * row_heads * width, is_bf16);
        const float *cos_sin = NULL;
        if (job->cos_sin) cos_sin = job->cos_sin + ((const int32_t *)job->positions)[token] * job->rotary_dim;
        const long q_width = num_heads * width, k_width = num_kv_heads * width;
        if (job->norm_place == QK_NORM_JOINED) {
            if (!job->leaves_q) norm_row(row, 0, job->q_norm, job->kind, q_width, job->eps, row, 0, is_bf16);
            if (!job->leaves_kv) norm_row(row, q_width, job->k_norm, job->kind, k_width, job->eps, row, q_width, is_bf16);
        }
        for (long head = first_head; job->norm_place == QK_NORM_EACH_HEAD && head < num_rotated; head++) {
            const void *weight = head < num_heads ? at(job->q_norm, 2 * head * width, is_bf16)
                                                  : at(job->k_norm, 2 * (head - num_heads) * width, is_bf16);
            norm_row(row, head * width, weight, NORM_LAYER, width, job->eps, row, head * width, is_bf16);
        }
        if (job->clip > 0)
            clip_row((void *)at(row, first_head * width, is_bf16), (end_head - first_head) * width, job->clip, is_bf16);
        for (long head = first_head; head < num_rotated; head++) {
            void *x = (void *)at(row, head * width, is_bf16);
            const void *weight = head < num_heads ? job->q_norm : job->k_norm;
            if (weight && job->norm_place == QK_NORM_HEAD)
                norm_row(x, 0, weight, job->kind, width, job->eps, x, 0, is_bf16);
            if (cos_sin) rotate(x, cos_sin, job->rotary_dim, is_bf16);
        }
        for (long head = num_rotated; job->v_norm && head < end_head; head++)
            norm_row(row, head * width, job->v_norm, NORM_RMS, width, job->eps, row, head * width, is_bf16);
    }
    for (long token = first_token, count; !job->leaves_kv && token < end_token; token += count) {
        const long slot = batch->slot_mapping[token], row = token * row_heads * width;
        const void *k = at(job->qkv, row + num_heads * width, is_bf16), *v = at(job->qkv, row + num_rotated * width, is_bf16);
        count = tokens_to_write(batch, token, end_token);
        if (count == QUAD) write_slot(job, slot, k, v, row_heads * width, 1, is_bf16);
        else if (slot >= 0) write_slot(job, slot, k, v, row_heads * width, 0, is_bf16);
    }
}

static void rotary_task(const void *argument, long task, int thread) {
    const RotaryJob *job = argument;
    (void)thread;
    if (job->shape->is_bf16) rotate_tokens(job, task, 1);
    else rotate_tokens(job, task, 0);
}

static void rotary(Threads *threads, const RotaryJob *job) {
    in_parallel(threads, rotary_task, job, tasks_of(job->batch->num_tokens));
}
