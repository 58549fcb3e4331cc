/* AVX2 and F16C. One register holds 8 rows x 4 values of K, so a row lives in one 32-bit lane throughout. */
#include "kernels/lanes_avx2.h"

#include "base/cpu.h"
#include "kernels/body.h"
#include "package/package.h"

typedef struct packed_group {
    __m256i chunk[8]; /* 4 values of K each */
} packed_group;

static inline __m256i load256(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }

/* Four consecutive activations in every lane. */
static inline __m256i spread4(const int8_t *q) { return _mm256_set1_epi32((int32_t)l3_load_u32(q)); }

static inline __m256 accumulate(__m256 sum, __m256i whole, __m256 weight_scale, float scale) {
    __m256 factor = _mm256_mul_ps(weight_scale, _mm256_set1_ps(scale));
    return _mm256_add_ps(sum, _mm256_mul_ps(_mm256_cvtepi32_ps(whole), factor));
}

static inline void unpack_q4(const uint8_t *block, packed_group *w) {
    const __m256i mask = _mm256_set1_epi8(15);
    for (size_t j = 0; j < 4; j++) {
        __m256i packed = load256(block + 16 + 32 * j);
        w->chunk[j] = _mm256_and_si256(packed, mask);
        w->chunk[j + 4] = _mm256_and_si256(_mm256_srli_epi16(packed, 4), mask);
    }
}

static inline void load_q8(const uint8_t *block, packed_group *w) {
    for (size_t c = 0; c < 8; c++) {
        w->chunk[c] = load256(block + 16 + 32 * c);
    }
}

static inline __m256 weight_scales(const uint8_t *block) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)block));
}

/* Weights as unsigned nibbles 0..15. Pairs reach 15 * 127 * 2, eight of them 30480: 16 bits hold the whole group. */
static inline __m256 add_q4(__m256 sum, const packed_group *w, const l3_operand *operand, size_t g, __m256 scales) {
    const int8_t *q = operand->q + g * L3_GROUP;
    __m256i even = _mm256_maddubs_epi16(w->chunk[0], spread4(q));
    __m256i odd = _mm256_maddubs_epi16(w->chunk[1], spread4(q + 4));
    for (size_t c = 2; c < 8; c += 2) {
        even = _mm256_add_epi16(even, _mm256_maddubs_epi16(w->chunk[c], spread4(q + 4 * c)));
        odd = _mm256_add_epi16(odd, _mm256_maddubs_epi16(w->chunk[c + 1], spread4(q + 4 * c + 4)));
    }
    even = _mm256_madd_epi16(_mm256_add_epi16(even, odd), _mm256_set1_epi16(1));
    return accumulate(sum, _mm256_sub_epi32(even, _mm256_set1_epi32(operand->sum8[g])), scales, operand->scale[g]);
}

/* maddubs wants one unsigned side: |w| and a with the sign of w. 127 * 127 * 2 fits 16 bits. */
static inline __m256 add_q8(__m256 sum, const packed_group *w, const l3_operand *operand, size_t g, __m256 scales) {
    const __m256i one = _mm256_set1_epi16(1);
    const int8_t *q = operand->q + g * L3_GROUP;
    __m256i whole = _mm256_setzero_si256();
    for (size_t c = 0; c < 8; c++) {
        __m256i a = _mm256_sign_epi8(spread4(q + 4 * c), w->chunk[c]);
        __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w->chunk[c]), a);
        whole = _mm256_add_epi32(whole, _mm256_madd_epi16(pairs, one));
    }
    return accumulate(sum, whole, scales, operand->scale[g]);
}

#include "kernels/integer.h"

const l3_kernels l3_kernels_avx2 = L3_KERNEL_TABLE("avx2", l3_cpu_has_avx2);
