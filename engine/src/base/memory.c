#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/memory.h"

#include <stdlib.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>

void l3_memory_forbid(void *p, size_t bytes) { ASAN_POISON_MEMORY_REGION(p, bytes); }

static void allow(void *p, size_t bytes) { ASAN_UNPOISON_MEMORY_REGION(p, bytes); }
#else
static void allow(void *p, size_t bytes) {
    (void)p;
    (void)bytes;
}
#endif

#ifdef L3_DEBUG
static _Thread_local unsigned frozen;

static void guard(void) {
    if (frozen > 0) {
        abort(); /* an allocation inside evaluation: a bug of the engine, found while testing it */
    }
}

void l3_memory_freeze(void) { frozen++; }
void l3_memory_thaw(void) { frozen--; }
#else
static void guard(void) {}
void l3_memory_freeze(void) {}
void l3_memory_thaw(void) {}
#endif

void *l3_alloc(size_t count, size_t size) {
    guard();
    return calloc(count > 0 ? count : 1, size);
}

void l3_free(void *p) { free(p); }

void *l3_pages_alloc(uint64_t bytes) {
    void *p;
    guard();
    if (bytes == 0 || bytes > PTRDIFF_MAX) {
        return NULL;
    }
    p = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

void l3_pages_free(void *p, uint64_t bytes) {
    if (p != NULL) {
        allow(p, (size_t)bytes);
        munmap(p, (size_t)bytes);
    }
}
