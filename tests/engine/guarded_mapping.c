#include "guarded_mapping.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/types.h>

#include "session/session.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

#define PAGE 4096u
#define GUARD (1u << 16)

/* The linker sends every call of mmap and munmap in the program to the first two. */
void *__wrap_mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset);
int __wrap_munmap(void *address, size_t length);
void *__real_mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset);
int __real_munmap(void *address, size_t length);

typedef struct mapping {
    uint8_t *base; /* NULL: free place */
    size_t length;
    size_t reserved;
} mapping;

static mapping mappings[16];

void *__wrap_mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset) {
    mapping *m = mappings;
    if (fd < 0) {
        return __real_mmap(address, length, protection, flags, fd, offset);
    }
    while (m < mappings + 16 && m->base != NULL) {
        m++;
    }
    if (m == mappings + 16) {
        fprintf(stderr, "more than 16 files are mapped\n");
        abort();
    }
    m->reserved = (length + PAGE - 1) / PAGE * PAGE + GUARD;
    m->base = __real_mmap(NULL, m->reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m->base == MAP_FAILED || __real_mmap(m->base, length, protection, flags | MAP_FIXED, fd, offset) != m->base) {
        m->base = NULL;
        return MAP_FAILED;
    }
    m->length = length;
    ASAN_POISON_MEMORY_REGION(m->base + length, m->reserved - length);
    return m->base;
}

int __wrap_munmap(void *address, size_t length) {
    for (mapping *m = mappings; m < mappings + 16; m++) {
        if (m->base == address && address != NULL) {
            if (m->length != length) {
                fprintf(stderr, "%zu bytes were mapped and %zu are unmapped\n", m->length, length);
                abort();
            }
            ASAN_UNPOISON_MEMORY_REGION(m->base, m->reserved);
            m->base = NULL;
            return __real_munmap(address, m->reserved);
        }
    }
    return __real_munmap(address, length);
}

static uint64_t poison_until(const uint8_t *base, uint64_t from, uint64_t offset, uint64_t length) {
    ASAN_POISON_MEMORY_REGION(base + from, offset - from);
    return offset + length;
}

void poison_gaps(const l3_package *package) {
    uint64_t end = package->directory_end;
    for (uint32_t i = 0; i < package->section_count; i++) {
        end = poison_until(package->base, end, package->sections[i].offset, package->sections[i].length);
    }
    for (uint32_t i = 0; i < package->tensor_count; i++) {
        if (package->tensors[i].group == 0) {
            end = poison_until(package->base, end, package->tensors[i].offset, package->tensors[i].length);
        }
    }
}

void poison_mtp_gaps(const l3_engine *engine) {
    const l3_package *package = engine->package;
    uint64_t start = l3_mtp_offset(package);
    uint64_t end = 0;
    for (uint32_t i = 0; i < package->tensor_count && engine->mtp_map != NULL; i++) {
        if (package->tensors[i].group == 1) {
            end = poison_until(engine->mtp_map, end, package->tensors[i].offset - start, package->tensors[i].length);
        }
    }
}
