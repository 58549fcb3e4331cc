/* AVX2 and F16C. One register holds 8 rows x 4 values of K, so a row lives in one 32-bit lane throughout. */
#include "kernels/lanes_avx2.h"

#include "base/cpu.h"
#include "kernels/body.h"
#include "package/package.h"

static inline __m256i load256(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }

/* Four consecutive activations in every lane. */
static inline __m256i spread4(const int8_t *q) { return _mm256_set1_epi32((int32_t)l3_load_u32(q)); }

static inline __m256 accumulate(__m256 sum, __m256i whole, __m256 weight_scale, float scale) {
    __m256 factor = _mm256_mul_ps(weight_scale, _mm256_set1_ps(scale));
    return _mm256_add_ps(sum, _mm256_mul_ps(_mm256_cvtepi32_ps(whole), factor));
}

/* Weights as unsigned nibbles 0..15. Pairs reach 15 * 127 * 2, eight of them 30480: 16 bits hold the whole group. */
static inline __m256i group_q4(const __m256i w[8], const int8_t *q, int32_t sum8) {
    __m256i s0 = _mm256_maddubs_epi16(w[0], spread4(q));
    __m256i s1 = _mm256_maddubs_epi16(w[1], spread4(q + 4));
    s0 = _mm256_add_epi16(s0, _mm256_maddubs_epi16(w[2], spread4(q + 8)));
    s1 = _mm256_add_epi16(s1, _mm256_maddubs_epi16(w[3], spread4(q + 12)));
    s0 = _mm256_add_epi16(s0, _mm256_maddubs_epi16(w[4], spread4(q + 16)));
    s1 = _mm256_add_epi16(s1, _mm256_maddubs_epi16(w[5], spread4(q + 20)));
    s0 = _mm256_add_epi16(s0, _mm256_maddubs_epi16(w[6], spread4(q + 24)));
    s1 = _mm256_add_epi16(s1, _mm256_maddubs_epi16(w[7], spread4(q + 28)));
    s0 = _mm256_madd_epi16(_mm256_add_epi16(s0, s1), _mm256_set1_epi16(1));
    return _mm256_sub_epi32(s0, _mm256_set1_epi32(sum8));
}

static inline void unpack_q4(const uint8_t *block, __m256i w[8]) {
    const __m256i mask = _mm256_set1_epi8(15);
    for (size_t j = 0; j < 4; j++) {
        __m256i packed = load256(block + 16 + 32 * j);
        w[j] = _mm256_and_si256(packed, mask);
        w[j + 4] = _mm256_and_si256(_mm256_srli_epi16(packed, 4), mask);
    }
}

/* maddubs wants one unsigned side: |w| and a with the sign of w. 127 * 127 * 2 fits 16 bits. */
static inline __m256i group_q8(const __m256i w[8], const int8_t *q) {
    const __m256i one = _mm256_set1_epi16(1);
    __m256i sum = _mm256_setzero_si256();
    for (size_t c = 0; c < 8; c++) {
        __m256i a = _mm256_sign_epi8(spread4(q + 4 * c), w[c]);
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(w[c]), a), one));
    }
    return sum;
}

static inline void load_q8(const uint8_t *block, __m256i w[8]) {
    for (size_t c = 0; c < 8; c++) {
        w[c] = load256(block + 16 + 32 * c);
    }
}

static inline __m256 weight_scales(const uint8_t *block) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)block));
}

/* `count` operands (1 or 4) share one pass over the tile. q4 is a constant in every call. */
static inline void tile_integer(const uint8_t *tile, uint32_t k, const l3_operand *operands, uint32_t count, size_t at,
                                size_t rows, bool q4) {
    __m256 sum[4];
    for (uint32_t t = 0; t < count; t++) {
        sum[t] = _mm256_setzero_ps();
    }
    for (size_t g = 0; g < k / L3_GROUP; g++, tile += q4 ? L3_Q4_BLOCK : L3_Q8_BLOCK) {
        __m256 scales = weight_scales(tile);
        __m256i w[8];
        if (q4) {
            unpack_q4(tile, w);
        } else {
            load_q8(tile, w);
        }
        for (uint32_t t = 0; t < count; t++) {
            const int8_t *q = operands[t].q + g * L3_GROUP;
            __m256i whole = q4 ? group_q4(w, q, operands[t].sum8[g]) : group_q8(w, q);
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

const l3_kernels l3_kernels_avx2 = L3_KERNEL_TABLE("avx2", l3_cpu_has_avx2);
