/* Allocation, with a guard: in debug builds an allocation between freeze and thaw aborts. */
#ifndef L3_BASE_MEMORY_H
#define L3_BASE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* Zeroed; NULL when there is none. */
void *l3_alloc(size_t count, size_t size);
void l3_free(void *p);

/* Zero pages straight from the kernel, so that what is never used is never resident. NULL when there are none. */
void *l3_pages_alloc(uint64_t bytes);
void l3_pages_free(void *p, uint64_t bytes);

/* Builds with AddressSanitizer leave room between the buffers of one allocation and make every access to it an error,
 * so that a kernel that runs over its own buffer is seen. Others leave none. */
#if defined(__SANITIZE_ADDRESS__)
#define L3_REDZONE 64u
void l3_memory_forbid(void *p, size_t bytes);
#else
#define L3_REDZONE 0u
static inline void l3_memory_forbid(void *p, size_t bytes) {
    (void)p;
    (void)bytes;
}
#endif

/* Evaluation allocates nothing; these say where it starts and ends. They nest, per thread. */
void l3_memory_freeze(void);
void l3_memory_thaw(void);

#endif
