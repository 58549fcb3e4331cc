/* Little-endian loads from unaligned memory, checked arithmetic, float16 and bfloat16 conversion. */
#ifndef L3_BASE_BYTES_H
#define L3_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "packages are little-endian and are used in place"
#endif

static inline uint16_t l3_load_u16(const void *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint32_t l3_load_u32(const void *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint64_t l3_load_u64(const void *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* false when the result does not fit. */
static inline bool l3_mul_u64(uint64_t a, uint64_t b, uint64_t *out) { return !__builtin_mul_overflow(a, b, out); }

static inline bool l3_add_u64(uint64_t a, uint64_t b, uint64_t *out) { return !__builtin_add_overflow(a, b, out); }

static inline float l3_f32_from_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t l3_bits_from_f32(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float l3_f32_from_bf16(uint16_t h) { return l3_f32_from_bits((uint32_t)h << 16); }

/* Round to nearest even; NaN stays NaN. */
static inline uint16_t l3_bf16_from_f32(float f) {
    uint32_t x = l3_bits_from_f32(f);
    if ((x & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)((x >> 16) | 0x40u);
    }
    x += 0x7fffu + ((x >> 16) & 1u);
    return (uint16_t)(x >> 16);
}

/* Exact for every float16, subnormals, infinities and NaN included. */
static inline float l3_f32_from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 0x1fu;
    uint32_t mantissa = h & 0x3ffu;
    if (exponent == 0) {
        /* mantissa * 2^-24 is exact in float32 */
        float f = (float)mantissa * 0x1p-24f;
        return l3_f32_from_bits(l3_bits_from_f32(f) | sign);
    }
    if (exponent == 31) {
        return l3_f32_from_bits(sign | 0x7f800000u | (mantissa << 13));
    }
    return l3_f32_from_bits(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

/* Round to nearest even, overflow to infinity, as hardware does; NaN stays (quiet) NaN. */
static inline uint16_t l3_f16_from_f32(float f) {
    uint32_t x = l3_bits_from_f32(f);
    uint32_t sign = (x >> 16) & 0x8000u;
    x &= 0x7fffffffu;
    if (x > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | ((x >> 13) & 0x1ffu));
    }
    if (x >= 0x477ff000u) { /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (x < 0x38800000u) { /* below the smallest normal: adding 0.5 leaves the rounded subnormal in the mantissa */
        float shifted = l3_f32_from_bits(x) + 0.5f;
        return (uint16_t)(sign | (l3_bits_from_f32(shifted) - 0x3f000000u));
    }
    x += 0xc8000fffu + ((x >> 13) & 1u);
    return (uint16_t)(sign | (x >> 13));
}

/* E4M3 of a float within -448..448: round to nearest even, subnormals (steps of 2^-9) included. */
static inline uint8_t l3_e4m3_from_f32(float f) {
    uint32_t x = l3_bits_from_f32(f);
    uint32_t sign = (x >> 24) & 0x80u;
    x &= 0x7fffffffu;
    if (x < 0x3c800000u) { /* below the smallest normal, 2^-6: adding 2^14 leaves the steps in the mantissa */
        float shifted = l3_f32_from_bits(x) + 0x1p14f;
        return (uint8_t)(sign | (l3_bits_from_f32(shifted) - 0x46800000u));
    }
    x += 0x7ffffu + ((x >> 20) & 1u);
    return (uint8_t)(sign | ((x >> 20) - (120u << 3)));
}

#endif
