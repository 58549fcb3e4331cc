#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/cpu.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>

/* cpuid and xgetbv directly: zig's compiler runtime does not fill __builtin_cpu_supports. */
bool l3_cpu_has_avx2(void) {
    unsigned a, b, c, d;
    unsigned low, high;
    const unsigned osxsave_avx_f16c = (1u << 27) | (1u << 28) | (1u << 29);
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & osxsave_avx_f16c) != osxsave_avx_f16c) {
        return false;
    }
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    (void)high;
    if ((low & 6u) != 6u) {
        return false;
    }
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & (1u << 5)) != 0 && (b & (1u << 8)) != 0;
}

bool l3_cpu_has_sha_ni(void) {
    unsigned a, b, c, d;
    const unsigned ssse3_sse41 = (1u << 9) | (1u << 19);
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & ssse3_sse41) != ssse3_sse41) {
        return false;
    }
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & (1u << 29)) != 0;
}

bool l3_cpu_has_neon_dotprod(void) { return false; }
bool l3_cpu_has_armv8_sha2(void) { return false; }

#elif defined(__aarch64__)
#include <sys/auxv.h>

#define L3_HWCAP_SHA2 (1ul << 6)
#define L3_HWCAP_ASIMDDP (1ul << 20)

bool l3_cpu_has_avx2(void) { return false; }
bool l3_cpu_has_sha_ni(void) { return false; }
bool l3_cpu_has_neon_dotprod(void) { return (getauxval(AT_HWCAP) & L3_HWCAP_ASIMDDP) != 0; }
bool l3_cpu_has_armv8_sha2(void) { return (getauxval(AT_HWCAP) & L3_HWCAP_SHA2) != 0; }

#else
bool l3_cpu_has_avx2(void) { return false; }
bool l3_cpu_has_neon_dotprod(void) { return false; }
bool l3_cpu_has_sha_ni(void) { return false; }
bool l3_cpu_has_armv8_sha2(void) { return false; }
#endif

/* -1 where the kernel tells none. */
static long read_capacity(int core) {
    char path[80];
    char text[32];
    ssize_t n;
    int fd;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cpu_capacity", core);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return -1;
    }
    n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) {
        return -1;
    }
    text[n] = '\0';
    return strtol(text, NULL, 10);
}

uint32_t l3_cpu_big_cores(int cores[L3_MAX_CPUS]) {
    cpu_set_t allowed;
    uint32_t count = 0;
    long best = -1;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
        cores[0] = -1;
        return 1;
    }
    for (int core = 0; core < CPU_SETSIZE && count < L3_MAX_CPUS; core++) {
        long capacity;
        if (!CPU_ISSET((size_t)core, &allowed)) {
            continue;
        }
        capacity = read_capacity(core);
        if (capacity > best) {
            best = capacity;
            count = 0;
        }
        if (capacity == best) {
            cores[count++] = core;
        }
    }
    if (count == 0) {
        cores[0] = -1;
        count = 1;
    }
    return count;
}
