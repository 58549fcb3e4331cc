/* SHA-256 with the SHA extensions of x86. Compiled for every x86-64 processor, called on those that have them. */
#include "base/sha256.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "base/cpu.h"

#define SHA_NI __attribute__((target("sha,ssse3,sse4.1")))

/* The instructions want the eight words of the state as A, B, E, F and C, D, G, H, the first named highest. */
typedef struct lanes {
    __m128i abef;
    __m128i cdgh;
} lanes;

/* Rounds 4 i to 4 i + 3 on four words of the message. */
SHA_NI static inline __attribute__((always_inline)) lanes four_rounds(lanes v, __m128i words, unsigned i) {
    const uint32_t *constants = l3_sha256_round_constants + 4 * (size_t)i;
    __m128i sum = _mm_add_epi32(words, _mm_loadu_si128((const __m128i *)(const void *)constants));
    v.cdgh = _mm_sha256rnds2_epu32(v.cdgh, v.abef, sum);
    v.abef = _mm_sha256rnds2_epu32(v.abef, v.cdgh, _mm_shuffle_epi32(sum, 0x0e));
    return v;
}

/* The four words that follow the sixteen in a, b, c, d. */
SHA_NI static inline __attribute__((always_inline)) __m128i next_words(__m128i a, __m128i b, __m128i c, __m128i d) {
    __m128i partial = _mm_add_epi32(_mm_sha256msg1_epu32(a, b), _mm_alignr_epi8(d, c, 4));
    return _mm_sha256msg2_epu32(partial, d);
}

SHA_NI static inline __attribute__((always_inline)) __m128i load_words(const uint8_t *p) {
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    return _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)p), big_endian);
}

SHA_NI static void compress(uint32_t state[8], const uint8_t *blocks, size_t count) {
    __m128i *halves = (__m128i *)(void *)state;
    __m128i cdab = _mm_shuffle_epi32(_mm_loadu_si128(halves), 0xb1);
    __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128(halves + 1), 0x1b);
    __m128i feba;
    __m128i dchg;
    lanes v = {.abef = _mm_alignr_epi8(cdab, efgh, 8), .cdgh = _mm_blend_epi16(efgh, cdab, 0xf0)};
    for (; count > 0; count--, blocks += 64) {
        lanes before = v;
        __m128i a = load_words(blocks);
        __m128i b = load_words(blocks + 16);
        __m128i c = load_words(blocks + 32);
        __m128i d = load_words(blocks + 48);
        for (unsigned i = 0; i < 12; i += 4) {
            v = four_rounds(v, a, i);
            a = next_words(a, b, c, d);
            v = four_rounds(v, b, i + 1);
            b = next_words(b, c, d, a);
            v = four_rounds(v, c, i + 2);
            c = next_words(c, d, a, b);
            v = four_rounds(v, d, i + 3);
            d = next_words(d, a, b, c);
        }
        v = four_rounds(v, a, 12);
        v = four_rounds(v, b, 13);
        v = four_rounds(v, c, 14);
        v = four_rounds(v, d, 15);
        v.abef = _mm_add_epi32(v.abef, before.abef);
        v.cdgh = _mm_add_epi32(v.cdgh, before.cdgh);
    }
    feba = _mm_shuffle_epi32(v.abef, 0x1b);
    dchg = _mm_shuffle_epi32(v.cdgh, 0xb1);
    _mm_storeu_si128(halves, _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128(halves + 1, _mm_alignr_epi8(dchg, feba, 8));
}

const l3_sha256_variant l3_sha256_sha_ni = {.name = "sha-ni", .available = l3_cpu_has_sha_ni, .compress = compress};
#endif
