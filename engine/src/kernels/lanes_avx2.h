/* Eight float lanes in one AVX2 register. */
#ifndef L3_KERNELS_LANES_AVX2_H
#define L3_KERNELS_LANES_AVX2_H

#include <immintrin.h>

#include "base/bytes.h"

typedef __m256 v8;

static inline v8 v8_set1(float x) { return _mm256_set1_ps(x); }
static inline v8 v8_load(const float *p) { return _mm256_loadu_ps(p); }
static inline v8 v8_load_bf16(const uint16_t *p) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
static inline v8 v8_load_f16(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
static inline v8 v8_load_e4m3(const uint8_t *p) {
    __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)p));
    return _mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16((int16_t)0xbfff)));
}
static inline v8 v8_load_i8(const int8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}
static inline v8 v8_add(v8 a, v8 b) { return _mm256_add_ps(a, b); }
static inline v8 v8_sub(v8 a, v8 b) { return _mm256_sub_ps(a, b); }
static inline v8 v8_mul(v8 a, v8 b) { return _mm256_mul_ps(a, b); }
static inline v8 v8_div(v8 a, v8 b) { return _mm256_div_ps(a, b); }
static inline v8 v8_abs(v8 a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
static inline v8 v8_max(v8 a, v8 b) { return _mm256_max_ps(a, b); }
static inline v8 v8_min(v8 a, v8 b) { return _mm256_min_ps(a, b); }
static inline v8 v8_scale2(v8 a, v8 magic) {
    __m256i shift = _mm256_slli_epi32(_mm256_castps_si256(magic), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), shift));
}
static inline void v8_store(float *p, v8 a) { _mm256_storeu_ps(p, a); }
static inline void v8_store_f16(uint16_t *p, v8 a) {
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline void v8_store_i8(int8_t *p, v8 a) {
    __m256i wide = _mm256_cvtps_epi32(a);
    __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    _mm_storel_epi64((__m128i *)(void *)p, _mm_packs_epi16(half, half));
}

#endif
