// Mixture of experts: every row through the experts that its router chooses, and through the shared one.
//
// Rows are brought together by expert, and an expert's two products are those of a dense layer, over its rows
// alone: an expert that nobody chose is not read. Panels of all experts are tasks of one loop. A row's parts are
// added best expert first. So what a row gets depends on that row alone, whatever rows come with it.

#pragma once

#include "rows.h"

typedef struct {
    const Linear *gate_up;  // with a gate
    const Linear *down;
} FeedForward;

typedef struct {
    const Linear *router;      // [E, hidden], in the dtype of the rows or in fp32
    const float *choice_bias;  // [E], added to scores for the choice alone; or NULL
    const FeedForward *experts;  // [E], all of one shape
    FeedForward shared;          // of all rows; NULLs: there is none
    const Linear *shared_gate;   // [1, hidden]: its sigmoid is the weight of the shared one; NULL: it counts as it is
    int64_t num_experts;
    int64_t per_row;     // experts of a row
    int64_t num_groups;  // of neighbours, equal; experts are chosen out of the best `top_groups`
    int64_t top_groups;
    float scale;         // of the weights
    int32_t is_sigmoid;  // scores are; else a softmax over all experts
    int32_t is_renormalised;  // the weights of a row are divided by their sum
    const float *expert_scales;  // [E], of the weights of experts that were chosen; or NULL
} Experts;

// The rows of one expert.
typedef struct {
    const FeedForward *expert;
    const void *x;   // [rows, hidden], see place_row
    void *inner;     // [rows, I]
    void *inner_x;  // so; see place_row
    void *out;       // [rows, hidden]
    long num_rows;
    long num_chunks;
    long first_task[3];  // of the loops over gate_up, over down, and over rows
} Run;

// What some rows need besides; a pair is a row and one of its experts.
typedef struct {
    float *widened;   // [rows, hidden] for a router in fp32, where rows are bf16
    void *logits;     // [rows, E]
    float *weights;   // [pairs]
    int32_t *chosen;  // [pairs] experts
    int64_t *places;  // [pairs] among those sorted by expert
    int64_t *ends;    // [E + 1] of the pairs of each expert
    Run *runs;        // [E + 1]
    void *x;          // [pairs, hidden], by expert, see place_row; so are
    void *inner;      // [pairs, I], and
    void *parts;      // [pairs, hidden]
    void *shared_inner;  // [rows, width of the shared expert]
    void *shared;        // [rows, hidden]
    char *placed_inner, *placed_shared_x, *placed_shared_inner;  // where products take x from elsewhere
    void *shared_gates;  // [rows]
} ExpertsRoom;

static inline int reads_widened(const Experts *experts) {
    return experts->router->is_bf16 != experts->experts->gate_up->is_bf16;
}

static size_t lay_out_experts(const Experts *experts, long num_rows, char *at, ExpertsRoom *room) {
    const size_t rows = (size_t)num_rows, count = (size_t)experts->num_experts, pairs = rows * (size_t)experts->per_row;
    const size_t hidden = (size_t)experts->router->width, inner = (size_t)experts->experts->down->width;
    const int is_bf16 = experts->experts->gate_up->is_bf16;
    const size_t item = is_bf16 ? 2 : 4, placed_item = places_x(is_bf16) ? (size_t)x_item(is_bf16) : 0, router_item = experts->router->is_bf16 ? 2 : 4;
    const size_t shared_rows = experts->shared.down ? rows : 0, hidden_room = (size_t)x_room((long)hidden, is_bf16);
    const size_t shared_inner = experts->shared.down ? (size_t)experts->shared.down->width : 0;
    void **parts[] = {(void **)&room->widened, &room->logits, (void **)&room->weights, (void **)&room->chosen,
                      (void **)&room->places, (void **)&room->ends, (void **)&room->runs, &room->x, &room->inner,
                      &room->parts, &room->shared_inner, &room->shared, &room->shared_gates, (void **)&room->placed_inner,
                      (void **)&room->placed_shared_x, (void **)&room->placed_shared_inner};
    const size_t bytes[] = {reads_widened(experts) ? rows * hidden * 4 : 0, rows * count * router_item, pairs * 4,
                            pairs * 4, pairs * 8, (count + 1) * 8, (count + 1) * sizeof(Run),
                            pairs * hidden_room * (size_t)x_item(is_bf16), pairs * inner * item, pairs * hidden * item,
                            shared_rows * shared_inner * item, shared_rows * hidden * item,
                            experts->shared_gate ? rows * item : 0, pairs * (size_t)x_room((long)inner, is_bf16) * placed_item,
                            shared_rows * hidden_room * placed_item,
                            shared_rows * (size_t)x_room((long)shared_inner, is_bf16) * placed_item + behind_x(is_bf16)};
    return lay_out_parts(sizeof bytes / sizeof *bytes, parts, bytes, 1, at);
}

// Bytes that so many rows need besides.
int64_t pagoda_experts_bytes(const Experts *experts, int64_t num_rows) {
    ExpertsRoom room;
    return (int64_t)lay_out_experts(experts, num_rows, NULL, &room);
}

// Scratch memory of each thread.
int64_t pagoda_experts_scratch_bytes(const Experts *experts) {
    return (int64_t)(2 * round_lines((size_t)experts->num_experts * 4) + (size_t)experts->num_experts * 2);
}

typedef struct {
    const Experts *experts;
    const ExpertsRoom *room;
    const void *x;  // [rows, hidden]
    const void *router_x;  // so; what the router reads
    void *out;      // [rows, hidden], which may be x
    long num_rows;
    int is_bf16;
    long num_runs;
    Threads *threads;
} ExpertsJob;

// scores[count], which are logits before; room for whole vectors.
static inline void score(float *scores, long count, int is_sigmoid) {
    while (count % LANES) scores[count++] = -INFINITY;
    vfloat largest = vset(-INFINITY), sum = {};
    for (long i = 0; i < count; i += LANES) {
        if (is_sigmoid) vstore(scores + i, 1.0f / (1.0f + vexp(-vload(scores + i))));
        else largest = vmax(largest, vload(scores + i));
    }
    if (is_sigmoid) return;
    const float most = vlargest(largest);
    for (long i = 0; i < count; i += LANES) {
        const vfloat x = vexp(vload(scores + i) - most);
        vstore(scores + i, x);
        sum += x;
    }
    const float total = vsum(sum);
    for (long i = 0; i < count; i += LANES) vstore(scores + i, vload(scores + i) / total);
}

// The first of those with the best score that are open still; some is, whatever the scores are.
static inline long best_open(const float *scores, const uint8_t *is_open, long count) {
    long best = -1;
    for (long i = 0; i < count; i++)
        if (is_open[i] && (best < 0 || scores[i] > scores[best])) best = i;
    return best;
}

// Leave open the experts of the best groups: by their best expert, or with a bias by their two best.
static inline void open_groups(const Experts *experts, const float *choice, uint8_t *is_open, uint8_t *groups) {
    const long count = experts->num_groups, size = experts->num_experts / count;
    memset(is_open, 0, (size_t)experts->num_experts);
    memset(groups, 1, (size_t)count);
    for (long n = 0; n < experts->top_groups; n++) {
        long best = -1;
        float most = 0;
        for (long g = 0; g < count; g++) {
            if (!groups[g]) continue;
            float first = -INFINITY, second = -INFINITY;
            for (long i = g * size; i < (g + 1) * size; i++) {
                if (choice[i] > first) second = first, first = choice[i];
                else if (choice[i] > second) second = choice[i];
            }
            const float value = experts->choice_bias ? first + second : first;
            if (best < 0 || value > most) best = g, most = value;
        }
        groups[best] = 0;
        memset(is_open + best * size, 1, (size_t)size);
    }
}

// Rows as floats, for a router in fp32.
static void widen_task(const void *argument, long task, int thread) {
    const ExpertsJob *job = argument;
    const long hidden = job->experts->router->width, row = task * TASK_TOKENS;
    (void)thread;
    widen_numbers(at(job->router_x, row * hidden, 1), (end_of(task, job->num_rows) - row) * hidden, job->room->widened + row * hidden);
}

static void route_task(const void *argument, long task, int thread) {
    const ExpertsJob *job = argument;
    const Experts *experts = job->experts;
    const long count = experts->num_experts, per_row = experts->per_row;
    const size_t line = round_lines((size_t)count * 4);
    char *scratch = scratch_of(job->threads, thread);
    float *scores = (float *)scratch, *choice = (float *)(scratch + line);
    uint8_t *is_open = (uint8_t *)(scratch + 2 * line);
    for (long row = task * TASK_TOKENS; row < end_of(task, job->num_rows); row++) {
        for (long i = 0; i < count; i++)
            scores[i] = load_any(job->room->logits, row * count + i, experts->router->is_bf16);
        score(scores, count, experts->is_sigmoid);
        for (long i = 0; i < count; i++) choice[i] = scores[i] + (experts->choice_bias ? experts->choice_bias[i] : 0);
        if (experts->num_groups > 1) open_groups(experts, choice, is_open, is_open + count);
        else memset(is_open, 1, (size_t)count);
        float *weights = job->room->weights + row * per_row, total = 0;
        for (long j = 0; j < per_row; j++) {
            const long best = best_open(choice, is_open, count);
            is_open[best] = 0;
            job->room->chosen[row * per_row + j] = (int32_t)best;
            weights[j] = scores[best];
            total += scores[best];
        }
        for (long j = 0; j < per_row; j++)
            weights[j] = (experts->is_renormalised ? weights[j] / total : weights[j]) * experts->scale;
        for (long j = 0; experts->expert_scales && j < per_row; j++)
            weights[j] *= experts->expert_scales[job->room->chosen[row * per_row + j]];
    }
}

// Where each pair is among those sorted by expert, rows of an expert in their order; and the runs.
static long sort_pairs(const ExpertsJob *job) {
    const Experts *experts = job->experts;
    const ExpertsRoom *room = job->room;
    const long num_pairs = job->num_rows * experts->per_row, hidden = experts->router->width;
    const long inner = experts->experts->down->width;
    memset(room->ends, 0, (size_t)(experts->num_experts + 1) * sizeof *room->ends);
    for (long pair = 0; pair < num_pairs; pair++) room->ends[room->chosen[pair] + 1]++;
    for (long e = 0; e < experts->num_experts; e++) room->ends[e + 1] += room->ends[e];
    for (long pair = 0; pair < num_pairs; pair++) room->places[pair] = room->ends[room->chosen[pair]]++;
    long count = 0;
    const int is_placed = places_x(job->is_bf16);
    const long hidden_room = x_room(hidden, job->is_bf16), inner_room = x_room(inner, job->is_bf16);
    if (experts->shared.down)
        room->runs[count++] = (Run){
            .expert = &experts->shared, .x = is_placed ? room->placed_shared_x : job->x, .inner = room->shared_inner,
            .inner_x = is_placed ? room->placed_shared_inner : room->shared_inner, .out = room->shared, .num_rows = job->num_rows};
    for (long e = 0; e < experts->num_experts; e++) {
        const long first = e ? room->ends[e - 1] : 0;
        if (room->ends[e] == first) continue;
        void *own_inner = (void *)at(room->inner, first * inner, job->is_bf16);
        room->runs[count++] = (Run){
            .expert = &experts->experts[e], .x = (char *)room->x + first * hidden_room * x_item(job->is_bf16), .inner = own_inner,
            .inner_x = is_placed ? room->placed_inner + first * inner_room * x_item(job->is_bf16) : own_inner,
            .out = (void *)at(room->parts, first * hidden, job->is_bf16), .num_rows = room->ends[e] - first};
    }
    return count;
}

// How many tasks each loop has.
static void count_run_tasks(Run *runs, long num_runs, long num_tasks[3]) {
    num_tasks[0] = num_tasks[1] = num_tasks[2] = 0;
    for (Run *run = runs; run < runs + num_runs; run++) {
        run->num_chunks = num_chunks(run->num_rows);
        run->first_task[0] = num_tasks[0];
        run->first_task[1] = num_tasks[1];
        run->first_task[2] = num_tasks[2];
        num_tasks[0] += num_panels(run->expert->gate_up) * run->num_chunks;
        num_tasks[1] += num_panels(run->expert->down) * run->num_chunks;
        num_tasks[2] += tasks_of(run->num_rows);
    }
}

static void gather_task(const void *argument, long task, int thread) {
    const ExpertsJob *job = argument;
    const ExpertsRoom *room = job->room;
    const long per_row = job->experts->per_row, hidden = job->experts->router->width;
    const long row_bytes = x_room(hidden, job->is_bf16) * x_item(job->is_bf16);
    (void)thread;
    for (long pair = task * TASK_TOKENS; pair < end_of(task, job->num_rows * per_row); pair++) {
        const long e = room->chosen[pair], first = e ? room->ends[e - 1] : 0;
        place_row(job->experts->experts[e].gate_up, at(job->x, pair / per_row * hidden, job->is_bf16),
                  (char *)room->x + first * row_bytes, room->places[pair] - first, room->ends[e] - first);
    }
}

static inline const Run *run_of(const ExpertsJob *job, long task, int loop) {
    long low = 0, high = job->num_runs - 1;
    while (low < high) {
        const long middle = (low + high + 1) / 2;
        if (job->room->runs[middle].first_task[loop] <= task) low = middle;
        else high = middle - 1;
    }
    return &job->room->runs[low];
}

static inline void run_task(const ExpertsJob *job, long task, int thread, const int loop) {
    const Run *run = run_of(job, task, loop);
    const Linear *linear = loop ? run->expert->down : run->expert->gate_up;
    const long nth = task - run->first_task[loop];
    const ProductJob product_job = {
        .linear = linear, .x = loop ? run->inner_x : run->x, .y = loop ? run->out : run->inner,
        .y_stride = linear->num_outputs, .num_rows = run->num_rows, .num_chunks = run->num_chunks, .threads = job->threads};
    const Run *next_run = run_of(job, task + 1, loop);
    const Linear *next_linear = loop ? next_run->expert->down : next_run->expert->gate_up;
    panel_rows(&product_job, nth % num_panels(linear), nth / num_panels(linear),
               panel_at(next_linear, (task + 1 - next_run->first_task[loop]) % num_panels(next_linear)), thread);
}

// Rows of a run to where products by `down` take them from.
static void place_inner_task(const void *argument, long task, int thread) {
    const ExpertsJob *job = argument;
    const Run *run = run_of(job, task, 2);
    const Linear *down = run->expert->down;
    const long nth = task - run->first_task[2];
    (void)thread;
    for (long row = nth * TASK_TOKENS; row < end_of(nth, run->num_rows); row++)
        place_row(down, at(run->inner, row * down->width, job->is_bf16), run->inner_x, row, run->num_rows);
}

static void up_task(const void *argument, long task, int thread) { run_task(argument, task, thread, 0); }
static void down_task(const void *argument, long task, int thread) { run_task(argument, task, thread, 1); }

static inline __attribute__((always_inline)) void sum_rows(const ExpertsJob *job, long task, const int is_bf16) {
    const Experts *experts = job->experts;
    const ExpertsRoom *room = job->room;
    const long per_row = experts->per_row, width = experts->router->width;
    for (long row = task * TASK_TOKENS; row < end_of(task, job->num_rows); row++) {
        const int64_t *places = room->places + row * per_row;
        const float *weights = room->weights + row * per_row;
        vfloat shared_weight = vset(1.0f);
        if (experts->shared_gate)
            shared_weight = vrounded(1.0f / (1.0f + vexp(-vset(load_any(room->shared_gates, row, is_bf16)))), is_bf16);
        for (long i = 0; i < width; i += LANES) {
            vfloat sum = {};
            for (long j = 0; j < per_row; j++)
                sum = vfma(vset(weights[j]), vload_some(room->parts, places[j] * width + i, width - i, is_bf16), sum);
            if (experts->shared.down) {
                const vfloat shared = vload_some(room->shared, row * width + i, width - i, is_bf16);
                sum = vrounded(sum, is_bf16) + vrounded(shared_weight * shared, is_bf16);
            }
            vstore_some(job->out, row * width + i, width - i, sum, is_bf16);
        }
    }
}

static void sum_task(const void *argument, long task, int thread) {
    const ExpertsJob *job = argument;
    (void)thread;
    if (job->is_bf16) sum_rows(job, task, 1);
    else sum_rows(job, task, 0);
}

// out[rows, hidden] = the experts' sum for x, chosen by router_x. `room`: of pagoda_experts_bytes, at a multiple of 64.
static void experts_sum(Threads *threads, const Experts *experts, const void *x, const void *router_x, long num_rows,
                        void *out, void *memory) {
    ExpertsRoom room;
    long num_tasks[3];
    if (!num_rows) return;
    lay_out_experts(experts, num_rows, memory, &room);
    ExpertsJob job = {.experts = experts, .room = &room, .x = x, .router_x = router_x, .out = out, .num_rows = num_rows,
                      .is_bf16 = experts->experts->gate_up->is_bf16, .threads = threads};
    const long num_pairs = num_rows * experts->per_row;
    const int is_placed = places_x(job.is_bf16);
    if (reads_widened(experts)) in_parallel(threads, widen_task, &job, tasks_of(num_rows));
    product(threads, experts->router, reads_widened(experts) ? room.widened : router_x, num_rows, room.logits, NULL, NULL);
    if (experts->shared_gate) product(threads, experts->shared_gate, x, num_rows, room.shared_gates, NULL, NULL);
    in_parallel(threads, route_task, &job, tasks_of(num_rows));
    job.num_runs = sort_pairs(&job);
    count_run_tasks(room.runs, job.num_runs, num_tasks);
    in_parallel(threads, gather_task, &job, tasks_of(num_pairs));
    if (is_placed && experts->shared.down) place_rows(threads, experts->shared.gate_up, x, num_rows, room.placed_shared_x);
    in_parallel(threads, up_task, &job, num_tasks[0]);
    if (is_placed && num_pairs * experts->experts->down->width <= PLACE_NUMBERS)  // sooner than others are woken
        for (long task = 0; task < num_tasks[2]; task++) place_inner_task(&job, task, 0);
    else if (is_placed) in_parallel(threads, place_inner_task, &job, num_tasks[2]);
    in_parallel(threads, down_task, &job, num_tasks[1]);
    in_parallel(threads, sum_task, &job, tasks_of(num_rows));
}

void pagoda_experts(
    Threads *threads, const Experts *experts, const void *x, const void *router_x, int64_t num_rows, void *out,
    void *memory) {
    enter(threads);
    experts_sum(threads, experts, x, router_x, num_rows, out, memory);
    leave(threads);
}
