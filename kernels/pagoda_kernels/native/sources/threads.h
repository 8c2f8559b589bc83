// A few threads that share loops. Each claims tasks one by one from a part of them that is its own, then from what is left of the
// others': a thread that the system takes off its processor costs the others one task, not the loop; and what is side by side,
// like the outputs of one panel and the next, one thread writes and another does not.
//
// Workers of one machine can share its processors: each has a seat, where it says when it computes, and takes
// as many threads as there are processors for each that does at that moment. Who idles lends his to the others.
//
// A ticket is (end, next task) of a part in one word, so that a claim is one addition, and tells whether there is work without a
// look at anything that may change.

#pragma once

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "amx.h"
#include "upcoming.h"
#include "vectors.h"

#define MAX_THREADS 256
#define SPINS 4000          // looks for work before a helper sleeps: about 50 us
#define NUM_SEATS 16
#define WIDE_NUMBERS (8L << 20)  // what nobody writes to takes no memory
#define BUSY_NANOSECONDS 5000000  // who began no task for so long does not compute
#define LATE_NANOSECONDS 400000   // behind the others: a helper with a task so long has lost its processor

typedef void (*TaskFunction)(const void *job, long task, int thread);

typedef struct {
    _Atomic int64_t last_task __attribute__((aligned(64)));  // when one began, in CLOCK_MONOTONIC
} Seat;

typedef struct {
    _Atomic uint64_t ticket __attribute__((aligned(64)));
    _Atomic int has_task;
    int amx_rows;  // that its tile registers are for (amx.h)
} Working;

typedef struct Threads {
    _Atomic uint32_t num_done __attribute__((aligned(64)));
    TaskFunction function __attribute__((aligned(64)));
    const void *job;
    _Atomic uint32_t epoch __attribute__((aligned(64)));  // grows with every loop; helpers sleep on it
    _Atomic uint32_t num_asleep;
    _Atomic int is_closing;
    int num_threads;
    _Atomic int limit;  // threads that work now: those below it. Others sleep on it
    Seat *seats;        // [NUM_SEATS] or NULL: nobody shares
    int seat;           // ours
    cpu_set_t processors;  // that may be used
    int main_processor;    // which helpers keep away from; -1: none yet, or one has it
    Working working[MAX_THREADS];
    Upcoming upcoming;
    pthread_mutex_t mutex;  // held by who computes: one at a time
    char *scratch;
    size_t scratch_bytes;  // of each thread
    float *wide_x;         // [WIDE_NUMBERS] of all threads: x of a product, if it takes floats
    pthread_t helpers[MAX_THREADS];
} Threads;

static inline void pause_briefly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline void *scratch_of(const Threads *threads, int thread) {
    return threads->scratch + threads->scratch_bytes * (size_t)thread;
}

// Have the tile registers of a thread that has a task, for so many rows at a time: all of them if they are fewer than a tile's.
static inline void take_amx(Threads *threads, int thread, long num_rows) {
    amx_configure(&threads->working[thread].amx_rows, num_rows < AMX_ROWS ? (int)num_rows : AMX_ROWS);
}

// Who computes does so alone, from one to the other. Behind them his tile registers are anybody's.
static inline void enter(Threads *threads) { pthread_mutex_lock(&threads->mutex); }
static inline void leave(Threads *threads) {
    amx_release(&threads->working[0].amx_rows);
    pthread_mutex_unlock(&threads->mutex);
}

static inline int has_task(uint64_t ticket) { return (uint32_t)ticket < ticket >> 32; }

static inline void wake(void *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, MAX_THREADS, NULL, NULL, 0); }

static inline int64_t nanoseconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

// Say that we compute; return when that was.
static inline int64_t take_seat(Threads *threads) {
    const int64_t nanoseconds = nanoseconds_now();
    atomic_store_explicit(&threads->seats[threads->seat].last_task, nanoseconds, memory_order_relaxed);
    return nanoseconds;
}

// Workers at the other seats that compute.
static inline int num_others(const Threads *threads, int64_t now) {
    int num_busy = 0;
    for (int i = 0; i < NUM_SEATS; i++)
        num_busy += i != threads->seat &&
            now - atomic_load_explicit(&threads->seats[i].last_task, memory_order_relaxed) < BUSY_NANOSECONDS;
    return num_busy;
}

// Have as many threads work as are ours now.
static inline void share(Threads *threads) {
    const int num_busy = 1 + num_others(threads, take_seat(threads));
    const int limit = num_busy < threads->num_threads ? threads->num_threads / num_busy : 1;
    const int before = atomic_exchange(&threads->limit, limit);
    if (limit > before) wake(&threads->limit);
}

// Take tasks of the part of `whose` until there are none; return whether there was one.
static inline int work_on(Threads *threads, int thread, int whose) {
    _Atomic uint64_t *ticket = &threads->working[whose].ticket;
    int has_worked = 0;
    while (has_task(atomic_load_explicit(ticket, memory_order_acquire))) {
        if (thread >= atomic_load_explicit(&threads->limit, memory_order_relaxed)) break;
        const uint64_t mine = atomic_fetch_add_explicit(ticket, 1, memory_order_acq_rel);
        if (!has_task(mine)) break;
        // The loop is not over before this task is: nobody changes function and job.
        if (threads->seats && !thread) take_seat(threads);
        atomic_store_explicit(&threads->working[thread].has_task, 1, memory_order_relaxed);
        threads->function(threads->job, (long)(uint32_t)mine, thread);
        atomic_store_explicit(&threads->working[thread].has_task, 0, memory_order_relaxed);
        atomic_fetch_add_explicit(&threads->num_done, 1, memory_order_release);
        has_worked = 1;
    }
    return has_worked;
}

// The same of all parts, the thread's own first.
static inline int work(Threads *threads, int thread) {
    int has_worked = 0;
    for (int i = 0; i < threads->num_threads; i++)
        has_worked |= work_on(threads, thread, (thread + i) % threads->num_threads);
    return has_worked;
}

typedef struct {
    Threads *threads;
    int thread;
} Helper;

static void *help(void *argument) {
    Helper helper = *(Helper *)argument;
    free(argument);
    Threads *threads = helper.threads;
    uint32_t seen = 0;  // the last epoch that has no task for us
    for (int spins = 0;;) {
        const uint32_t epoch = atomic_load(&threads->epoch);  // before anything that changes with it
        int limit = atomic_load(&threads->limit);
        if (atomic_load(&threads->is_closing)) return NULL;
        if (helper.thread >= limit) {
            amx_release(&threads->working[helper.thread].amx_rows);
            syscall(SYS_futex, &threads->limit, FUTEX_WAIT_PRIVATE, limit, NULL, NULL, 0);
            seen = epoch - 1;
        } else if (epoch != seen) {
            if (work(threads, helper.thread)) spins = 0;
            else seen = epoch;
        } else if (++spins < SPINS) {
            pause_briefly();
        } else {
            amx_release(&threads->working[helper.thread].amx_rows);
            atomic_fetch_add(&threads->num_asleep, 1);
            syscall(SYS_futex, &threads->epoch, FUTEX_WAIT_PRIVATE, epoch, NULL, NULL, 0);
            atomic_fetch_sub(&threads->num_asleep, 1);
            spins = 0;
        }
    }
}

// A helper that is woken is often put on the processor of whoever woke it, and waits there for the loop to end
// that it should share. So helpers may not use that one.
static inline void keep_away(Threads *threads) {
    const int processor = sched_getcpu();
    if (processor == threads->main_processor || processor < 0) return;
    threads->main_processor = processor;
    cpu_set_t others = threads->processors;
    CPU_CLR(processor, &others);
    if (!CPU_COUNT(&others)) return;
    for (int i = 1; i < threads->num_threads; i++)
        pthread_setaffinity_np(threads->helpers[i], sizeof others, &others);
}

// The only helper that has a task yet gets our processor if his own computes for another worker, maybe for
// milliseconds.
static inline void lend_processor(Threads *threads, int64_t now) {
    int late = 0;
    if (!threads->seats || threads->main_processor < 0 || !num_others(threads, now)) return;
    for (int i = 1; i < threads->num_threads; i++) {
        if (!atomic_load_explicit(&threads->working[i].has_task, memory_order_relaxed)) continue;
        if (late) return;
        late = i;
    }
    if (!late) return;
    cpu_set_t ours;
    CPU_ZERO(&ours);
    CPU_SET(threads->main_processor, &ours);
    pthread_setaffinity_np(threads->helpers[late], sizeof ours, &ours);
    threads->main_processor = -1;  // the next loop sends him away again
}

// Do function(job, i) for i in [0, num_tasks) on all threads; what it wrote is there on return.
static void in_parallel(Threads *threads, TaskFunction function, const void *job, long num_tasks) {
    if (num_tasks <= 1 || threads->num_threads == 1) {
        for (long task = 0; task < num_tasks; task++) function(job, task, 0);
        return;
    }
    keep_away(threads);
    if (threads->seats) share(threads);
    threads->function = function;
    threads->job = job;
    atomic_store_explicit(&threads->num_done, 0, memory_order_relaxed);
    const int limit = atomic_load_explicit(&threads->limit, memory_order_relaxed);
    const long parts = limit < threads->num_threads ? limit : threads->num_threads;
    for (long part = 0; part < parts; part++) {
        const uint64_t first = (uint64_t)(num_tasks * part / parts), end = (uint64_t)(num_tasks * (part + 1) / parts);
        atomic_store_explicit(&threads->working[part].ticket, end << 32 | first, memory_order_release);
    }
    atomic_fetch_add(&threads->epoch, 1);
    if (atomic_load(&threads->num_asleep)) wake(&threads->epoch);
    work(threads, 0);
    int64_t late_from = 0;
    for (int spins = 0; atomic_load_explicit(&threads->num_done, memory_order_acquire) != (uint32_t)num_tasks;) {
        if (++spins < SPINS) {
            pause_briefly();
            continue;
        }
        const int64_t now = nanoseconds_now();
        if (spins == SPINS) late_from = now + LATE_NANOSECONDS;
        else if (now > late_from) lend_processor(threads, now);
        sched_yield();  // a helper lost its processor in the middle of a task
    }
}

void pagoda_close_threads(Threads *threads) {
    atomic_store(&threads->is_closing, 1);
    atomic_fetch_add(&threads->epoch, 1);
    wake(&threads->epoch);
    atomic_store(&threads->limit, 0);  // whoever read it before does not sleep on it now
    wake(&threads->limit);
    for (int i = 1; i < threads->num_threads; i++) pthread_join(threads->helpers[i], NULL);
    free(threads->scratch);
    free(threads->wide_x);
    free(threads);
}

// Of as many threads as can be had, `num_threads` at most; NULL if there is no memory, or the system denies what is computed with.
Threads *pagoda_open_threads(int num_threads, size_t scratch_bytes) {
    Threads *threads = NULL;
    if (num_threads > MAX_THREADS) num_threads = MAX_THREADS;
    if (num_threads < 1 || !amx_is_permitted() || posix_memalign((void **)&threads, 64, sizeof *threads))
        return NULL;
    memset(threads, 0, sizeof *threads);
    threads->num_threads = 1;
    threads->main_processor = -1;
    sched_getaffinity(0, sizeof threads->processors, &threads->processors);
    atomic_store(&threads->limit, MAX_THREADS);
    pthread_mutex_init(&threads->mutex, NULL);
    threads->scratch_bytes = (scratch_bytes + 4095) / 4096 * 4096;
    if (posix_memalign((void **)&threads->scratch, 4096, threads->scratch_bytes * (size_t)num_threads)) {
        free(threads);
        return NULL;
    }
    if (posix_memalign((void **)&threads->wide_x, 4096, WIDE_NUMBERS * sizeof *threads->wide_x)) {
        free(threads->scratch);
        free(threads);
        return NULL;
    }
    for (int i = 1; i < num_threads; i++) {
        Helper *helper = malloc(sizeof *helper);
        if (helper) *helper = (Helper){threads, i};
        if (!helper || pthread_create(&threads->helpers[i], NULL, help, helper)) {
            free(helper);
            break;
        }
        threads->num_threads++;
    }
    return threads;
}

// From now on share processors with those at the other seats; before the threads' first work.
void pagoda_share_processors(Threads *threads, Seat *seats, int seat) {
    threads->seats = seats;
    threads->seat = seat;
}
