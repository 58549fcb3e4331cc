/* A pool of threads that runs one parallel loop at a time. */
#ifndef L3_BASE_THREADS_H
#define L3_BASE_THREADS_H

#include <stdint.h>

#include "ling3.h"

#define L3_MAX_THREADS 256u

typedef struct l3_pool l3_pool;

/* Does items [first, last); thread is 0 for the caller, up to threads - 1. */
typedef void (*l3_task_fn)(void *context, uint32_t first, uint32_t last, uint32_t thread);

/* threads counts the calling thread. cores: the set of cores on which helpers may run, or NULL. */
l3_status l3_pool_create(uint32_t threads, const int *cores, uint32_t core_count, l3_pool **out, l3_error *err);
void l3_pool_destroy(l3_pool *pool);
uint32_t l3_pool_threads(const l3_pool *pool);

/* Items per piece so that a piece is worth sharing: small loops come out as one piece and run on the caller alone.
 * bytes_per_item: what one item reads or writes, roughly. */
uint32_t l3_pool_grain(const l3_pool *pool, uint32_t count, uint64_t bytes_per_item);

/* Cuts [0, count) into pieces of `grain` items, hands them out in order and returns when all are done.
 * Which thread does which piece is not fixed; tasks must not let results depend on it.
 * Calls from several threads take turns. */
void l3_pool_run(l3_pool *pool, l3_task_fn task, void *context, uint32_t count, uint32_t grain);

#endif
