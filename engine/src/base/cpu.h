/* What this processor can do, and which of its cores are the big ones. */
#ifndef L3_BASE_CPU_H
#define L3_BASE_CPU_H

#include <stdbool.h>
#include <stdint.h>

#define L3_MAX_CPUS 256u

bool l3_cpu_has_avx2(void);        /* AVX2, F16C and an operating system that saves the registers */
bool l3_cpu_has_neon_dotprod(void);
bool l3_cpu_has_sha_ni(void);      /* the SHA extensions of x86 and the SSE4.1 shuffles that go with them */
bool l3_cpu_has_armv8_sha2(void);

/* Cores of the highest cpu_capacity that this process may run on (all permitted cores where the kernel tells no
 * capacities). Writes at most L3_MAX_CPUS core numbers; returns how many, at least 1 with cores[0] = -1 when unknown. */
uint32_t l3_cpu_big_cores(int cores[L3_MAX_CPUS]);

#endif
