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

struct l3_pool {
    uint32_t threads; /* the caller included */
    uint32_t started;
    pthread_t *handles;

    pthread_mutex_t turn; /* held by the caller whose loop runs */
    l3_task_fn task;
    void *context;
    uint32_t count;
    uint32_t grain;
    _Atomic uint32_t next;       /* first item not yet handed out */
    _Atomic uint32_t generation; /* odd/even does not matter; a change starts a loop */
    _Atomic uint32_t finished;   /* helpers that are done with the current loop */
    _Atomic uint32_t sleepers;
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

/* Returns when the generation differs from `seen` or the pool stops. */
static void wait_for_loop(l3_pool *pool, uint32_t seen) {
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        if (atomic_load_explicit(&pool->generation, memory_order_acquire) != seen) {
            return;
        }
        cpu_relax();
    }
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleepers, 1);
    while (atomic_load(&pool->generation) == seen && !atomic_load(&pool->stop)) {
        pthread_cond_wait(&pool->wake, &pool->lock);
    }
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
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
        wait_for_loop(pool, seen);
        if (atomic_load(&pool->stop)) {
            return NULL;
        }
        seen = atomic_load_explicit(&pool->generation, memory_order_acquire);
        work(pool, start.thread);
        atomic_fetch_add_explicit(&pool->finished, 1, memory_order_release);
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
    atomic_fetch_add(&pool->generation, 1);
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

void l3_pool_run(l3_pool *pool, l3_task_fn task, void *context, uint32_t count, uint32_t grain) {
    uint32_t helpers = pool->started;
    uint32_t spins = 0;
    if (grain == 0) {
        grain = 1;
    }
    if (helpers == 0 || count <= grain) {
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
    atomic_store_explicit(&pool->finished, 0, memory_order_relaxed);
    /* Sequentially consistent against the sleepers' check under the lock: either it sees the new generation, or we
     * see it asleep. */
    atomic_fetch_add(&pool->generation, 1);
    if (atomic_load(&pool->sleepers) > 0) {
        pthread_mutex_lock(&pool->lock);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->lock);
    }
    work(pool, 0);
    /* Every helper must have left the loop before its description changes. */
    while (atomic_load_explicit(&pool->finished, memory_order_acquire) < helpers) {
        cpu_relax();
        if (++spins % 1024 == 0) {
            sched_yield(); /* more threads than cores: let the one we wait for run */
        }
    }
    pthread_mutex_unlock(&pool->turn);
}
