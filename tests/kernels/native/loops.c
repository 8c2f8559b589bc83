// Loops that threads share: each task is done once, whoever has it, and nobody waits for a thread that does not get on.

#define _GNU_SOURCE
#include <stdio.h>

#include "pagoda.c"

#define MOST_TASKS 300

static _Atomic int times[MOST_TASKS], num_begun;

static void check(int is_right, const char *what, long num_tasks) {
    if (is_right) return;
    fprintf(stderr, "%s, of %ld tasks\n", what, num_tasks);
    exit(1);
}

static void count(const void *job, long task, int thread) {
    (void)job, (void)thread;
    atomic_fetch_add(&times[task], 1);
}

static void each_task_is_done_once(Threads *threads) {
    uint32_t random = 7;
    for (long loop = 0; loop < 20000; loop++) {
        random = random * 1664525 + 1013904223;
        const long num_tasks = random >> 16 & 1 ? random >> 20 & 7 : (random >> 20) % MOST_TASKS;
        // As a neighbour's worker does that comes or goes.
        if (loop % 16 == 0) atomic_store(&threads->limit, 1 + (int)(random >> 8) % threads->num_threads), wake(&threads->limit);
        for (long i = 0; i < MOST_TASKS; i++) atomic_store_explicit(&times[i], 0, memory_order_relaxed);
        in_parallel(threads, count, NULL, num_tasks);
        for (long i = 0; i < MOST_TASKS; i++) check(times[i] == (i < num_tasks), "not done once", num_tasks);
    }
    atomic_store(&threads->limit, MAX_THREADS), wake(&threads->limit);
}

// The first task of the second part ends when all others have begun.
static void wait_for_all(const void *job, long task, int thread) {
    const long num_tasks = *(const long *)job;
    (void)thread;
    atomic_fetch_add(&num_begun, 1);
    while (task == num_tasks / 2 && atomic_load(&num_begun) < num_tasks) sched_yield();
}

static void nobody_waits_for_what_others_could_do(Threads *threads) {
    for (long num_tasks = 2; num_tasks < 200; num_tasks++) {
        atomic_store(&num_begun, 0);
        in_parallel(threads, wait_for_all, &num_tasks, num_tasks);
        check(num_begun == num_tasks, "not all were begun", num_tasks);
    }
}

int main(void) {
    for (int num_threads = 1; num_threads <= 4; num_threads++) {
        Threads *threads = pagoda_open_threads(num_threads, 1 << 12);
        each_task_is_done_once(threads);
        if (num_threads == 2) nobody_waits_for_what_others_could_do(threads);
        pagoda_close_threads(threads);
    }
    puts("done");
    return 0;
}
