/* NEON with the dot product instruction (Cortex-A76). A lane of 32 bits is a row; vdotq_laneq multiplies its four
 * weights by four activations picked from one register. */
#include "kernels/lanes_neon.h"

#include "base/cpu.h"
#include "kernels/body.h"
#include "package/package.h"

typedef struct packed_group {
    int8x16_t half[16]; /* 4 values of K for 4 rows each: rows 0 to 3, then 4 to 7, chunk after chunk */
} packed_group;

static inline void unpack_q4(const uint8_t *block, packed_group *w) {
    for (size_t j = 0; j < 8; j++) {
        uint8x16_t packed = vld1q_u8(block + 16 + 16 * j);
        w->half[j] = vreinterpretq_s8_u8(vandq_u8(packed, vdupq_n_u8(15)));
        w->half[j + 8] = vreinterpretq_s8_u8(vshrq_n_u8(packed, 4));
    }
}

static inline void load_q8(const uint8_t *block, packed_group *w) {
    for (size_t j = 0; j < 16; j++) {
        w->half[j] = vreinterpretq_s8_u8(vld1q_u8(block + 16 + 16 * j));
    }
}

static inline v8 weight_scales(const uint8_t *block) {
    return v8_load_f16((const uint16_t *)(const void *)block);
}

/* The lane is an immediate of the instruction, hence a macro. */
#define DOT_CHUNK(chunk, a, lane)                                                                                      \
    do {                                                                                                               \
        low = vdotq_laneq_s32(low, w->half[2 * (chunk)], (a), (lane));                                                 \
        high = vdotq_laneq_s32(high, w->half[2 * (chunk) + 1], (a), (lane));                                           \
    } while (0)

static inline v8 add_group(v8 sum, const packed_group *w, const l3_operand *operand, size_t g, v8 scales,
                           int32_t start) {
    int8x16_t a0 = vld1q_s8(operand->q + g * L3_GROUP);
    int8x16_t a1 = vld1q_s8(operand->q + g * L3_GROUP + 16);
    int32x4_t low = vdupq_n_s32(start);
    int32x4_t high = low;
    v8 factor = v8_mul(scales, v8_set1(operand->scale[g]));
    DOT_CHUNK(0, a0, 0);
    DOT_CHUNK(1, a0, 1);
    DOT_CHUNK(2, a0, 2);
    DOT_CHUNK(3, a0, 3);
    DOT_CHUNK(4, a1, 0);
    DOT_CHUNK(5, a1, 1);
    DOT_CHUNK(6, a1, 2);
    DOT_CHUNK(7, a1, 3);
    return v8_add(sum, v8_mul(v8_pair(vcvtq_f32_s32(low), vcvtq_f32_s32(high)), factor));
}

/* Weights as unsigned nibbles 0..15: the offset is what the sum starts with. */
static inline v8 add_q4(v8 sum, const packed_group *w, const l3_operand *operand, size_t g, v8 scales) {
    return add_group(sum, w, operand, g, scales, -operand->sum8[g]);
}

static inline v8 add_q8(v8 sum, const packed_group *w, const l3_operand *operand, size_t g, v8 scales) {
    return add_group(sum, w, operand, g, scales, 0);
}

#include "kernels/integer.h"

const l3_kernels l3_kernels_neon = L3_KERNEL_TABLE("neon", l3_cpu_has_neon_dotprod);
