// The layers of a decoder in one call: what pagoda_engine.models.decoder does with an operator after the
// other. Compiled once for every instruction set (see library.py).

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>

#include "experts.h"
#include "latents.h"
#include "quantise.h"
#include "sampling.h"

typedef struct {
    const void *input_norm;  // or NULL: the residual is read as it is; so with the next
    const void *post_attention_norm;
    const void *q_norm;  // see RotaryJob
    const void *k_norm;
    const Linear *qkv;
    const Linear *output;
    const Linear *gate_up;  // with a gate, or activated
    const Linear *down;
    int64_t window;
    const Experts *experts;  // in place of gate_up and down, or beside them (see dense_out_norm); or NULL
    const float *sinks;      // of attention, [H]; or NULL
    const Latents *latents;  // in place of qkv, Q and K norms, window and sinks: all layers have some or none has
    const float *cos_sin;    // [positions, rotary_dim]: cosines, then sines; or NULL: nothing turns
    int64_t rotary_dim;      // or 0
    const void *attention_out_norm;  // of what attention adds to the residual; or NULL
    const void *feed_forward_out_norm;
    int32_t qk_norm_place;           // QK_NORM_...
    float qkv_clip;
    const float *k_scale;  // [HK] of a cache in one byte; NULL: there is none
    const float *v_scale;
    const AttentionShape *shape;  // of its heads
    const void *v_norm;           // see RotaryJob
    int32_t is_q_alone;           // qkv is Q's: it reads another layer's KV
    float scalar;                 // of the residual after it
    const Linear *input_gate;     // activated: what the layer is told of a token is multiplied with it; or NULL
    const Linear *input_projection;
    const void *input_out_norm;   // of what that adds to the residual
    // Experts beside gate_up and down, all of one residual, with norms of what each reads or adds; or NULL: no such
    const void *dense_out_norm;
    const void *router_norm;      // RMS
    const void *experts_in_norm;
    const void *experts_out_norm;
} Layer;

typedef struct {
    int32_t is_bf16;
    int64_t hidden_size;
    int64_t num_layers;
    float eps;
    const void *embedding;  // or NULL: see `tied`
    const Linear *tied;     // the output projection that is the embedding, too
    const void *final_norm;
    const Layer *layers;
    float embedding_multiplier;
    float residual_multiplier;  // of what is added to the residual
    int32_t norm_kind;          // of all but latents' and those of each head: NORM_...
    int32_t is_parallel;        // the feed-forward part reads the residual that attention read
    const void *position_table; // [positions, hidden], added to embeddings; or NULL
    const void *embedding_norm; // of those; NULL: they are the residual
    const float *alibi_slopes;  // see AttentionJob
} Decoder;

typedef struct {
    Batch batch;
    const int64_t *token_ids;   // [T]
    const int32_t *positions;   // [T]
    const int64_t *logit_rows;  // [R] rows that are wanted in the end
    int64_t num_logit_rows;     // R; negative: all
    void *k_cache;        // of layer 0: [num_blocks, block_size, HK, D]
    void *v_cache;
    int64_t layer_stride;  // elements from one layer's cache to the next
    // Of at least as many rows as there are tokens and logit rows.
    void *residual;   // [, hidden]
    void *kept;       // [, hidden]
    void *hidden;     // [, hidden]; its first R rows are the result
    void *qkv;        // [, (H + 2 HK) D]; with latents as `attended`
    void *attended;   // [, H D]; with latents [, H value]
    void *inner;      // [, intermediate]
    void *beside;     // [, hidden], if blocks are parallel: what attention adds
    Bundle *bundles;      // [2, S + 1]: of layers whose queries do not see all keys before them, and of those that do
    int32_t *members;     // [2, S]
    const int32_t *logit_positions;  // [R]
    int32_t *logit_cu_seqlens;       // [S + 1]
    // Slots of the projections' adapters, negative for none; NULL: no row has any.
    const int32_t *adapters;        // [T]
    const int32_t *logit_adapters;  // [R]: of the rows that are wanted
    float *shrunk;                  // [, the largest shrunk_width]
    void *experts_room;             // of the largest pagoda_experts_bytes
    void *latents_room;             // of pagoda_latents_bytes
    // Where layers are in groups, with blocks of their own each; else NULL.
    const Batch *group_batches;     // for each group `batch` with its block tables and slots
    const int32_t *places;          // [num_layers, 2]: group, and place among the layers of the cache
    const int64_t *offsets;         // [num_layers, 2]: elements before a layer's K, and V, where these follow no stride; or NULL
    const void *layer_inputs;       // [T, num_layers, width of input_gate]: what layers are told; or NULL
    void *experts_x, *router_x;     // [, hidden], if layers have experts beside a dense part
    const _Atomic int32_t *cut;     // not 0: no further layer is wanted; NULL: all are
} Step;

// Rows that a layer goes on with: all of a step, or those that are wanted.
typedef struct {
    long count;
    const int32_t *positions, *adapters;
    const int64_t *tokens;  // of the step; NULL: 0, 1, ...
    void *residual;
} Rows;

static inline Rows all_rows(const Step *step) {
    return (Rows){step->batch.num_tokens, step->positions, step->adapters, NULL, step->residual};
}
static inline Rows wanted_rows(const Step *step) {
    return (Rows){step->num_logit_rows, step->logit_positions, step->adapters ? step->logit_adapters : NULL,
                  step->logit_rows, step->kept};
}

// What a layer's KV is read and written by, and its place among the layers of the cache.
static inline const Batch *batch_of(const Step *step, long layer) {
    return step->places ? &step->group_batches[step->places[2 * layer]] : &step->batch;
}

// The same, to read by such rows alone.
static inline Batch batch_for(const Step *step, long layer, const Rows *rows) {
    Batch batch = *batch_of(step, layer);
    if (rows->tokens) batch.cu_seqlens_q = step->logit_cu_seqlens, batch.num_tokens = rows->count;
    return batch;
}

static inline long place_of(const Step *step, long layer) { return step->places ? step->places[2 * layer + 1] : layer; }

// Where a layer's K and V lie, of block 0.
typedef struct {
    char *k, *v;
} Caches;

static Caches caches_of(const Step *step, long layer, int is_bf16) {
    const long item = cache_item(batch_of(step, layer)->cache_kind, is_bf16), in_order = place_of(step, layer) * step->layer_stride;
    return (Caches){(char *)step->k_cache + (step->offsets ? step->offsets[2 * layer] : in_order) * item,
                    (char *)step->v_cache + (step->offsets ? step->offsets[2 * layer + 1] : in_order) * item};
}

// From now on KV that a layer's attention will read for sequences of few tokens is upcoming.
static void announce(Threads *threads, const Step *step, const Layer *layer, long index, const Rows *rows, int is_bf16) {
    Upcoming *upcoming = &threads->upcoming;
    const Batch of_rows = batch_for(step, index, rows), *batch = &of_rows;
    const AttentionShape *shape = layer->shape;
    const long item = cache_item(batch->cache_kind, is_bf16);
    const Caches caches = caches_of(step, index, is_bf16);
    upcoming->k_cache = caches.k, upcoming->v_cache = caches.v;
    upcoming->block_stride = (size_t)(batch->block_stride * item);
    upcoming->block_bytes = (size_t)(batch->block_size * shape->num_kv_heads * shape->head_dim * item);
    const long room = UPCOMING_BYTES / 2 / (long)upcoming->block_bytes;
    const long most = room < UPCOMING_BLOCKS ? room : UPCOMING_BLOCKS;
    long count = 0;
    const int32_t *before = NULL;
    for (long s = 0; s < batch->num_seqs && count < most; s++) {
        const long num_new = num_new_of(batch, s), end = batch->context_lens[s];
        if (num_new > UPCOMING_TOKENS) continue;
        const int32_t *table = batch->block_tables + s * batch->table_stride;
        const long seen = layer->window && end - num_new + 1 > layer->window ? end - num_new + 1 - layer->window : 0;
        long b = seen / batch->block_size;
        while (before && b * batch->block_size < end && table[b] == before[b]) b++;  // comes already
        for (; b * batch->block_size < end && count < most; b++) upcoming->blocks[count++] = table[b];
        before = table;
    }
    upcoming->num_parts = 2 * count * (long)parts_of_block(upcoming->block_bytes);
    atomic_store_explicit(&upcoming->next_part, 0, memory_order_relaxed);
}

// Scratch memory of each thread.
int64_t pagoda_scratch_bytes(const AttentionShape *shape) {
    AttentionScratch scratch;
    const size_t attention_bytes = lay_out(shape, NULL, &scratch), product_bytes = sizeof(PanelScratch);
    return (int64_t)(attention_bytes > product_bytes ? attention_bytes : product_bytes);
}

// A layer's experts beside its dense part, of which step->hidden has the sum; `job` adds both to the residual.
static void experts_beside(Threads *threads, const Layer *layer, const Step *step, NormJob *job) {
    NormJob in = *job;
    in.x = NULL, in.placed_for = NULL;
    in.weight = layer->experts_in_norm, in.out = step->experts_x;
    norm(threads, &in);
    in.weight = layer->router_norm, in.out = step->router_x, in.kind = NORM_RMS;
    norm(threads, &in);
    experts_sum(threads, layer->experts, step->experts_x, step->router_x, job->num_rows, step->experts_x, step->experts_room);
    job->x_weight = layer->dense_out_norm;
    job->beside = step->experts_x;
    job->beside_weight = layer->experts_out_norm;
    job->sum_weight = layer->feed_forward_out_norm;
}

// Add a layer's last part to the residual, and then what it makes of that and of what it is told of tokens.
static void told(Threads *threads, const Layer *layer, const Step *step, long index, long num_layers,
                 const int64_t *tokens, NormJob *job, float *shrunk) {
    const long width = layer->input_gate->num_outputs;
    const void *next_weight = job->weight;
    const Linear *next_placed = job->placed_for;
    job->placed_for = NULL;
    job->weight = NULL;  // step->hidden is the residual then
    norm(threads, job);
    product(threads, layer->input_gate, step->hidden, job->num_rows, step->inner, NULL, shrunk);
    const MultiplyJob multiply = {.x = step->inner, .by = at(step->layer_inputs, index * width, job->is_bf16),
                                  .tokens = tokens, .by_stride = num_layers * width, .num_rows = job->num_rows,
                                  .width = width, .is_bf16 = job->is_bf16};
    in_parallel(threads, multiply_task, &multiply, tasks_of(job->num_rows));
    product(threads, layer->input_projection, step->inner, job->num_rows, step->hidden, NULL, shrunk);
    job->x_weight = layer->input_out_norm;
    job->beside = job->beside_weight = job->sum_weight = NULL;
    job->weight = next_weight, job->placed_for = next_placed;
}

// Whether the wanted rows are the last ones of sequences, in order; where those of each begin is noted.
static int are_last_of_sequences(const Step *step) {
    const int32_t *ends = step->batch.cu_seqlens_q + 1;
    long row = 0;
    for (long s = 0; s < step->batch.num_seqs; s++) {
        const long begin = step->logit_cu_seqlens[s] = (int32_t)row;
        while (row < step->num_logit_rows && step->logit_rows[row] < ends[s]) row++;
        for (long i = begin; i < row; i++)
            if (step->logit_rows[i] != ends[s] - (row - i)) return 0;
    }
    step->logit_cu_seqlens[step->batch.num_seqs] = (int32_t)row;
    return row == step->num_logit_rows;
}

// The last layer that other rows than the wanted ones are for.
static long last_with_kv(const Decoder *decoder) {
    long layer = decoder->num_layers - 1;
    while (layer > 0 && decoder->layers[layer].is_q_alone) layer--;
    return layer;
}

static void gather_rows(const void *rows, const int64_t *wanted, long num_wanted, size_t row_bytes, void *out) {
    for (long i = 0; i < num_wanted; i++)
        memmove((char *)out + (size_t)i * row_bytes, (const char *)rows + (size_t)wanted[i] * row_bytes, row_bytes);
}

// Q, K and V of what attention reads: Q to step->qkv, K and V to the cache; or one of both alone. is_placed: what it reads is.
static void project(Threads *threads, const Decoder *decoder, const Layer *layer, const Step *step, const Batch *batch,
                    const Caches *caches, const Rows *rows, int is_placed, int leaves_q, int leaves_kv) {
    const AttentionShape *shape = layer->shape;
    const long q_width = shape->num_heads * shape->head_dim;
    const long first_panel = leaves_q ? q_width / PANEL : 0;
    const long end_panel = leaves_kv ? (q_width + PANEL - 1) / PANEL : num_panels(layer->qkv);
    product_of_panels(threads, layer->qkv, first_panel, end_panel, is_placed ? placed_x(threads) : step->hidden, rows->count,
                      step->qkv, rows->adapters, step->shrunk, is_placed, 0);
    const RotaryJob job = {
        .shape = shape, .batch = batch, .qkv = step->qkv, .positions = rows->positions,
        .cos_sin = layer->cos_sin, .rotary_dim = layer->rotary_dim, .q_norm = layer->q_norm,
        .k_norm = layer->k_norm, .eps = decoder->eps, .k_cache = caches->k,
        .v_cache = caches->v, .k_scale = layer->k_scale, .v_scale = layer->v_scale,
        .norm_place = layer->qk_norm_place, .kind = decoder->norm_kind == NORM_LAYER ? NORM_RMS : decoder->norm_kind,
        .clip = layer->qkv_clip, .v_norm = layer->v_norm, .is_q_alone = layer->is_q_alone,
        .leaves_q = leaves_q, .leaves_kv = leaves_kv};
    rotary(threads, &job);
}

// The product for which a norm's rows are to be placed; NULL: none.
static inline const Linear *to_place(const Linear *next, const Rows *rows) {
    return next && may_place_x(next, rows->count, rows->adapters) ? next : NULL;
}

// Tasks of attention, and of what layers they are.
typedef struct {
    const AttentionShape *shape;
    const int32_t *tables;
    Tasks tasks;
} KindTasks;

// Layers [first, end) of a step. Before layer 0 tokens are looked up; after the last one the norm is done. Rows that are not
// wanted are dropped where the last KV is written, or in the last layer if others than the last of a sequence are wanted.
// Returns whether it was cut short.
int64_t pagoda_layers(Threads *threads, const Decoder *decoder, const Step *step, int64_t first, int64_t end) {
    const int is_bf16 = decoder->is_bf16;
    const long hidden_size = decoder->hidden_size;
    const size_t item = is_bf16 ? 2 : 4;
    const long num_wanted = step->num_logit_rows;
    const int has_latents = decoder->layers[0].latents != NULL;
    const int drops_early = !num_wanted || (num_wanted > 0 && !has_latents && are_last_of_sequences(step));
    const long last_kv = drops_early ? last_with_kv(decoder) : decoder->num_layers - 1;
    Rows rows = first > last_kv ? wanted_rows(step) : all_rows(step);
    float *shrunk = step->shrunk;
    enter(threads);
    const long num_seqs = step->batch.num_seqs;
    KindTasks kinds[2] = {{.tasks = {.bundles = step->bundles, .members = step->members}},
                          {.tasks = {.bundles = step->bundles + num_seqs + 1, .members = step->members + num_seqs}}};
    NormJob norm_job = {.residual = rows.residual, .out = step->hidden, .num_rows = rows.count,
                        .width = hidden_size, .eps = decoder->eps, .is_bf16 = is_bf16,
                        .multiplier = decoder->residual_multiplier, .kind = decoder->norm_kind,
                        .beside = decoder->is_parallel ? step->beside : NULL, .scalar = 1, .placed = placed_x(threads)};
    // norm_job.placed_for, if it is not NULL: for what step->hidden is placed.
    if (first == 0) {
        norm_job.placed_for = to_place(decoder->layers[0].qkv, &rows);
        NormJob look_up = norm_job;
        look_up.token_ids = step->token_ids;
        look_up.embedding = decoder->embedding;
        look_up.tied = decoder->tied;
        look_up.multiplier = decoder->embedding_multiplier;
        look_up.position_table = decoder->position_table;
        look_up.positions = step->positions;
        look_up.x_weight = decoder->embedding_norm;
        look_up.weight = decoder->layers[0].input_norm;
        norm(threads, &look_up);
    }
    int is_cut = 0;
    for (long i = first; i < end && (num_wanted || i <= last_kv); i++) {
        if (step->cut && (is_cut = atomic_load_explicit(step->cut, memory_order_relaxed) != 0)) break;
        const Layer *layer = &decoder->layers[i];
        const Caches caches = caches_of(step, i, is_bf16);
        const int is_last = i == decoder->num_layers - 1;
        if (!has_latents && i == last_kv && drops_early) {
            project(threads, decoder, layer, step, batch_of(step, i), &caches, &rows, norm_job.placed_for != NULL, 1, 0);
            norm_job.placed_for = NULL;
            if (!num_wanted) break;  // its KV was all that was wanted
            rows = wanted_rows(step);
            gather_rows(step->hidden, rows.tokens, rows.count, (size_t)hidden_size * item, step->hidden);
            gather_rows(step->residual, rows.tokens, rows.count, (size_t)hidden_size * item, rows.residual);
            kinds[0].shape = kinds[1].shape = NULL;
        }
        const int is_dropped = rows.tokens != NULL;
        const Batch batch = batch_for(step, i, &rows);
        const AttentionShape *shape = layer->shape;
        const int sees_all = !layer->latents && !layer->window && !decoder->alibi_slopes;
        KindTasks *kind = &kinds[sees_all];
        if (kind->shape != shape || kind->tables != batch.block_tables) {
            kind->shape = shape, kind->tables = batch.block_tables;
            find_tasks(shape, &batch, threads->num_threads, sees_all, &kind->tasks);
        }
        const void *attended = step->attended;
        AttentionJob attention_job = {
            .shape = shape, .batch = &batch, .q = step->qkv, .q_stride = layer->qkv ? layer->qkv->num_outputs : 0,
            .k_cache = caches.k, .v_cache = caches.v, .k_scale = layer->k_scale, .v_scale = layer->v_scale,
            .out = step->attended, .window = layer->window, .sinks = layer->sinks,
            .slopes = decoder->alibi_slopes, .tasks = &kind->tasks, .threads = threads};
        if (layer->latents) {
            LatentsRoom room;
            lay_out_latents(layer->latents, shape, rows.count, step->latents_room, &room);
            attention_job.q = room.absorbed;
            attention_job.out = room.attended;
            LatentsJob job = {.latents = layer->latents, .room = &room, .attention = attention_job,
                              .positions = step->positions, .cos_sin = layer->cos_sin, .out = step->attended};
            write_to_cache(threads, &job, step->hidden, rows.adapters, shrunk);
            if (is_last && !num_wanted) break;
            attention_to_latents(threads, &job, rows.adapters, shrunk);
        } else {
            project(threads, decoder, layer, step, &batch, &caches, &rows, norm_job.placed_for != NULL, 0,
                    is_dropped || layer->is_q_alone);
            forget_upcoming(&threads->upcoming);
            attention(threads, &attention_job);
        }
        const Layer *next = i + 1 < end ? layer + 1 : NULL;
        const long qkv_room = next && !next->latents ? upcoming_parts(next->qkv, rows.count) : 0;
        const long down_room = upcoming_parts(layer->down, rows.count);
        if (qkv_room) announce(threads, step, next, i + 1, &rows, is_bf16);
        if (is_last && num_wanted > 0 && !is_dropped) {
            rows = wanted_rows(step);
            gather_rows(step->attended, rows.tokens, rows.count, (size_t)layer->output->width * item, step->qkv);
            gather_rows(step->residual, rows.tokens, rows.count, (size_t)hidden_size * item, rows.residual);
            attended = step->qkv;
        }
        norm_job.residual = rows.residual, norm_job.num_rows = rows.count;
        void *attention_out = decoder->is_parallel ? step->beside : step->hidden;
        product(threads, layer->output, attended, rows.count, attention_out, rows.adapters, shrunk);
        const int is_dense = !layer->experts || layer->dense_out_norm;
        norm_job.placed_for = is_dense ? to_place(layer->gate_up, &rows) : NULL;
        norm_job.weight = layer->post_attention_norm;
        if (!decoder->is_parallel) {
            norm_job.x = step->hidden;
            norm_job.x_weight = layer->attention_out_norm;
            norm(threads, &norm_job);
        } else if (layer->post_attention_norm || norm_job.residual == step->kept) {
            // Without a norm of its own it reads what attention read, of fewer rows: that is made again.
            if (!norm_job.weight) norm_job.weight = layer->input_norm;
            norm_job.x = NULL;
            norm(threads, &norm_job);
        } else {
            norm_job.placed_for = NULL;
        }
        if (!is_dense) {
            experts_sum(threads, layer->experts, step->hidden, step->hidden, rows.count, step->hidden, step->experts_room);
        } else {
            const int is_x_placed = norm_job.placed_for != NULL;
            const int is_y_placed = may_place_y(layer->gate_up, layer->down, rows.count, rows.adapters);
            const void *x = is_x_placed ? placed_x(threads) : step->hidden;
            void *inner = is_y_placed ? placed_y(threads) : step->inner;
            fetch_if_due(&threads->upcoming, down_room + qkv_room);
            product_to(threads, layer->gate_up, x, rows.count, inner, rows.adapters, shrunk, is_x_placed, is_y_placed);
            fetch_if_due(&threads->upcoming, qkv_room);
            product_to(threads, layer->down, inner, rows.count, step->hidden, rows.adapters, shrunk, is_y_placed, 0);
        }
        norm_job.x = step->hidden;
        norm_job.x_weight = layer->feed_forward_out_norm;
        norm_job.beside_weight = layer->attention_out_norm;
        norm_job.weight = is_last ? decoder->final_norm : decoder->layers[i + 1].input_norm;
        norm_job.placed_for = next ? to_place(next->qkv, &rows) : NULL;
        NormJob last_job = norm_job;
        if (layer->dense_out_norm) experts_beside(threads, layer, step, &last_job);
        if (layer->input_gate)
            told(threads, layer, step, i, decoder->num_layers, rows.tokens, &last_job, shrunk);
        last_job.scalar = layer->scalar;
        norm(threads, &last_job);
        fetch_if_due(&threads->upcoming, 0);
    }
    forget_upcoming(&threads->upcoming);
    leave(threads);
    return is_cut;
}
