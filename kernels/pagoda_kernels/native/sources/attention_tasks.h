// What of a step's attention is a task: some query tokens of one sequence with all query heads of one KV head, or so
// the few tokens of several sequences that begin with the same blocks, a bundle. Rows of a task share what is loaded.
//
// A bundle walks the keys that its sequences share once, for the rows of all (Juravsky et al. 2024: Hydragen), and
// then those of each sequence. Each row meets the same tiles in the same order as alone, so nothing else changes.

#pragma once

#include "one_byte.h"
#include "weighing.h"

#define TASK_ROWS (TAKES_AMX ? 192 : 96)  // query tokens times heads of a KV head, about; fewer where tasks would be few
#define FEW_TASKS 4       // of a thread; a bundle's walks no more than one of so many parts of what is a thread's
#define BUNDLE_TOKENS 8   // new ones of a sequence, at the most: more rows gain nothing from others
#define BUNDLE_SHARE 4    // a bundle's sequences share at least one of so many of their keys
#define JOINED_ROWS 16    // of each head, in a task of all heads, at the most

typedef struct {
    const int32_t *cu_seqlens_q;   // [S + 1]
    const int32_t *context_lens;   // [S]
    const int32_t *block_tables;   // [S, table_stride]
    int64_t table_stride;
    const int64_t *slot_mapping;   // [T]; negative: not written
    int64_t num_seqs;
    int64_t num_tokens;
    int64_t block_size;
    int64_t block_stride;  // elements from one block of a cache to the next; a block is dense [block_size, HK, D]
    int32_t cache_kind;    // of one_byte.h
    int32_t is_packed;     // blocks are as packed_kv.h has them
} Batch;

typedef struct {
    int64_t num_heads;
    int64_t num_kv_heads;
    int64_t head_dim;
    float scale;
    int32_t is_bf16;
    float soft_cap;  // c: scores are c * tanh(score / c); 0: they are as they are
} AttentionShape;

typedef struct {
    int64_t first_task;
    int64_t first_member;
    int64_t shared_keys;  // whole tiles that all tokens see; 0: a sequence alone
    int64_t num_heads;    // of keys and values, that each of its tasks has
} Bundle;

typedef struct {
    Bundle *bundles;   // [count + 1], the last one is where they end; room for [S + 1]
    int32_t *members;  // [S]: sequences, bundle after bundle
    long count;
    long tokens;       // of a task, at the most
} Tasks;

typedef struct {
    const AttentionShape *shape;
    const Batch *batch;
    const void *q;       // [T, q_stride], heads dense
    int64_t q_stride;
    const void *k_cache; // of one layer
    const void *v_cache;
    const float *k_scale; // [HK], of a cache in one byte
    const float *v_scale;
    void *out;           // [T, H, D]
    int64_t window;      // keys a query sees, itself included; 0: all
    const float *sinks;  // [H]: a score beside those of keys, with no value; NULL: none
    const float *slopes; // [H]: what scores, capped, fall by for each token between query and key (ALiBi); NULL: none
    const Tasks *tasks;
    Threads *threads;
} AttentionJob;

static inline long group_of(const AttentionShape *shape) { return shape->num_heads / shape->num_kv_heads; }

static inline long tokens_of_rows(const AttentionShape *shape, long num_rows) {
    return group_of(shape) >= num_rows ? 1 : num_rows / group_of(shape);
}

static inline long most_tokens(const AttentionShape *shape) { return tokens_of_rows(shape, TASK_ROWS); }

static inline long num_new_of(const Batch *batch, long s) { return batch->cu_seqlens_q[s + 1] - batch->cu_seqlens_q[s]; }

static inline int may_be_bundled(const Batch *batch, long s) {
    return num_new_of(batch, s) > 0 && num_new_of(batch, s) <= BUNDLE_TOKENS;
}

// Keys of whole tiles that lie in the same blocks and that all new tokens of both see; fewer than `least`: 0.
static inline long keys_in_common(const Batch *batch, long a, long b, long most, long least) {
    const int32_t *of_a = batch->block_tables + a * batch->table_stride, *of_b = batch->block_tables + b * batch->table_stride;
    const long before_a = batch->context_lens[a] - num_new_of(batch, a), before_b = batch->context_lens[b] - num_new_of(batch, b);
    if (before_a < most) most = before_a;
    if (before_b < most) most = before_b;
    const long size = batch->block_size;
    if (least > most || of_a[(least - 1) / size] != of_b[(least - 1) / size]) return 0;  // as of nearly all that share little
    long keys = 0;
    for (; keys < most && of_a[keys / size] == of_b[keys / size]; keys += size) {}
    keys = (keys < most ? keys : most) / TILE_KEYS * TILE_KEYS;
    return keys < least ? 0 : keys;
}

static inline long larger(long a, long b) { return a > b ? a : b; }

// Of the sequences from members[first] on, the first and those that go with it come first: `most_rows` of all their
// rows, and `most_keys` that are walked, at the most. Returns how many these are, and the keys they share.
static inline long gather_bundle(const AttentionShape *shape, const Batch *batch, int32_t *members, long first, long most_rows,
                                 long most_keys, long *shared_keys) {
    const long leader = members[first], group = group_of(shape);
    long count = 1, rows = num_new_of(batch, leader) * group, keys = batch->context_lens[leader], shared = 0;
    if (may_be_bundled(batch, leader))
        for (long i = first + 1; i < batch->num_seqs && rows + group <= most_rows; i++) {
            const long other = members[i], more = num_new_of(batch, other) * group, own = batch->context_lens[other];
            if (!may_be_bundled(batch, other) || rows + more > most_rows) continue;
            const long part = (larger(own, batch->context_lens[leader]) + BUNDLE_SHARE - 1) / BUNDLE_SHARE;
            const long to_save = (count - 1) * shared / count + 1;  // more keys in all than without it
            const long least = (larger(part, to_save) + TILE_KEYS - 1) / TILE_KEYS * TILE_KEYS;
            const long common = keys_in_common(batch, leader, other, shared ? shared : batch->context_lens[leader], least);
            if (!common || keys + own - count * common > most_keys) continue;
            shared = common;
            rows += more;
            keys += own;
            members[i] = members[first + count];
            members[first + count++] = (int32_t)other;
        }
    *shared_keys = shared;
    return count;
}

// Whether one task has all heads of a sequence's keys. Few rows wait for memory alone, and what all heads read of a block lies
// side by side; but the task must be no more than one of so many parts of what is a thread's.
static inline int joins_heads(const AttentionShape *shape, const Batch *batch, long s, long most_keys) {
    const long num_new = num_new_of(batch, s), heads = shape->num_kv_heads;
    return num_new * group_of(shape) <= JOINED_ROWS && num_new * heads <= most_tokens(shape) &&
        batch->context_lens[s] * heads <= most_keys;
}

// Tasks of so many tokens if no sequences are bundled, and the keys that they walk.
static inline long tasks_alone(const AttentionShape *shape, const Batch *batch, long tokens, long *keys) {
    long count = 0;
    *keys = 0;
    for (long s = 0; s < batch->num_seqs; s++) {
        const long of_sequence = (num_new_of(batch, s) + tokens - 1) / tokens * shape->num_kv_heads;
        count += of_sequence;
        *keys += of_sequence * batch->context_lens[s];
    }
    return count;
}

// Make tasks of a step; `may_share`: queries see all keys before them, whatever their distance.
static void find_tasks(const AttentionShape *shape, const Batch *batch, long num_threads, int may_share, Tasks *tasks) {
    for (long rows = TASK_ROWS;; rows /= 2) {
        tasks->tokens = tokens_of_rows(shape, rows > TASK_ROWS / 2 ? rows : TASK_ROWS / 2);
        long keys;
        const int is_bundled = tasks_alone(shape, batch, tasks->tokens, &keys) > FEW_TASKS * num_threads && may_share;
        const long most_keys = keys / (FEW_TASKS * num_threads);
        int is_shared = 0;
        long num_tasks = 0, if_apart = 0, member = 0;  // tasks as they are, and with all heads apart
        for (long s = 0; s < batch->num_seqs; s++) tasks->members[s] = (int32_t)s;
        for (tasks->count = 0; member < batch->num_seqs; tasks->count++) {
            Bundle *bundle = &tasks->bundles[tasks->count];
            *bundle = (Bundle){num_tasks, member, 0, 1};
            if (is_bundled) member += gather_bundle(shape, batch, tasks->members, member, rows, most_keys, &bundle->shared_keys);
            else member++;
            const long leader = tasks->members[bundle->first_member], num_new = num_new_of(batch, leader);
            is_shared |= bundle->shared_keys > 0;
            if (!bundle->shared_keys && joins_heads(shape, batch, leader, most_keys)) bundle->num_heads = shape->num_kv_heads;
            const long of_head = bundle->shared_keys ? 1 : (num_new + tasks->tokens - 1) / tasks->tokens;
            num_tasks += of_head * (shape->num_kv_heads / bundle->num_heads);
            if_apart += of_head * shape->num_kv_heads;
        }
        tasks->bundles[tasks->count] = (Bundle){num_tasks, member, 0, 1};
        if (if_apart >= FEW_TASKS * num_threads || (rows < TASK_ROWS && !is_shared)) return;
    }
}

static inline long num_tasks_of(const Tasks *tasks) { return tasks->bundles[tasks->count].first_task; }

// Tokens of a task, and the keys that they walk next.
typedef struct {
    long sequence;
    long head, num_heads;     // of keys and values: the first one, and how many
    long first_row, num_rows; // of the task, for the first head: tokens times heads of the KV head; behind them the next one's
    long first_token;         // of the step; negative: of several sequences
    long position;            // of that token, or one behind all keys
    long first_key, end_key;
} Part;

// What is walked as the `nth` of a task, if there is so much.
static inline int part_of(const AttentionJob *job, long task, long nth, Part *part) {
    const AttentionShape *shape = job->shape;
    const Batch *batch = job->batch;
    const Tasks *tasks = job->tasks;
    const long group = group_of(shape);
    if (task >= num_tasks_of(tasks)) return 0;
    long low = 0, high = tasks->count - 1;
    while (low < high) {  // the bundle of this task
        const long middle = (low + high) / 2;
        if (tasks->bundles[middle + 1].first_task <= task) low = middle + 1;
        else high = middle;
    }
    const Bundle *bundle = &tasks->bundles[low];
    const int32_t *members = tasks->members + bundle->first_member;
    const long shared = bundle->shared_keys, num_members = bundle[1].first_member - bundle->first_member;
    // Tasks of a head follow one another: what they read is the same.
    const long of_head = (bundle[1].first_task - bundle->first_task) / (shape->num_kv_heads / bundle->num_heads);
    const long head = (task - bundle->first_task) / of_head * bundle->num_heads, of_tokens = (task - bundle->first_task) % of_head;
    if (nth > (shared ? num_members : 0)) return 0;
    if (shared && nth == 0) {
        long num_rows = 0;
        for (long i = 0; i < num_members; i++) num_rows += num_new_of(batch, members[i]) * group;
        *part = (Part){.sequence = members[0], .head = head, .num_heads = 1, .num_rows = num_rows, .first_token = -1, .position = shared,
                       .end_key = shared};
        return 1;
    }
    long first_row = 0;
    for (long i = 0; i + 1 < nth; i++) first_row += num_new_of(batch, members[i]) * group;
    const long sequence = members[shared ? nth - 1 : 0];
    const long start = batch->cu_seqlens_q[sequence], num_new = num_new_of(batch, sequence);
    // The last tokens first: they see most keys, and nobody should wait for one that began late.
    const long from_end = of_head - 1 - of_tokens, first = num_new * from_end / of_head, end = num_new * (from_end + 1) / of_head;
    const long before = batch->context_lens[sequence] - num_new, position = before + first;
    *part = (Part){
        .sequence = sequence, .head = head, .num_heads = bundle->num_heads, .first_row = first_row, .num_rows = (end - first) * group,
        .first_token = start + first, .position = position, .end_key = before + end,
        .first_key = job->window && position + 1 > job->window ? position + 1 - job->window : shared,
    };
    return 1;
}

// What is attended to at a time: a tile of keys, by the rows of one head.
typedef struct {
    long task, nth;  // of the task's parts
    Part part;
    long tile, head;
} Walk;

// At the beginning of a task's part, if there is one.
static inline int begin_part(const AttentionJob *job, long task, long nth, Walk *walk) {
    if (!part_of(job, task, nth, &walk->part)) return 0;
    walk->task = task, walk->nth = nth;
    walk->tile = walk->part.first_key / TILE_KEYS * TILE_KEYS, walk->head = walk->part.head;
    return 1;
}

// On to the tile's next head, the part's next tile, the task's next part or the thread's next task; false: there is none.
static inline int walk_on(const AttentionJob *job, Walk *walk) {
    const Part *part = &walk->part;
    if (++walk->head < part->head + part->num_heads) return 1;
    walk->head = part->head, walk->tile += TILE_KEYS;
    return walk->tile < part->end_key || begin_part(job, walk->task, walk->nth + 1, walk) || begin_part(job, walk->task + 1, 0, walk);
}
