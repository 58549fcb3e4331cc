/* One tile of 8 rows into a layout; compiled once for every processor and once more for AVX2. */
#ifndef L3_QUANTIZE_TILES_H
#define L3_QUANTIZE_TILES_H

#include <stddef.h>
#include <stdint.h>

#include "ling3_quantize.h"

#define L3_TILE_ROWS 8u

/* Rows first to first + 7 of the source, as far as there are so many; the rest of the tile becomes zero. */
typedef struct l3_tile_job {
    const l3_source *source;
    const l3_rounding *rounding;
    uint64_t first;
    uint8_t *out;
    l3_quantize_result *result;
} l3_tile_job;

/* Returns an l3_quantize_status; does not fill `position`. */
typedef l3_quantize_status (*l3_tile_fn)(const l3_tile_job *job);

typedef struct l3_tile_kernels {
    const char *name;
    l3_tile_fn float32;
    l3_tile_fn bfloat16;
    l3_tile_fn int8;
    l3_tile_fn int4;
} l3_tile_kernels;

extern const l3_tile_kernels l3_tiles_portable;
#if defined(__x86_64__)
extern const l3_tile_kernels l3_tiles_avx2;
#endif

/* The value of a stored element as a bit pattern of float32; infinity and NaN stay what they are. */
static inline uint32_t l3_widen_bits(const l3_source *source, uint64_t index) {
    const char *at = (const char *)source->values;
    uint16_t half = 0;
    uint32_t bits = 0;
    if (source->type == L3_SOURCE_F32) {
        __builtin_memcpy(&bits, at + index * 4u, 4u);
        return bits;
    }
    __builtin_memcpy(&half, at + index * 2u, 2u);
    if (source->type == L3_SOURCE_BF16) {
        return (uint32_t)half << 16;
    }
    if ((half & 0x7C00u) == 0x7C00u) {
        return ((uint32_t)(half & 0x8000u) << 16) | 0x7F800000u | ((uint32_t)(half & 0x3FFu) << 13);
    }
    /* Exponent and fraction moved to their places; the bias differs by 112, and the product is exact. */
    bits = (uint32_t)(half & 0x7FFFu) << 13;
    float value;
    __builtin_memcpy(&value, &bits, 4u);
    value *= 0x1p112f;
    __builtin_memcpy(&bits, &value, 4u);
    return bits | ((uint32_t)(half & 0x8000u) << 16);
}

static inline int l3_bits_are_finite(uint32_t bits) { return (bits & 0x7F800000u) != 0x7F800000u; }

#endif
