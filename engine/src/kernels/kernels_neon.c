/* NEON with the dot product instruction (Cortex-A76). A lane of 32 bits is a row; vdotq_laneq multiplies its four
 * weights by four activations picked from one register. */
#include "kernels/lanes_neon.h"

#include "base/cpu.h"
#include "kernels/body.h"
#include "package/package.h"

typedef struct rows8 {
    int32x4_t low;  /* rows 0 to 3 */
    int32x4_t high; /* rows 4 to 7 */
} rows8;

static inline v8 accumulate(v8 sum, rows8 whole, v8 weight_scale, float scale) {
    v8 factor = v8_mul(weight_scale, v8_set1(scale));
    return v8_add(sum, v8_mul(v8_pair(vcvtq_f32_s32(whole.low), vcvtq_f32_s32(whole.high)), factor));
}

#define DOT_CHUNK(sum, weights, a, lane)                                                                               \
    do {                                                                                                               \
        (sum).low = vdotq_laneq_s32((sum).low, (weights)[0], (a), (lane));                                             \
        (sum).high = vdotq_laneq_s32((sum).high, (weights)[1], (a), (lane));                                           \
    } while (0)

/* w[2 c], w[2 c + 1]: the two registers of chunk c. */
static inline rows8 group_dot(const int8x16_t w[16], const int8_t *q, int32_t start) {
    int8x16_t a0 = vld1q_s8(q);
    int8x16_t a1 = vld1q_s8(q + 16);
    rows8 sum = {vdupq_n_s32(start), vdupq_n_s32(start)};
    DOT_CHUNK(sum, w, a0, 0);
    DOT_CHUNK(sum, w + 2, a0, 1);
    DOT_CHUNK(sum, w + 4, a0, 2);
    DOT_CHUNK(sum, w + 6, a0, 3);
    DOT_CHUNK(sum, w + 8, a1, 0);
    DOT_CHUNK(sum, w + 10, a1, 1);
    DOT_CHUNK(sum, w + 12, a1, 2);
    DOT_CHUNK(sum, w + 14, a1, 3);
    return sum;
}

static inline void unpack_q4(const uint8_t *block, int8x16_t w[16]) {
    for (size_t j = 0; j < 8; j++) {
        uint8x16_t packed = vld1q_u8(block + 16 + 16 * j);
        w[j] = vreinterpretq_s8_u8(vandq_u8(packed, vdupq_n_u8(15)));
        w[j + 8] = vreinterpretq_s8_u8(vshrq_n_u8(packed, 4));
    }
}

static inline void load_q8(const uint8_t *block, int8x16_t w[16]) {
    for (size_t j = 0; j < 16; j++) {
        w[j] = vreinterpretq_s8_u8(vld1q_u8(block + 16 + 16 * j));
    }
}

static inline v8 weight_scales(const uint8_t *block) {
    return v8_load_f16((const uint16_t *)(const void *)block);
}

static inline void tile_integer(const uint8_t *tile, uint32_t k, const l3_operand *operands, uint32_t count, size_t at,
                                size_t rows, bool q4) {
    v8 sum[4];
    for (uint32_t t = 0; t < count; t++) {
        sum[t] = v8_set1(0.0f);
    }
    for (size_t g = 0; g < k / L3_GROUP; g++, tile += q4 ? L3_Q4_BLOCK : L3_Q8_BLOCK) {
        v8 scales = weight_scales(tile);
        int8x16_t w[16];
        if (q4) {
            unpack_q4(tile, w);
        } else {
            load_q8(tile, w);
        }
        for (uint32_t t = 0; t < count; t++) {
            int32_t start = q4 ? -operands[t].sum8[g] : 0;
            rows8 whole = group_dot(w, operands[t].q + g * L3_GROUP, start);
            sum[t] = accumulate(sum[t], whole, scales, operands[t].scale[g]);
        }
    }
    for (uint32_t t = 0; t < count; t++) {
        store_n(operands[t].y + at, sum[t], rows);
    }
}

static inline void matmul_integer(const uint8_t *data, uint64_t tile_bytes, uint32_t k, uint32_t first_tile,
                                  uint32_t tiles, uint32_t last_rows, const l3_operand *operands, uint32_t n,
                                  bool q4) {
    for (uint32_t tile = 0; tile < tiles; tile++, data += tile_bytes) {
        size_t at = 8 * ((size_t)first_tile + tile);
        size_t rows = tile + 1 == tiles ? last_rows : 8;
        uint32_t t = 0;
        for (; t + 4 <= n; t += 4) {
            tile_integer(data, k, operands + t, 4, at, rows, q4);
        }
        for (; t < n; t++) {
            tile_integer(data, k, operands + t, 1, at, rows, q4);
        }
    }
}

static void matmul_q8(const uint8_t *data, uint64_t tile_bytes, uint32_t k, uint32_t first_tile, uint32_t tiles,
                      uint32_t last_rows, const l3_operand *operands, uint32_t n) {
    matmul_integer(data, tile_bytes, k, first_tile, tiles, last_rows, operands, n, false);
}

static void matmul_q4(const uint8_t *data, uint64_t tile_bytes, uint32_t k, uint32_t first_tile, uint32_t tiles,
                      uint32_t last_rows, const l3_operand *operands, uint32_t n) {
    matmul_integer(data, tile_bytes, k, first_tile, tiles, last_rows, operands, n, true);
}

const l3_kernels l3_kernels_neon = L3_KERNEL_TABLE("neon", l3_cpu_has_neon_dotprod);
