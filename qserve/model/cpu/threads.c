/* A pool of threads that keeps a step's time when a core is taken away.

   OpenMP's regions end when every thread has arrived: one that is not scheduled holds all others up, and each region
   costs a wake-up or spinning that takes the core from somebody else. Here a thread that is late finds its work done by
   others: a phase is a counter of tasks, and it ends when its tasks are done, whoever did them. Between phases helpers
   look for the next for some microseconds, then they sleep (futex).

   One word, `ticket`, holds the phase, its number of tasks and the next one: who draws a task knows without another look
   whether it exists, and while it is not done its phase can't end. */

#define _GNU_SOURCE

#include "threads.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#include <sched.h>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

int omp_get_max_threads(void); /* not every compiler that knows OpenMP brings its header */

enum { INDEX_BITS = 24, MOST_THREADS = 256, CACHE_LINE = 64 };
/* Looks at the ticket before a helper sleeps, and at the count before the caller gives its core away: some 50 and 100 us. */
enum { LOOKS_AWAKE = 3000, LOOKS_ON_CORE = 5000 };
static const uint64_t ONE_PHASE = (uint64_t)1 << (2 * INDEX_BITS);
static const uint64_t INDEX = ((uint64_t)1 << INDEX_BITS) - 1;

static struct {
    _Alignas(CACHE_LINE) _Atomic uint64_t ticket; /* phase (16 bits) | number of tasks (24) | next task (24) */
    _Alignas(CACHE_LINE) _Atomic long num_done;
    _Alignas(CACHE_LINE) _Atomic uint32_t wakes; /* the futex: changes when sleepers are to look */
    _Atomic long num_asleep;
    _Alignas(CACHE_LINE) task run;
    void *shared;
    long size;    /* threads with the caller's; 0: OpenMP computes */
    long started; /* besides the caller's */
    pid_t process; /* that has the threads; a fork has none */
    pthread_mutex_t busy, starting;
} pool = {.busy = PTHREAD_MUTEX_INITIALIZER, .starting = PTHREAD_MUTEX_INITIALIZER};

static inline void look_again(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void sleep_until_woken(uint32_t seen) {
#ifdef __linux__
    syscall(SYS_futex, (uint32_t *)&pool.wakes, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
#else
    (void)seen;
    usleep(50);
#endif
}

static void wake_sleepers(void) {
    atomic_fetch_add(&pool.wakes, 1);
#ifdef __linux__
    syscall(SYS_futex, (uint32_t *)&pool.wakes, FUTEX_WAKE_PRIVATE, MOST_THREADS, NULL, NULL, 0);
#endif
}

static int has_task(uint64_t ticket) { return (ticket & INDEX) < ((ticket >> INDEX_BITS) & INDEX); }

/* Tasks of the phase at hand until none is left. */
static void work(void) {
    while (has_task(atomic_load_explicit(&pool.ticket, memory_order_relaxed))) {
        const uint64_t drawn = atomic_fetch_add_explicit(&pool.ticket, 1, memory_order_acq_rel);
        if (!has_task(drawn)) return;
        pool.run(pool.shared, (long)(drawn & INDEX));
        atomic_fetch_add_explicit(&pool.num_done, 1, memory_order_release);
    }
}

static void *help(void *unused) {
    for (;;) {
        const uint32_t seen = atomic_load(&pool.wakes);
        for (int look = 0; look < LOOKS_AWAKE; look++) {
            if (has_task(atomic_load_explicit(&pool.ticket, memory_order_relaxed))) {
                work();
                look = 0;
            }
            look_again();
        }
        atomic_fetch_add(&pool.num_asleep, 1);
        if (!has_task(atomic_load(&pool.ticket))) sleep_until_woken(seen);
        atomic_fetch_sub(&pool.num_asleep, 1);
    }
    return unused;
}

/* From now on `size` threads with the caller's are there for `for_each`, in place of OpenMP's; 0: OpenMP's again.
   A pool only grows. */
void use_threads(long size) {
    pthread_mutex_lock(&pool.starting);
    size = size > MOST_THREADS ? MOST_THREADS : size;
    if (pool.process != getpid()) pool.started = 0;
    while (pool.started + 1 < size) {
        pthread_t thread;
        pthread_attr_t detached;
        pthread_attr_init(&detached);
        pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
        const int failed = pthread_create(&thread, &detached, help, NULL);
        pthread_attr_destroy(&detached);
        if (failed) break; /* as many as there may be */
        pool.started++;
    }
    pool.size = size ? pool.started + 1 : 0;
    pool.process = getpid();
    pthread_mutex_unlock(&pool.starting);
}

long num_threads(void) { return pool.size ? pool.size : omp_get_max_threads(); }

static void by_pool(long num, task run, void *shared) {
    pool.run = run;
    pool.shared = shared;
    atomic_store_explicit(&pool.num_done, 0, memory_order_relaxed);
    const uint64_t phase = (atomic_load(&pool.ticket) & ~(ONE_PHASE - 1)) + ONE_PHASE;
    atomic_store(&pool.ticket, phase | (uint64_t)num << INDEX_BITS);
    if (atomic_load(&pool.num_asleep)) wake_sleepers();
    work();
    for (long look = 0; atomic_load_explicit(&pool.num_done, memory_order_acquire) < num; look++) {
        if (look > LOOKS_ON_CORE) sched_yield(); /* the thread that has the last task may be waiting for this core */
        else look_again();
    }
}

void for_each(long num, task run, void *shared) {
    if (num == 1 || (pool.size == 1 && pool.process == getpid())) {
        for (long i = 0; i < num; i++) run(shared, i);
        return;
    }
    if (!pool.size) {
#pragma omp parallel for schedule(dynamic)
        for (long i = 0; i < num; i++) run(shared, i);
        return;
    }
    /* Another thread has the pool, or it stayed behind in the process that this one was forked from. */
    if (num > (long)INDEX || pool.process != getpid() || pthread_mutex_trylock(&pool.busy)) {
        for (long i = 0; i < num; i++) run(shared, i);
        return;
    }
    by_pool(num, run, shared);
    pthread_mutex_unlock(&pool.busy);
}

void *scratch(int slot, size_t bytes) {
    static _Thread_local struct { void *memory; size_t bytes; } kept[SCRATCH_SLOTS];
    if (kept[slot].bytes < bytes) {
        free(kept[slot].memory);
        kept[slot].memory = aligned_alloc(CACHE_LINE, (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE);
        kept[slot].bytes = kept[slot].memory ? bytes : 0;
    }
    return kept[slot].memory;
}
