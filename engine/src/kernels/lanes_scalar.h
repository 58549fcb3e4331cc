/* Eight float lanes in plain C: the reference that the vector sets are held against. */
#ifndef L3_KERNELS_LANES_SCALAR_H
#define L3_KERNELS_LANES_SCALAR_H

#include <math.h>

#include "base/bytes.h"

typedef struct v8 {
    float lane[8];
} v8;

#define V8_EACH(expression)                                                                                            \
    v8 r;                                                                                                              \
    for (size_t i = 0; i < 8; i++) {                                                                                   \
        r.lane[i] = (expression);                                                                                      \
    }                                                                                                                  \
    return r

static inline v8 v8_set1(float x) { V8_EACH(x); }
static inline v8 v8_load(const float *p) { V8_EACH(p[i]); }
static inline v8 v8_load_bf16(const uint16_t *p) { V8_EACH(l3_f32_from_bf16(p[i])); }
static inline v8 v8_load_f16(const uint16_t *p) { V8_EACH(l3_f32_from_f16(p[i])); }
/* E4M3 in units of 2^-8, i.e. multiplied by L3_E4M3_UNIT it is the value: a float16 with the same bits of exponent and
 * mantissa. NaN patterns are never written and have no meaning here. */
static inline v8 v8_load_e4m3(const uint8_t *p) {
    V8_EACH(l3_f32_from_f16((uint16_t)(((p[i] & 0x80u) << 8) | ((p[i] & 0x7fu) << 7))));
}
static inline v8 v8_load_i8(const int8_t *p) { V8_EACH((float)p[i]); }
static inline v8 v8_add(v8 a, v8 b) { V8_EACH(a.lane[i] + b.lane[i]); }
static inline v8 v8_sub(v8 a, v8 b) { V8_EACH(a.lane[i] - b.lane[i]); }
static inline v8 v8_mul(v8 a, v8 b) { V8_EACH(a.lane[i] * b.lane[i]); }
static inline v8 v8_div(v8 a, v8 b) { V8_EACH(a.lane[i] / b.lane[i]); }
static inline v8 v8_abs(v8 a) { V8_EACH(fabsf(a.lane[i])); }
/* A NaN in b is kept, one in a is not. */
static inline v8 v8_max(v8 a, v8 b) { V8_EACH(a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]); }
static inline v8 v8_min(v8 a, v8 b) { V8_EACH(a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]); }
/* a * 2^n where magic holds 1.5 * 2^23 + n. */
static inline v8 v8_scale2(v8 a, v8 magic) {
    V8_EACH(l3_f32_from_bits(l3_bits_from_f32(a.lane[i]) + (l3_bits_from_f32(magic.lane[i]) << 23)));
}
static inline void v8_store(float *p, v8 a) {
    for (size_t i = 0; i < 8; i++) {
        p[i] = a.lane[i];
    }
}
static inline void v8_store_f16(uint16_t *p, v8 a) {
    for (size_t i = 0; i < 8; i++) {
        p[i] = l3_f16_from_f32(a.lane[i]);
    }
}
/* Values within -127..127, already whole numbers. */
static inline void v8_store_i8(int8_t *p, v8 a) {
    for (size_t i = 0; i < 8; i++) {
        p[i] = (int8_t)a.lane[i];
    }
}

#undef V8_EACH

#endif
