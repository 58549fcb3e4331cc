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

l3_kv_layout l3_kv_layout_of(uint32_t kv_type, uint32_t latent, uint32_t rope) {
    l3_kv_layout kv = {.type = kv_type, .latent = latent, .rope = rope};
    switch (kv_type) {
    case L3_KV_F32: kv.row_bytes = 4 * (latent + rope); break;
    case L3_KV_FP8:
    case L3_KV_INT8: kv.row_bytes = (latent + 2 * rope + 4 + 3) / 4 * 4; break;
    default: kv.row_bytes = 2 * (latent + rope); break;
    }
    return kv;
}
