// What is announced of the next layer's KV, part by part, and that products of many rows fetch all of it.

#define _GNU_SOURCE
#include <stdio.h>

#include "pagoda.c"

static void check(int is_right, const char *what) {
    if (is_right) return;
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static char *const K = (char *)(1L << 40), *const V = (char *)(1L << 41);
#define LAYER_STRIDE (1L << 30)
#define TABLE 4096

static const Rows ALL_ROWS;

static int32_t tables[3 * TABLE];

// Three sequences, of 1, 20 and 2 new tokens; blocks of 16 tokens.
static Step step_of(const AttentionShape *shape, const int32_t *context_lens) {
    static const int32_t starts[] = {0, 1, 21, 23};
    for (int i = 0; i < 3 * TABLE; i++) tables[i] = 3 * TABLE - i;
    const Batch batch = {.cu_seqlens_q = starts, .context_lens = context_lens, .block_tables = tables, .table_stride = TABLE,
                         .num_seqs = 3, .num_tokens = 23, .block_size = 16,
                         .block_stride = 16 * shape->num_kv_heads * shape->head_dim + 64};
    return (Step){.batch = batch, .k_cache = K, .v_cache = V, .layer_stride = LAYER_STRIDE};
}

static void expect_block(Threads *threads, const Step *step, long sequence, long block, long block_bytes) {
    const char *const caches[] = {K + 2 * LAYER_STRIDE, V + 2 * LAYER_STRIDE};
    for (int i = 0; i < 2; i++)
        for (long start = 0; start < block_bytes; start += UPCOMING_PART) {
            size_t bytes = 0;
            const char *part = next_part(&threads->upcoming, &bytes);
            check(part == caches[i] + 2 * tables[sequence * TABLE + block] * step->batch.block_stride + start, "another part");
            check((long)bytes == (block_bytes - start < UPCOMING_PART ? block_bytes - start : UPCOMING_PART), "bytes of a part");
        }
}

static void expect_end(Threads *threads) {
    size_t bytes;
    check(!next_part(&threads->upcoming, &bytes), "too many parts");
}

static void decodes_are_announced(Threads *threads) {
    const AttentionShape shape = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 16, .is_bf16 = 1};
    const int32_t lens[] = {40, 20, 33};
    Step step = step_of(&shape, lens);
    Layer layer = {.shape = &shape};
    announce(threads, &step, &layer, 1, &ALL_ROWS, 1);
    for (long block = 0; block < 3; block++) expect_block(threads, &step, 0, block, 1024);
    for (long block = 0; block < 3; block++) expect_block(threads, &step, 2, block, 1024);  // not the one of 20 new tokens
    expect_end(threads);
    const int32_t own[] = {tables[2 * TABLE], tables[2 * TABLE + 1]};
    memcpy(tables + 2 * TABLE, tables, sizeof own);  // they begin with the same blocks: those come once
    announce(threads, &step, &layer, 1, &ALL_ROWS, 1);
    for (long block = 0; block < 3; block++) expect_block(threads, &step, 0, block, 1024);
    expect_block(threads, &step, 2, 2, 1024);
    expect_end(threads);
    memcpy(tables + 2 * TABLE, own, sizeof own);
    layer.window = 20;
    announce(threads, &step, &layer, 1, &ALL_ROWS, 1);
    for (long block = 1; block < 3; block++) expect_block(threads, &step, 0, block, 1024);
    for (long block = 0; block < 3; block++) expect_block(threads, &step, 2, block, 1024);
    expect_end(threads);
}

static void large_blocks_come_in_parts_and_within_the_budget(Threads *threads) {
    const AttentionShape shape = {.num_heads = 5, .num_kv_heads = 5, .head_dim = 64, .is_bf16 = 1};
    const int32_t lens[] = {60000, 20, 33};
    const Step step = step_of(&shape, lens);
    const Layer layer = {.shape = &shape};
    announce(threads, &step, &layer, 1, &ALL_ROWS, 1);
    const long block_bytes = 10240, most = UPCOMING_BYTES / 2 / block_bytes;  // two parts
    for (long block = 0; block < most; block++) expect_block(threads, &step, 0, block, block_bytes);
    expect_end(threads);
    announce(threads, &step, &layer, 1, &ALL_ROWS, 1);
    forget_upcoming(&threads->upcoming);
    expect_end(threads);
}

static void a_product_fetches_as_much_as_it_has_room_for(Threads *threads, long num_rows) {
    enum { OUTPUTS = 192, WIDTH = 640 };
    static uint16_t x[64 * WIDTH], y[64 * OUTPUTS];
    static const uint8_t high_bytes[NUM_HIGH_BYTES];
    static const Exception none = {NO_STEP, 0, 0};
    static const int64_t first[OUTPUTS / PANEL];
    Linear linear = {.num_outputs = OUTPUTS, .width = WIDTH, .is_bf16 = 1, .bits = TWELVE_BITS,
                     .exceptions = {&none, first, high_bytes}};
    void *panels = calloc(1, (size_t)pagoda_packed_bytes(&linear));
    linear.panels = panels;
    const AttentionShape shape = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 16, .is_bf16 = 1};
    const int32_t lens[] = {60000, 20, 33};
    const Step step = step_of(&shape, lens);
    const Layer layer = {.shape = &shape};
    announce(threads, &step, &layer, 1, &ALL_ROWS, 1);
    const long room = upcoming_parts(&linear, num_rows);
    check(num_rows > 2 * MAX_ROWS ? room > 0 : room == 0, "room for few rows, or none for many");
    fetch_if_due(&threads->upcoming, threads->upcoming.num_parts);
    product(threads, &linear, x, num_rows, y, NULL, NULL);
    check(threads->upcoming.next_part == 0, "fetched before it was due");
    fetch_if_due(&threads->upcoming, threads->upcoming.num_parts - 1);
    product(threads, &linear, x, num_rows, y, NULL, NULL);
    check(threads->upcoming.next_part == room, "another number of parts was fetched");
    forget_upcoming(&threads->upcoming);
    free(panels);
}

int main(void) {
    Threads *threads = pagoda_open_threads(2, 1 << 20);
    decodes_are_announced(threads);
    large_blocks_come_in_parts_and_within_the_budget(threads);
    for (long num_rows = 1; num_rows <= 64; num_rows += 7) a_product_fetches_as_much_as_it_has_room_for(threads, num_rows);
    pagoda_close_threads(threads);
    puts("done");
    return 0;
}
