// What is done to the rows between products: norms, residuals, rotation, KV write. Each row is one task or
// part of one, and is rounded where the separate operators of pagoda_kernels round.

#pragma once

#include "attention.h"

#define TASK_TOKENS 8  // of one task

typedef struct {
    const void *x;          // [T, width]; NULL: rows of `embedding`, or of `tied`, at `token_ids`
    const int64_t *token_ids;
    const void *embedding;  // [V, width]
    const Linear *tied;
    void *residual;         // [T, width]: x is added to it; with token_ids it is set
    const void *weight;     // [width]; NULL: out is the residual
    void *out;              // [T, width]
    int64_t num_rows;
    int64_t width;
    float eps;
    int32_t is_bf16;
    float multiplier;       // of x, or of what is looked up; rounded before it is added
    const void *x_weight;   // [width]: x is normed before that, in place; NULL: it is not
} NormJob;

// out = x / rms(x), rounded, times weight. The squares are added in 16 sums, along the row.
static inline __attribute__((always_inline)) void norm_row(
    const void *x, long from, const void *weight, long width, float eps, void *out, long to, const int is_bf16) {
    vfloat squares = {};
    float rest = 0;
    long i = 0;
    for (; i + LANES <= width; i += LANES) {
        vfloat v = vload_any(x, from + i, is_bf16);
        squares = vfma(v, v, squares);
    }
    for (long j = i; j < width; j++) rest += load_any(x, from + j, is_bf16) * load_any(x, from + j, is_bf16);
    const float factor = 1.0f / sqrtf((vsum(squares) + rest) / (float)width + eps);
    for (i = 0; i + LANES <= width; i += LANES) {
        vfloat v = vrounded(vload_any(x, from + i, is_bf16) * factor, is_bf16);
        vstore_any(out, to + i, v * vload_any(weight, i, is_bf16), is_bf16);
    }
    for (; i < width; i++) {
        float v = load_any(x, from + i, is_bf16) * factor;
        if (is_bf16) v = widen_bf16(round_bf16(v));
        store_any(out, to + i, v * load_any(weight, i, is_bf16), is_bf16);
    }
}

static inline __attribute__((always_inline)) void norm_rows(const NormJob *job, long task, const int is_bf16) {
    const long width = job->width;
    const long end = (task + 1) * TASK_TOKENS < job->num_rows ? (task + 1) * TASK_TOKENS : job->num_rows;
    for (long row = task * TASK_TOKENS; row < end; row++) {
        const long at_row = row * width;
        if (job->token_ids) {
            void *residual = (void *)at(job->residual, at_row, is_bf16);
            if (job->tied) unpack_row(job->tied, job->token_ids[row], residual);
            else memcpy(residual, at(job->embedding, job->token_ids[row] * width, is_bf16), (size_t)width * (is_bf16 ? 2 : 4));
            for (long i = 0; job->multiplier != 1 && i < width; i++)
                store_any(residual, i, load_any(residual, i, is_bf16) * job->multiplier, is_bf16);
        } else {
            if (job->x_weight)
                norm_row(job->x, at_row, job->x_weight, width, job->eps, (void *)job->x, at_row, is_bf16);
            for (long i = 0; i < width; i += LANES) {
                const vfloat before = vload_some(job->residual, at_row + i, width - i, is_bf16);
                const vfloat x = vload_some(job->x, at_row + i, width - i, is_bf16) * job->multiplier;
                vstore_some(job->residual, at_row + i, width - i, before + vrounded(x, is_bf16), is_bf16);
            }
        }
        if (job->weight) norm_row(job->residual, at_row, job->weight, width, job->eps, job->out, at_row, is_bf16);
        else memcpy((void *)at(job->out, at_row, is_bf16), at(job->residual, at_row, is_bf16), (size_t)width * (is_bf16 ? 2 : 4));
    }
}

static void norm_task(const void *argument, long task, int thread) {
    const NormJob *job = argument;
    (void)thread;
    if (job->is_bf16) norm_rows(job, task, 1);
    else norm_rows(job, task, 0);
}

static void norm(Threads *threads, const NormJob *job) {
    in_parallel(threads, norm_task, job, (job->num_rows + TASK_TOKENS - 1) / TASK_TOKENS);
}

typedef struct {
    const AttentionShape *shape;
    const Batch *batch;
    void *qkv;               // [T, (H + 2 HK) D]; q is rotated in place
    const void *positions;   // [T] int32
    const float *cos_sin;    // [positions, R]: cosines, then sines; NULL where R is 0
    int64_t rotary_dim;      // R
    const void *q_norm;      // [D], or joined [H D]; or NULL
    const void *k_norm;
    int is_joined;           // norms are over all heads at once
    float clip;              // bound of Q, K and V, after joined norms and before those of heads; 0: none
    float eps;
    void *k_cache;           // of one layer
    void *v_cache;
    const float *k_scale;    // [HK], of a cache in one byte
    const float *v_scale;
} RotaryJob;

// K and V of one token, [HK, D] each, to their slot.
static inline __attribute__((always_inline)) void write_slot(
    const RotaryJob *job, long slot, const void *k, const void *v, const int is_bf16) {
    const AttentionShape *shape = job->shape;
    const Batch *batch = job->batch;
    const long width = shape->head_dim, item = cache_item(batch->cache_kind, is_bf16);
    const long block = slot / batch->block_size * batch->block_stride;
    if (batch->is_packed) {
        write_packed(k, v, shape->num_kv_heads, width, slot % batch->block_size, (void *)at(job->k_cache, block, is_bf16),
                     (void *)at(job->v_cache, block, is_bf16), is_bf16);
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

static inline __attribute__((always_inline)) void rotate_tokens(const RotaryJob *job, long task, const int is_bf16) {
    const AttentionShape *shape = job->shape;
    const Batch *batch = job->batch;
    const long width = shape->head_dim, num_rotated = shape->num_heads + shape->num_kv_heads;
    const long row_heads = num_rotated + shape->num_kv_heads;
    const long end = (task + 1) * TASK_TOKENS < batch->num_tokens ? (task + 1) * TASK_TOKENS : batch->num_tokens;
    for (long token = task * TASK_TOKENS; token < end; token++) {
        void *row = (void *)at(job->qkv, token * row_heads * width, is_bf16);
        const float *cos_sin = NULL;
        if (job->cos_sin) cos_sin = job->cos_sin + ((const int32_t *)job->positions)[token] * job->rotary_dim;
        const long q_width = shape->num_heads * width, k_width = shape->num_kv_heads * width;
        if (job->is_joined) {
            norm_row(row, 0, job->q_norm, q_width, job->eps, row, 0, is_bf16);
            norm_row(row, q_width, job->k_norm, k_width, job->eps, row, q_width, is_bf16);
        }
        if (job->clip > 0) clip_row(row, row_heads * width, job->clip, is_bf16);
        for (long head = 0; head < num_rotated; head++) {
            void *x = (void *)at(row, head * width, is_bf16);
            const void *weight = head < shape->num_heads ? job->q_norm : job->k_norm;
            if (weight && !job->is_joined) norm_row(x, 0, weight, width, job->eps, x, 0, is_bf16);
            if (cos_sin) rotate(x, cos_sin, job->rotary_dim, is_bf16);
        }
        const long slot = batch->slot_mapping[token];
        if (slot >= 0)
            write_slot(job, slot, at(row, shape->num_heads * width, is_bf16), at(row, num_rotated * width, is_bf16),
                       is_bf16);
    }
}

static void rotary_task(const void *argument, long task, int thread) {
    const RotaryJob *job = argument;
    (void)thread;
    if (job->shape->is_bf16) rotate_tokens(job, task, 1);
    else rotate_tokens(job, task, 0);
}

static void rotary(Threads *threads, const RotaryJob *job) {
    in_parallel(threads, rotary_task, job, (job->batch->num_tokens + TASK_TOKENS - 1) / TASK_TOKENS);
}
