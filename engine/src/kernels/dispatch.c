#include <string.h>

#include "kernels/kernels.h"

/* Best first. */
static const l3_kernels *const sets[] = {
#if defined(__x86_64__)
    &l3_kernels_avx2,
#endif
#if defined(__aarch64__)
    &l3_kernels_neon,
#endif
    &l3_kernels_scalar,
};

#define SET_COUNT (sizeof sets / sizeof sets[0])

const l3_kernels *l3_kernels_find(const char *name) {
    bool any = name == NULL || name[0] == '\0' || strcmp(name, "auto") == 0;
    for (size_t i = 0; i < SET_COUNT; i++) {
        if ((any || strcmp(name, sets[i]->name) == 0) && sets[i]->available()) {
            return sets[i];
        }
    }
    return NULL;
}

/* Indexed by whether the first of `sets` can run here: at most one vector set exists per architecture. */
const char *l3_simd_available(void) {
    const l3_kernels *best = l3_kernels_find("auto");
    if (best == &l3_kernels_scalar) {
        return "scalar";
    }
#if defined(__x86_64__)
    return "avx2 scalar";
#else
    return "neon scalar";
#endif
}

size_t l3_kv_bytes(uint32_t kv_type) { return kv_type == L3_KV_F32 ? 4 : 2; }
