/* Looks at a thread pool from inside: makes a helper sleep, calls it late for the loop that it has done, and says
 * whether it still comes to the next one. Prints `came` or `stayed asleep`. */
#define l3_pool_create own_pool_create
#define l3_pool_destroy own_pool_destroy
#define l3_pool_threads own_pool_threads
#define l3_pool_grain own_pool_grain
#define l3_pool_run own_pool_run
#include "base/threads.c"

#include <stdio.h>
#include <time.h>

#define PATIENCE_MS 20000

typedef struct meeting {
    atomic_bool here[2];
} meeting;

static void pause_ms(void) {
    struct timespec t = {.tv_nsec = 1000000};
    nanosleep(&t, NULL);
}

/* Each of the two items waits for the thread that does the other. */
static void meet(void *context, uint32_t first, uint32_t last, uint32_t thread) {
    meeting *m = context;
    (void)first;
    (void)last;
    atomic_store(&m->here[thread], true);
    for (int i = 0; i < PATIENCE_MS && !atomic_load(&m->here[1 - thread]); i++) {
        pause_ms();
    }
}

int main(void) {
    l3_error err;
    l3_pool *pool;
    meeting first = {0};
    meeting second = {0};
    if (l3_pool_create(2, NULL, 0, &pool, &err) != L3_OK) {
        return 1;
    }
    l3_pool_run(pool, meet, &first, 2, 1);
    for (int i = 0; i < PATIENCE_MS && atomic_load(&pool->sleepers) == 0; i++) {
        pause_ms();
    }
    /* What open_loop does when it is held up between publishing its loop and looking for sleepers. */
    atomic_store(&pool->waking, true);
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < 1000 && atomic_load(&pool->waking); i++) {
        pause_ms();
    }
    l3_pool_run(pool, meet, &second, 2, 1);
    puts(atomic_load(&first.here[1]) && atomic_load(&second.here[1]) ? "came" : "stayed asleep");
    l3_pool_destroy(pool);
    return 0;
}
