/* Eight float lanes in two NEON registers. */
#ifndef L3_KERNELS_LANES_NEON_H
#define L3_KERNELS_LANES_NEON_H

#include <arm_neon.h>

#include "base/bytes.h"

typedef struct v8 {
    float32x4_t low;
    float32x4_t high;
} v8;

static inline v8 v8_pair(float32x4_t low, float32x4_t high) {
    v8 r = {low, high};
    return r;
}
static inline v8 v8_set1(float x) { return v8_pair(vdupq_n_f32(x), vdupq_n_f32(x)); }
static inline v8 v8_load(const float *p) { return v8_pair(vld1q_f32(p), vld1q_f32(p + 4)); }
static inline v8 v8_load_bf16(const uint16_t *p) {
    uint16x8_t half = vld1q_u16(p);
    return v8_pair(vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(half), 16)),
                   vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(half), 16)));
}
static inline v8 v8_load_f16(const uint16_t *p) {
    float16x8_t half = vreinterpretq_f16_u16(vld1q_u16(p));
    return v8_pair(vcvt_f32_f16(vget_low_f16(half)), vcvt_f32_f16(vget_high_f16(half)));
}
static inline v8 v8_load_e4m3(const uint8_t *p) {
    uint16x8_t wide = vreinterpretq_u16_s16(vshll_n_s8(vreinterpret_s8_u8(vld1_u8(p)), 7));
    float16x8_t half = vreinterpretq_f16_u16(vandq_u16(wide, vdupq_n_u16(0xbfff)));
    return v8_pair(vcvt_f32_f16(vget_low_f16(half)), vcvt_f32_f16(vget_high_f16(half)));
}
static inline v8 v8_load_i8(const int8_t *p) {
    int16x8_t wide = vmovl_s8(vld1_s8(p));
    return v8_pair(vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(wide))));
}
static inline v8 v8_add(v8 a, v8 b) { return v8_pair(vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)); }
static inline v8 v8_sub(v8 a, v8 b) { return v8_pair(vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)); }
static inline v8 v8_mul(v8 a, v8 b) { return v8_pair(vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)); }
static inline v8 v8_div(v8 a, v8 b) { return v8_pair(vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)); }
static inline v8 v8_abs(v8 a) { return v8_pair(vabsq_f32(a.low), vabsq_f32(a.high)); }
/* Not vmaxq: a NaN must come from b only, as in the other sets. */
static inline v8 v8_max(v8 a, v8 b) {
    return v8_pair(vbslq_f32(vcgtq_f32(a.low, b.low), a.low, b.low),
                   vbslq_f32(vcgtq_f32(a.high, b.high), a.high, b.high));
}
static inline v8 v8_min(v8 a, v8 b) {
    return v8_pair(vbslq_f32(vcltq_f32(a.low, b.low), a.low, b.low),
                   vbslq_f32(vcltq_f32(a.high, b.high), a.high, b.high));
}
static inline float32x4_t v8_scale2_half(float32x4_t a, float32x4_t magic) {
    return vreinterpretq_f32_u32(
        vaddq_u32(vreinterpretq_u32_f32(a), vshlq_n_u32(vreinterpretq_u32_f32(magic), 23)));
}
static inline v8 v8_scale2(v8 a, v8 magic) {
    return v8_pair(v8_scale2_half(a.low, magic.low), v8_scale2_half(a.high, magic.high));
}
static inline void v8_store(float *p, v8 a) {
    vst1q_f32(p, a.low);
    vst1q_f32(p + 4, a.high);
}
static inline void v8_store_f16(uint16_t *p, v8 a) {
    vst1q_u16(p, vreinterpretq_u16_f16(vcombine_f16(vcvt_f16_f32(a.low), vcvt_f16_f32(a.high))));
}
static inline void v8_store_i8(int8_t *p, v8 a) {
    int16x8_t half = vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(a.low)), vqmovn_s32(vcvtnq_s32_f32(a.high)));
    vst1_s8(p, vqmovn_s16(half));
}

#endif
