#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/threads.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/memory.h"

/* How long a helper polls for the next loop before it sleeps. Decode starts hundreds of loops per token, a few
 * microseconds apart: sleeping in between would cost more than the work. */
#define SPIN_ROUNDS 4000

/* The state of the current loop in one word, so that joining it is one step: its number, whether it can still be
 * joined, and how many helpers are in it. The description below changes only while nobody is in and nobody can join;
 * the caller closes the loop when the items have run out and waits for those inside, never for those who are late. */
#define LOOP_NUMBER(state) ((uint32_t)((state) >> 32))
#define LOOP_OPEN ((uint64_t)1 << 31)
#define LOOP_ACTIVE (LOOP_OPEN - 1)

struct l3_pool {
    uint32_t threads; /* the caller included */
    uint32_t started;
    pthread_t *handles;

    pthread_mutex_t turn; /* held by the caller whose loop runs */
    l3_task_fn task;
    void *context;
    uint32_t count;
    uint32_t grain;
    _Atomic uint32_t next; /* first item not yet handed out */
    _Atomic uint64_t state;
    _Atomic uint32_t sleepers;
    _Atomic bool waking; /* sleepers have been called and have not yet risen */
    _Atomic bool stop;
    pthread_mutex_t lock;
    pthread_cond_t wake;
};

typedef struct worker_start {
    l3_pool *pool;
    uint32_t thread;
    cpu_set_t cores;
    bool pin;
} worker_start;

static inline void cpu_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void work(l3_pool *pool, uint32_t thread) {
    uint32_t count = pool->count;
    uint32_t grain = pool->grain;
    for (;;) {
        uint32_t first = atomic_fetch_add_explicit(&pool->next, grain, memory_order_relaxed);
        uint32_t last;
        if (first >= count) {
            return;
        }
        last = count - first < grain ? count : first + grain;
        pool->task(pool->context, first, last, thread);
    }
}

/* Waits for a loop other than number `seen`, or for the end; returns the state that was found. */
static uint64_t wait_for_loop(l3_pool *pool, uint32_t seen) {
    uint64_t state;
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        state = atomic_load_explicit(&pool->state, memory_order_acquire);
        if (LOOP_NUMBER(state) != seen) {
            return state;
        }
        cpu_relax();
    }
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleepers, 1);
    for (;;) {
        /* Before every look, and not only before the first: the call for loop `seen` itself may come when its helper
         * has done the loop and sleeps again, and must not keep the next call from being made. */
        atomic_store(&pool->waking, false);
        state = atomic_load(&pool->state);
        if (LOOP_NUMBER(state) != seen || atomic_load(&pool->stop)) {
            break;
        }
        pthread_cond_wait(&pool->wake, &pool->lock);
    }
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
    return state;
}

/* Joins the loop that was found, unless it has been closed. */
static bool join_loop(l3_pool *pool, uint64_t state) {
    uint32_t number = LOOP_NUMBER(state);
    while ((state & LOOP_OPEN) != 0 && LOOP_NUMBER(state) == number) {
        if (atomic_compare_exchange_weak_explicit(&pool->state, &state, state + 1, memory_order_acquire,
                                                  memory_order_acquire)) {
            return true;
        }
    }
    return false;
}

static void *worker_main(void *argument) {
    worker_start start = *(worker_start *)argument;
    l3_pool *pool = start.pool;
    uint32_t seen = 0;
    l3_free(argument);
    if (start.pin) {
        /* A preference: a container may refuse it. */
        (void)pthread_setaffinity_np(pthread_self(), sizeof start.cores, &start.cores);
    }
    for (;;) {
        uint64_t state = wait_for_loop(pool, seen);
        if (atomic_load(&pool->stop)) {
            return NULL;
        }
        seen = LOOP_NUMBER(state);
        if (join_loop(pool, state)) {
            work(pool, start.thread);
            atomic_fetch_sub_explicit(&pool->state, 1, memory_order_release);
        }
    }
}

l3_status l3_pool_create(uint32_t threads, const int *cores, uint32_t core_count, l3_pool **out, l3_error *err) {
    l3_pool *pool = NULL;
    l3_status status;
    *out = NULL;
    if (threads == 0 || threads > L3_MAX_THREADS) {
        return l3_fail(err, L3_E_ARG, "%u threads asked for; 1 to %u are possible", threads, L3_MAX_THREADS);
    }
    pool = l3_alloc(1, sizeof *pool);
    if (pool == NULL) {
        return l3_fail(err, L3_E_MEMORY, "no memory for the thread pool");
    }
    pool->threads = threads;
    pthread_mutex_init(&pool->turn, NULL);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pool->handles = l3_alloc(threads, sizeof *pool->handles);
    if (pool->handles == NULL) {
        status = l3_fail(err, L3_E_MEMORY, "no memory for %u thread handles", threads);
        goto fail;
    }
    for (uint32_t i = 1; i < threads; i++) {
        worker_start *start = l3_alloc(1, sizeof *start);
        int rc;
        if (start == NULL) {
            status = l3_fail(err, L3_E_MEMORY, "no memory to start thread %u", i);
            goto fail;
        }
        start->pool = pool;
        start->thread = i;
        CPU_ZERO(&start->cores);
        start->pin = false;
        for (uint32_t c = 0; cores != NULL && c < core_count; c++) {
            if (cores[c] >= 0 && cores[c] < CPU_SETSIZE) {
                CPU_SET((size_t)cores[c], &start->cores);
                start->pin = true;
            }
        }
        rc = pthread_create(&pool->handles[i], NULL, worker_main, start);
        if (rc != 0) {
            l3_free(start);
            status = l3_fail_errno(err, L3_E_MEMORY, rc, "thread %u of %u could not be started", i, threads);
            goto fail;
        }
        pool->started++;
    }
    *out = pool;
    return L3_OK;
fail:
    l3_pool_destroy(pool);
    return status;
}

void l3_pool_destroy(l3_pool *pool) {
    if (pool == NULL) {
        return;
    }
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->stop, true);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 1; i <= pool->started; i++) {
        pthread_join(pool->handles[i], NULL);
    }
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    pthread_mutex_destroy(&pool->turn);
    l3_free(pool->handles);
    l3_free(pool);
}

uint32_t l3_pool_threads(const l3_pool *pool) { return pool->threads; }

uint32_t l3_pool_grain(const l3_pool *pool, uint32_t count, uint64_t bytes_per_item) {
    /* What a core reads in the time that it takes to share a loop out. */
    const uint64_t least_bytes = 32768;
    uint64_t least = bytes_per_item > 0 ? least_bytes / bytes_per_item + 1 : count;
    uint64_t fair = count / (pool->threads * 8u);
    uint64_t grain = fair > least ? fair : least;
    return grain < UINT32_MAX ? (uint32_t)grain : UINT32_MAX;
}

/* Opens the next loop, whose description is complete, and calls the sleepers. */
static void open_loop(l3_pool *pool) {
    uint64_t state = atomic_load_explicit(&pool->state, memory_order_relaxed);
    uint64_t number = (uint64_t)LOOP_NUMBER(state) + 1;
    /* Sequentially consistent against the sleepers' check under the lock: either it sees the new loop, or we see it
     * asleep. */
    atomic_store(&pool->state, (number << 32) | LOOP_OPEN);
    if (atomic_load(&pool->sleepers) > 0 && !atomic_exchange(&pool->waking, true)) {
        pthread_mutex_lock(&pool->lock);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->lock);
    }
}

void l3_pool_run(l3_pool *pool, l3_task_fn task, void *context, uint32_t count, uint32_t grain) {
    uint32_t spins = 0;
    if (grain == 0) {
        grain = 1;
    }
    if (pool->started == 0 || count <= grain) {
        if (count > 0) {
            task(context, 0, count, 0);
        }
        return;
    }
    pthread_mutex_lock(&pool->turn);
    pool->task = task;
    pool->context = context;
    pool->count = count;
    pool->grain = grain;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    open_loop(pool);
    work(pool, 0);
    atomic_fetch_and(&pool->state, ~LOOP_OPEN);
    while ((atomic_load_explicit(&pool->state, memory_order_acquire) & LOOP_ACTIVE) != 0) {
        cpu_relax();
        if (++spins % 1024 == 0) {
            sched_yield(); /* more threads than cores: let the one we wait for run */
        }
    }
    pthread_mutex_unlock(&pool->turn);
}
