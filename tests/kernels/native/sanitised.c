// Random steps over arrays of exactly their size, for the compiler's sanitizers to watch. The seed is the
// first argument; the number of threads the second.

#define _GNU_SOURCE
#include <stdio.h>

#include "pagoda.c"

#define NUM_ADAPTERS 3
#define MAX_RANK (2 * LANES)

static uint64_t state;
static uint64_t draw(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}
static long between(long low, long high) { return low + (long)(draw() % (uint64_t)(high - low + 1)); }

static void *numbers(long count, int is_bf16) {
    void *array = malloc((size_t)(count ? count : 1) * (is_bf16 ? 2 : 4));
    for (long i = 0; i < count; i++) store_any(array, i, (float)between(-1000, 1000) / 1000, is_bf16);
    return array;
}

// Of weights that are freed with all others at the end of a model.
static void *kept[500];
static int num_kept;
static void *keep(void *memory) {
    if (num_kept == sizeof kept / sizeof *kept) abort();
    return kept[num_kept++] = memory;
}

// Numbers of either sign from 2^-15 to 1, and exceptions.
static void keep_in_twelve_bits(Threads *threads, Linear *made, const void *weight, void **panels) {
    uint8_t *high_bytes = keep(malloc(NUM_HIGH_BYTES * sizeof *high_bytes));
    for (int i = 0; i < NUM_HIGH_BYTES; i++) high_bytes[i] = (uint8_t)((i % 2 << 7) + 63 - i / 2 - draw() % 2 * 8);
    const long count = num_panels(made);
    int64_t *counts = malloc((size_t)count * sizeof *counts), *first = keep(malloc((size_t)count * sizeof *first)), total = 0;
    made->bits = TWELVE_BITS, made->exceptions = (Exceptions){NULL, first, high_bytes};
    pagoda_count_exceptions(threads, made, weight, counts);
    for (long i = 0; i < count; i++) first[i] = total, total += counts[i] + 1;
    Exception *all = keep(malloc((size_t)total * sizeof *all));
    made->exceptions.all = all;
    free(*panels);
    made->panels = *panels = malloc((size_t)pagoda_packed_bytes(made));
    pagoda_pack_twelve(threads, made, weight, *panels, all);
    free(counts);
}

static Linear *linear(Threads *threads, long num_outputs, long width, int is_bf16, int is_gated, void **parts) {
    Linear *made = malloc(sizeof *made);
    const long rows = num_outputs * (1 + is_gated);
    static const uint16_t levels[NUM_LEVELS] = {  // -8 to 7
        0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,
        0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0};
    *made = (Linear){NULL, draw() % 2 ? numbers(rows, is_bf16) : NULL, num_outputs, width, is_bf16, is_gated,
                     (int32_t)between(0, 2) * 4, 0, levels, NULL};
    made->has_zeros = made->bits == 4 && draw() % 2;
    void *weight = numbers(rows * width, is_bf16), *panels = malloc((size_t)pagoda_packed_bytes(made));
    if (made->bits) {
        int8_t *codes = malloc((size_t)(rows * width));
        uint16_t *scales = malloc((size_t)(rows * num_groups(width)) * sizeof *scales);
        QuantiseJob job = {weight, made->bits == 4 ? levels : NULL, codes, scales, rows, width, is_bf16};
        pagoda_quantise(threads, &job);
        int8_t *zeros = malloc((size_t)(rows * num_groups(width)));
        for (long i = 0; i < rows * num_groups(width); i++) zeros[i] = (int8_t)between(-8, 8);
        pagoda_pack_quantised(threads, made, codes, scales, made->has_zeros ? zeros : NULL, panels);
        free(codes), free(scales), free(zeros);
    } else {
        pagoda_pack(threads, made, weight, panels);
    }
    made->panels = panels;
    if (!made->bits && is_bf16 && draw() % 2) keep_in_twelve_bits(threads, made, weight, &panels);
    free(weight);
    parts[0] = made, parts[1] = panels, parts[2] = (void *)made->bias;
    return made;
}

// Room for adapters of a projection whose weight has parts of so many rows; `parts` gets what to free.
static void adapters(Linear *linear, int num_parts, const long *rows, void **parts) {
    Lora *lora = malloc(sizeof *lora);
    int32_t *ranks = malloc(NUM_ADAPTERS * sizeof *ranks);
    float *scales = malloc(NUM_ADAPTERS * sizeof *scales);
    int64_t *ends = malloc((size_t)num_parts * sizeof *ends), end = 0;
    for (int i = 0; i < num_parts; i++) ends[i] = end += rows[i];
    for (int i = 0; i < NUM_ADAPTERS; i++) ranks[i] = (int32_t)between(0, MAX_RANK), scales[i] = 0.5f;
    void *a = numbers(NUM_ADAPTERS * num_parts * MAX_RANK * linear->width, linear->is_bf16);
    void *b = numbers(NUM_ADAPTERS * num_panels(linear) * MAX_RANK * PANEL, linear->is_bf16);
    *lora = (Lora){a, b, ranks, scales, ends, num_parts, MAX_RANK};
    linear->lora = lora;
    parts[0] = lora, parts[1] = ranks, parts[2] = scales, parts[3] = ends, parts[4] = a, parts[5] = b;
}

static Linear *kept_linear(Threads *threads, long num_outputs, long width, int is_bf16, int is_gated) {
    void *parts[3];
    Linear *made = linear(threads, num_outputs, width, is_bf16, is_gated, parts);
    for (int i = 0; i < 3; i++) keep(parts[i]);
    return made;
}

static FeedForward feed_forward(Threads *threads, long hidden, long inner, int is_bf16, int gate) {
    Linear *gate_up = kept_linear(threads, inner, hidden, is_bf16, 1);
    gate_up->gate = gate, gate_up->gate_limit = 0.5f, gate_up->gate_alpha = 1.7f;
    return (FeedForward){gate_up, kept_linear(threads, hidden, inner, is_bf16, 0)};
}

static Experts *random_experts(Threads *threads, long hidden, int is_bf16) {
    const long groups = between(1, 3), size = between(2, 8), count = groups * size, top = between(1, groups);
    const long inner = 2 * between(1, 60), per_row = between(1, top * size);
    const int gate = (int)between(GATE_SILU, GATE_CLAMPED), has_shared = (int)between(0, 1);
    FeedForward *experts = keep(malloc((size_t)count * sizeof *experts));
    for (long i = 0; i < count; i++) experts[i] = feed_forward(threads, hidden, inner, is_bf16, gate);
    Experts *made = keep(malloc(sizeof *made));
    *made = (Experts){.router = kept_linear(threads, count, hidden, is_bf16 && draw() % 2, 0),
                      .choice_bias = draw() % 2 ? keep(numbers(count, 0)) : NULL, .experts = experts,
                      .num_experts = count, .per_row = per_row, .num_groups = groups, .top_groups = top,
                      .expert_scales = draw() % 2 ? keep(numbers(count, 0)) : NULL,
                      .scale = 1.5f, .is_sigmoid = (int)between(0, 1), .is_renormalised = (int)between(0, 1)};
    if (has_shared) {
        made->shared = feed_forward(threads, hidden, 2 * between(1, 60), is_bf16, GATE_SILU);
        if (draw() % 2) made->shared_gate = kept_linear(threads, 1, hidden, is_bf16, 0);
    }
    if (pagoda_experts_scratch_bytes(made) > (int64_t)threads->scratch_bytes) abort();
    return made;
}

// Of heads whose Q and K have `rotary` dims that turn; no codes where rows of a head are multiplied.
static const Latents *random_latents(Threads *threads, long hidden, long heads, long rank, long rotary, int is_bf16) {
    const long nope = 2 * between(1, 20), value = 2 * between(1, 20), q_rank = draw() % 2 ? 2 * between(1, 30) : 0;
    const Linear **ups[2];
    for (int i = 0; i < 2; i++) {
        ups[i] = keep(malloc((size_t)heads * sizeof **ups));
        for (long head = 0; head < heads; head++)
            ups[i][head] = kept_linear(threads, i ? value : rank, i ? rank : nope, is_bf16, 0);
    }
    const long q_rows = heads * (nope + rotary);
    Latents *made = keep(malloc(sizeof *made));
    *made = (Latents){.down = kept_linear(threads, (q_rank ? q_rank : q_rows) + rank + rotary, hidden, is_bf16, 0),
                      .q_up = q_rank ? kept_linear(threads, q_rows, q_rank, is_bf16, 0) : NULL,
                      .q_norm = keep(numbers(q_rank, is_bf16)), .kv_norm = keep(numbers(rank, is_bf16)),
                      .k_up = ups[0], .v_up = ups[1], .kv_rank = rank, .nope_dim = nope, .rope_dim = rotary,
                      .value_dim = value, .eps = 1e-6f, .is_interleaved = (int)between(0, 1)};
    return made;
}

static void one_model(Threads *threads) {
    const int is_bf16 = (int)between(0, 1);
    const int has_latents = draw() % 3 == 0, is_packed = !has_latents && draw() % 2;
    const long kv_heads = has_latents ? 1 : between(1, 3), heads = kv_heads * between(1, 5);
    const long width = is_packed ? 32 * between(1, 3) : 2 * between(1, 60);
    const long hidden = 2 * between(1, 60), inner = 2 * between(1, 60), vocab = between(1, 150);
    const long block_size = is_packed ? 16 * between(1, 2) : between(1, 20), num_seqs = between(1, 5), max_blocks = between(1, 8);
    const long row = (heads + 2 * kv_heads) * width, block = block_size * kv_heads * width;
    const long num_blocks = num_seqs * max_blocks, rotary = between(1, has_latents && width > 2 ? width / 2 - 1 : width / 2) * 2;
    const int norm_kind = (int)between(NORM_RMS, NORM_LAYER);
    const long norm_width = norm_kind == NORM_LAYER ? 2 * hidden : hidden;
    void *parts[15], *norms[4] = {numbers(norm_width, is_bf16), numbers(norm_width, is_bf16), numbers(width, is_bf16),
                                  numbers(width, is_bf16)};
    const int has_gate = (int)between(0, 1);
    const int has_qk_norm = (int)between(0, 1);
    const Latents *latents = NULL;
    if (has_latents && width > 2) latents = random_latents(threads, hidden, heads, width - rotary, rotary, is_bf16);
    const long attended = heads * (latents ? latents->value_dim : width);
    Layer layer = {norms[0], norms[1], has_qk_norm ? norms[2] : NULL, has_qk_norm ? norms[3] : NULL,
                   linear(threads, row, hidden, is_bf16, 0, parts),
                   linear(threads, hidden, attended, is_bf16, 0, parts + 3),
                   linear(threads, inner, hidden, is_bf16, has_gate, parts + 6),
                   linear(threads, hidden, inner, is_bf16, 0, parts + 9), between(0, 1) * between(1, 90), NULL, NULL};
    Linear *up = (Linear *)layer.gate_up;
    const int32_t gates[] = {GATE_SILU, GATE_GELU_TANH, GATE_GELU};
    up->is_activated = !has_gate, up->gate = gates[between(0, 2)];
    if (latents) layer.latents = latents, layer.window = 0;
    if (has_qk_norm) layer.qk_norm_place = (int32_t)between(QK_NORM_HEAD, QK_NORM_EACH_HEAD);
    if (layer.qk_norm_place != QK_NORM_HEAD) {
        const long each = layer.qk_norm_place * width;
        layer.q_norm = keep(numbers(heads * each, is_bf16)), layer.k_norm = keep(numbers(kv_heads * each, is_bf16));
    }
    if (draw() % 2) layer.qkv_clip = 0.5f;
    if (draw() % 2) layer.attention_out_norm = layer.feed_forward_out_norm = norms[1];
    if (draw() % 3 == 0) layer.input_norm = layer.post_attention_norm = NULL;
    if (draw() % 2) layer.experts = random_experts(threads, hidden, is_bf16);
    if (draw() % 2) layer.sinks = keep(numbers(heads, 0));
    void *lora_parts[24];
    const long qkv_rows[3] = {heads * width, kv_heads * width, kv_heads * width}, up_rows[2] = {inner, inner};
    adapters((Linear *)layer.qkv, 3, qkv_rows, lora_parts);
    adapters((Linear *)layer.output, 1, &hidden, lora_parts + 6);
    adapters(up, 1 + has_gate, up_rows, lora_parts + 12);
    adapters((Linear *)layer.down, 1, &hidden, lora_parts + 18);
    const Linear *q_alone = !latents && draw() % 3 == 0 ? kept_linear(threads, heads * width, hidden, is_bf16, 0) : NULL;
    const long told = draw() % 2 ? 2 * between(1, 30) : 0;
    if (told) {
        Linear *gate = kept_linear(threads, told, hidden, is_bf16, 0);
        gate->is_activated = 1, gate->gate = gates[between(0, 2)];
        layer.input_gate = gate, layer.input_projection = kept_linear(threads, hidden, told, is_bf16, 0);
        layer.input_out_norm = norms[1];
    }
    if (layer.experts && draw() % 2) layer.dense_out_norm = layer.router_norm = layer.experts_in_norm = layer.experts_out_norm = norms[1];
    void *embedding = numbers(vocab * hidden, is_bf16), *cos_sin = numbers(block_size * max_blocks * rotary, 0);
    const Linear *output = linear(threads, vocab, hidden, is_bf16, 0, parts + 12);
    if (latents || draw() % 2) layer.cos_sin = cos_sin, layer.rotary_dim = rotary;
    const AttentionShape shape = {heads, kv_heads, width, 0.3f, is_bf16, 0};
    layer.shape = &shape, layer.scalar = draw() % 2 ? 1 : 0.7f;
    if (draw() % 2) layer.v_norm = norms[2];
    Layer layers[2];  // of one cache
    Decoder decoder = {is_bf16, hidden, 2, 1e-5f, embedding,
                       output->bits ? NULL : output, norms[0], layers, draw() % 2 ? 1 : 2.5f, draw() % 2 ? 1 : 0.4f,
                       norm_kind, (int32_t)between(0, 1)};
    if (decoder.is_parallel && draw() % 2) layer.post_attention_norm = NULL;
    if (draw() % 2) decoder.position_table = keep(numbers(block_size * max_blocks * hidden, is_bf16));
    if (draw() % 2) decoder.embedding_norm = norms[1];
    if (!layer.sinks && draw() % 2) decoder.alibi_slopes = keep(numbers(heads, 0));
    if (pagoda_scratch_bytes(&shape) > (int64_t)threads->scratch_bytes) abort();
    if (latents && pagoda_latents_scratch_bytes(latents, &shape) > (int64_t)threads->scratch_bytes) abort();
    const int32_t cache_kind = latents || is_packed ? CACHE_AS_ROWS : (int32_t)between(CACHE_AS_ROWS, CACHE_INT8);
    const size_t cache_bytes = (size_t)(num_blocks * block * cache_item(cache_kind, is_bf16));
    void *k_cache = calloc(cache_bytes, 1), *v_cache = calloc(cache_bytes, 1);
    float scales[3] = {0.5f, 0.25f, 2.0f};
    layer.k_scale = layer.v_scale = scales;
    layers[0] = layers[1] = layer;
    if (q_alone) layers[1].qkv = q_alone, layers[1].is_q_alone = 1;

    int32_t *starts = malloc(sizeof *starts * (size_t)(num_seqs + 1)), *contexts = malloc(sizeof *contexts * (size_t)num_seqs);
    int32_t *tables = malloc(sizeof *tables * (size_t)num_blocks);
    starts[0] = 0;
    for (long i = 0; i < num_blocks; i++) tables[i] = (int32_t)i;
    for (long s = 0; s < num_seqs; s++) {
        contexts[s] = (int32_t)between(1, block_size * max_blocks);
        starts[s + 1] = starts[s] + (int32_t)(draw() % 2 ? 1 : between(1, contexts[s]));
    }
    for (long s = 1; s < num_seqs && draw() % 2; s++)  // they begin as the first one
        for (long b = 0; (b + 1) * block_size <= contexts[s] - (starts[s + 1] - starts[s]) && (b + 1) * block_size <= contexts[0] - starts[1]; b++)
            tables[s * max_blocks + b] = tables[b];
    const long num_tokens = starts[num_seqs];
    long num_wanted = between(0, num_tokens);
    int64_t *ids = malloc(sizeof *ids * (size_t)num_tokens), *slots = malloc(sizeof *slots * (size_t)num_tokens);
    int64_t *wanted = malloc(sizeof *wanted * (size_t)(num_tokens + 1));
    int32_t *positions = malloc(sizeof *positions * (size_t)num_tokens);
    for (long s = 0; s < num_seqs; s++)
        for (long t = starts[s]; t < starts[s + 1]; t++) {
            const long position = contexts[s] - starts[s + 1] + t;
            ids[t] = between(0, vocab - 1);
            positions[t] = (int32_t)position;
            slots[t] = tables[s * max_blocks + position / block_size] * block_size + position % block_size;
        }
    int32_t *slots_of = malloc(sizeof *slots_of * (size_t)num_tokens), *wanted_slots = malloc(sizeof *wanted_slots * (size_t)(num_tokens + 1));
    for (long i = 0; i < num_tokens; i++) slots_of[i] = (int32_t)between(-1, NUM_ADAPTERS - 1);
    for (long i = 0; i < num_wanted; i++) wanted[i] = between(0, num_tokens - 1);
    if (draw() % 2) {  // the last ones of each sequence
        num_wanted = 0;
        for (long s = 0; s < num_seqs; s++)
            for (long t = between(starts[s], starts[s + 1]); t < starts[s + 1]; t++) wanted[num_wanted++] = t;
    }
    int32_t *wanted_positions = malloc(sizeof *wanted_positions * (size_t)(num_tokens + 1));
    for (long i = 0; i < num_wanted; i++) wanted_slots[i] = slots_of[wanted[i]], wanted_positions[i] = positions[wanted[i]];
    int32_t *wanted_starts = malloc(sizeof *wanted_starts * (size_t)(num_seqs + 1));
    float *shrunk = malloc(sizeof *shrunk * (size_t)(num_tokens * 3 * MAX_RANK));
    const int has_adapters = (int)between(0, 1);
    void *room[7];
    const long widths[7] = {hidden, hidden, hidden, latents ? attended : row, attended, inner > told ? inner : told, hidden * decoder.is_parallel};
    for (int i = 0; i < 7; i++) room[i] = numbers(num_tokens * widths[i], is_bf16);
    Bundle *bundles = malloc(sizeof *bundles * (size_t)(2 * (num_seqs + 1)));
    int32_t *members = malloc(sizeof *members * (size_t)(2 * num_seqs));
    void *experts_room = NULL;
    if (layer.experts)
        experts_room = keep(aligned_alloc(64, (size_t)pagoda_experts_bytes(layer.experts, num_tokens)));
    void *latents_room = NULL;
    if (latents)
        latents_room = keep(aligned_alloc(64, (size_t)pagoda_latents_bytes(latents, &shape, num_tokens)));
    Step step = {{starts, contexts, tables, max_blocks, slots, num_seqs, num_tokens, block_size, block, cache_kind, is_packed},
                 ids, positions, wanted, draw() % 4 ? num_wanted : -1, k_cache, v_cache, 0,
                 room[0], room[1], room[2], room[3], room[4], room[5], room[6], bundles, members,
                 wanted_positions, wanted_starts, has_adapters ? slots_of : NULL, wanted_slots, shrunk, experts_room, latents_room};
    const int64_t offsets[4] = {0};
    if (draw() % 2) step.offsets = offsets;
    if (told) step.layer_inputs = keep(numbers(num_tokens * 2 * told, is_bf16));
    step.experts_x = keep(numbers(num_tokens * hidden, is_bf16)), step.router_x = keep(numbers(num_tokens * hidden, is_bf16));
    pagoda_layers(threads, &decoder, &step, 0, 1);
    pagoda_layers(threads, &decoder, &step, 1, 2);
    while (num_kept) free(kept[--num_kept]);

    for (int i = 0; i < 7; i++) free(room[i]);
    for (int i = 0; i < 15; i++) free(parts[i]);
    for (int i = 0; i < 24; i++) free(lora_parts[i]);
    free(slots_of), free(wanted_slots), free(wanted_positions), free(wanted_starts), free(shrunk);
    for (int i = 0; i < 4; i++) free(norms[i]);
    free(starts), free(contexts), free(tables), free(ids), free(slots), free(wanted), free(positions);
    free(bundles), free(members), free(embedding), free(cos_sin), free(k_cache), free(v_cache);
}

// Others come and go at their seats; the threads that work follow.
static Seat seats[NUM_SEATS];
static void others_come_and_go(Threads *threads) {
    int num_busy = 1;
    for (int i = 0; i < NUM_SEATS; i++) {
        const int is_busy = i != 3 && draw() % 8 == 0;
        if (i != 3) atomic_store(&seats[i].last_task, is_busy ? INT64_MAX : 0);
        num_busy += is_busy;
    }
    one_model(threads);
    const int share = threads->num_threads / num_busy;
    if (threads->num_threads > 1 && threads->limit != (share ? share : 1)) abort();
}

// Tokens of a vocabulary, none twice, and a number for each.
static int64_t *some_tokens(long vocab_size, float **numbers_of, int64_t *count) {
    int64_t *token_ids = malloc((size_t)vocab_size * sizeof *token_ids);
    const long step = between(1, 3);
    *numbers_of = malloc((size_t)vocab_size * sizeof **numbers_of);
    *count = 0;
    for (long i = between(0, 2); i < vocab_size; i += step) {
        token_ids[*count] = i;
        (*numbers_of)[(*count)++] = (float)between(0, 3);
    }
    return token_ids;
}

// Rows of a random vocabulary, greedy and drawn, some with biases and penalties, of scratch memory of exactly
// their size.
static void some_rows(int num_threads) {
    const long vocab_size = between(1, 700), num_rows = between(1, 5), stride = vocab_size + between(0, 9);
    const int is_bf16 = (int)between(0, 1);
    Threads *threads = pagoda_open_threads(num_threads, (size_t)pagoda_sample_bytes(vocab_size));
    void *logits = numbers((num_rows - 1) * stride + vocab_size, is_bf16);
    int64_t *parameters = calloc((size_t)(9 * num_rows), sizeof *parameters);
    int64_t *token_ids = malloc((size_t)num_rows * sizeof *token_ids);
    uint8_t *is_valid = malloc((size_t)num_rows);
    for (long row = 0; row < num_rows; row++) {
        const double temperature = (double)between(0, 20) / 10, min_p = draw() % 2 ? 0 : 0.1;
        memcpy(parameters + TEMPERATURE * num_rows + row, &temperature, sizeof temperature);
        memcpy(parameters + MIN_P * num_rows + row, &min_p, sizeof min_p);
        parameters[TOP_K * num_rows + row] = draw() % 2 ? 0 : between(1, 2 * vocab_size);
        parameters[TOP_P * num_rows + row] = draw() % 2 ? MASS_ONE : (int64_t)(draw() % MASS_ONE) + 1;
        parameters[SEED * num_rows + row] = (int64_t)draw();
        parameters[INDEX * num_rows + row] = between(0, 99);
    }
    Biases biases = {0}, biases_of[5] = {0};
    SeenTokens seen = {.repetition = 1.5f, .frequency = 0.5f, .presence = -0.5f}, seen_of[5] = {0};
    float *added, *counts;
    int64_t *biased_ids = some_tokens(vocab_size, &added, &biases.count);
    int64_t *seen_ids = some_tokens(vocab_size, &counts, &seen.count);
    biases.token_ids = draw() % 2 ? biased_ids : NULL, biases.biases = added;
    seen.token_ids = seen_ids, seen.counts = counts;
    for (long row = 0; row < num_rows; row++) {
        if (draw() % 2) biases_of[row] = biases;
        if (draw() % 2) seen_of[row] = seen;
    }
    const SampleJob job = {
        logits, stride, num_rows, vocab_size, draw() % 4 ? parameters : NULL, token_ids, is_valid,
        draw() % 2 ? biases_of : NULL, draw() % 2 ? seen_of : NULL, is_bf16,
    };
    pagoda_sample(threads, &job);
    for (long row = 0; row < num_rows; row++)
        if (!is_valid[row] || token_ids[row] < 0 || token_ids[row] >= vocab_size) abort();
    free(logits), free(parameters), free(token_ids), free(is_valid);
    free(biased_ids), free(added), free(seen_ids), free(counts);
    pagoda_close_threads(threads);
}

#define NUM_ROUNDS 30

int main(int argc, char **argv) {
    state = argc > 1 ? strtoull(argv[1], NULL, 10) * 2 + 1 : 1;
    Threads *threads = pagoda_open_threads(argc > 2 ? atoi(argv[2]) : 2, 1 << 20);
    for (int i = 0; i < NUM_ROUNDS; i++) one_model(threads);
    pagoda_share_processors(threads, seats, 3);
    for (int i = 0; i < NUM_ROUNDS; i++) others_come_and_go(threads);
    pagoda_close_threads(threads);
    for (int i = 0; i < NUM_ROUNDS; i++) some_rows(argc > 2 ? atoi(argv[2]) : 2);
    puts("done");
    return 0;
}
