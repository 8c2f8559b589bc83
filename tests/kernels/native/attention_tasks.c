// Which tasks a step's attention has: that they walk each key that a row sees once, and which sequences are bundled.

#define _GNU_SOURCE
#include <stdio.h>

#include "pagoda.c"

#define SEQUENCES 9
#define TABLE 64
#define TOKENS 400
#define BLOCK 16

static void check(int is_right, const char *what) {
    if (is_right) return;
    fprintf(stderr, "%s\n", what);
    exit(1);
}

typedef struct {
    int32_t starts[SEQUENCES + 1], lens[SEQUENCES], tables[SEQUENCES * TABLE], members[SEQUENCES];
    Bundle bundles[SEQUENCES + 1];
    AttentionShape shape;
    Batch batch;
    Tasks tasks;
    AttentionJob job;
    long num_threads;
} Case;

// Sequences of so many new tokens and keys, of which all but the first `alone` begin with the same keys.
static void make(Case *c, const int32_t *new, const int32_t *lens, const int32_t *shared, long num_threads, long window) {
    memset(c, 0, sizeof *c);
    c->num_threads = num_threads;
    for (int s = 0; s < SEQUENCES; s++) {
        c->starts[s + 1] = c->starts[s] + new[s];
        c->lens[s] = lens[s];
        for (int b = 0; b < TABLE; b++) c->tables[s * TABLE + b] = b < shared[s] / BLOCK ? b : 1000 + s * TABLE + b;
    }
    c->shape = (AttentionShape){.num_heads = 6, .num_kv_heads = 2, .head_dim = 16};
    c->batch = (Batch){.cu_seqlens_q = c->starts, .context_lens = c->lens, .block_tables = c->tables, .table_stride = TABLE,
                       .num_seqs = SEQUENCES, .num_tokens = c->starts[SEQUENCES], .block_size = BLOCK};
    c->tasks = (Tasks){.bundles = c->bundles, .members = c->members};
    find_tasks(&c->shape, &c->batch, num_threads, !window, &c->tasks);
    c->job = (AttentionJob){.shape = &c->shape, .batch = &c->batch, .window = window, .tasks = &c->tasks};
}

static long num_joined;  // parts of all heads

// Each row of each head meets all keys it sees, in the order of its own blocks, and is finished once.
static void expect_all_keys(Case *c) {
    static long met[TOKENS][2];
    static int is_finished[TOKENS][2];
    memset(met, 0, sizeof met);
    memset(is_finished, 0, sizeof is_finished);
    long all;
    tasks_alone(&c->shape, &c->batch, c->tasks.tokens, &all);
    const long most_keys = all / (FEW_TASKS * c->num_threads);
    for (long task = 0; task < num_tasks_of(&c->tasks); task++) {
        Part part, whole = {0};
        long rows = 0, keys = 0;
        check(part_of(&c->job, task, 0, &part), "a task without a part");
        const int is_bundle = part.first_token < 0;
        if (is_bundle) whole = part, keys = part.end_key;
        for (long nth = is_bundle; part_of(&c->job, task, nth, &part); nth++) {
            check(part.first_row == rows, "rows begin elsewhere");
            check(part.first_key < part.end_key, "a part without keys");
            rows += part.num_rows;
            keys += part.end_key - part.first_key;
            check(part.num_rows * part.num_heads <= most_tokens(&c->shape) * 3, "more rows than there is room for");
            check(!is_bundle || part.num_heads == 1, "a bundle of all heads");
            check(part.num_heads == 1 || part.num_heads * part.end_key <= most_keys, "heads that the others would wait for");
            num_joined += part.num_heads > 1;
            for (long row = 0; row < part.num_rows / 3 * part.num_heads; row++) {
                const long token = part.first_token + row / part.num_heads, head = part.head + row % part.num_heads;
                check(!is_finished[token][head]++, "a row is finished twice");
                if (is_bundle) check(whole.head == head && whole.end_key == part.first_key, "keys between");
                for (long key = 0; is_bundle && key < whole.end_key; key++)
                    check(c->tables[whole.sequence * TABLE + key / BLOCK] == c->tables[part.sequence * TABLE + key / BLOCK],
                          "another sequence's key");
                check(is_bundle || part.first_key == 0 || c->job.window, "keys are missing");
                if (is_bundle) check(whole.end_key <= part.position, "a key that is not seen");
                met[token][head] = part.end_key;
            }
        }
        check(!part_of(&c->job, task, 99, &part), "too many parts");
        check(!is_bundle || rows == whole.num_rows, "rows of a bundle");
        check(!is_bundle || keys <= most_keys, "a bundle that the others would wait for");
        check(rows <= TASK_ROWS, "more rows than there is room for");
    }
    for (int s = 0; s < SEQUENCES; s++)
        for (long token = c->starts[s]; token < c->starts[s + 1]; token++)
            for (int head = 0; head < 2; head++)
                check(is_finished[token][head] && met[token][head] >= c->lens[s] - (c->starts[s + 1] - token) + 1, "keys are missing");
}

// Bundles of more than one sequence, the largest, and what that one shares.
static void expect(Case *c, long count, long largest, long shared_keys) {
    long found = 0, most = 0, shared = 0;
    for (long b = 0; b < c->tasks.count; b++) {
        const long size = c->bundles[b + 1].first_member - c->bundles[b].first_member;
        check((size > 1) == (c->bundles[b].shared_keys > 0), "a bundle of one");
        found += size > 1;
        if (size > most) most = size, shared = c->bundles[b].shared_keys;
    }
    if (found == count && (!count || (most == largest && shared == shared_keys))) return;
    fprintf(stderr, "%ld bundles, the largest of %ld with %ld keys\n", found, most, shared);
    exit(1);
}

int main(void) {
    static Case c;
    const int32_t one[] = {1, 1, 1, 1, 1, 1, 1, 1, 1}, lens[] = {300, 310, 305, 290, 333, 301, 310, 299, 400};
    const int32_t same[] = {280, 280, 280, 280, 280, 280, 280, 280, 280}, none[SEQUENCES] = {0};
    make(&c, one, lens, same, 1, 0);
    expect(&c, 1, 8, 256);  // as few as leave four tasks
    expect_all_keys(&c);
    make(&c, one, lens, same, 2, 0);
    expect(&c, 4, 2, 256);
    expect_all_keys(&c);
    make(&c, one, lens, same, 64, 0);
    expect(&c, 0, 0, 0);  // who has many threads has a task for each
    expect_all_keys(&c);
    make(&c, one, lens, none, 1, 0);
    expect(&c, 0, 0, 0);
    expect_all_keys(&c);
    make(&c, one, lens, same, 1, 100);
    expect(&c, 0, 0, 0);  // windows are of each token
    expect_all_keys(&c);
    const int32_t of_kinds[] = {1, 8, 60, 1, 9, 1, 0, 1, 3};
    make(&c, of_kinds, lens, same, 1, 0);
    expect(&c, 1, 6, 256);  // not with a prompt, nor with one that has no tokens
    expect_all_keys(&c);
    const int32_t little[] = {280, 60, 280, 70, 64, 280, 0, 280, 128};
    make(&c, one, lens, little, 1, 0);
    expect(&c, 1, 4, 256);  // a fourth of its keys at least, and nobody for whom the others share too little
    expect_all_keys(&c);
    const int32_t ends[] = {257, 258, 256, 400, 400, 400, 400, 400, 400};
    make(&c, one, ends, same, 1, 0);
    expect(&c, 1, 8, 192);  // the third sees 256 keys, its own among them
    expect_all_keys(&c);
    const int32_t unlike[] = {600, 300, 310, 305, 290, 333, 301, 310, 299}, short_one[] = {200, 200, 200, 200, 200, 200, 200, 200, 200};
    make(&c, one, unlike, same, 1, 0);
    expect(&c, 1, 8, 256);
    make(&c, one, unlike, short_one, 1, 0);
    expect(&c, 1, 8, 192);
    const int32_t long_one[] = {900, 300, 310, 305, 290, 333, 301, 310, 299};
    make(&c, one, long_one, short_one, 1, 0);
    expect(&c, 1, 8, 192);  // the first shares less than a fourth of its own: it is alone
    check(c.members[0] == 0 && c.bundles[1].first_member == 1, "a long one is bundled");
    expect_all_keys(&c);
    const int32_t most_short[] = {1000, 1000, 1000, 1000, 20, 20, 20, 20, 20};
    make(&c, one, most_short, same, 2, 0);
    expect(&c, 0, 0, 0);  // 256 keys saved are not worth that one of two threads has most of the others
    expect_all_keys(&c);
    srand(1);
    for (int turn = 0; turn < 2000; turn++) {
        int32_t new[SEQUENCES], all[SEQUENCES], shared[SEQUENCES];
        for (int s = 0; s < SEQUENCES; s++) {
            new[s] = rand() % 3 ? rand() % 4 : rand() % 40;
            all[s] = new[s] + rand() % 500;
            shared[s] = rand() % 2 ? 300 : rand() % 500;
        }
        make(&c, new, all, shared, 1 + rand() % 5, rand() % 4 ? 0 : 1 + rand() % 90);
        expect_all_keys(&c);
    }
    check(num_joined > 1000, "heads are hardly ever joined");
    printf("done\n");
    return 0;
}
