/* SHA-256 with the cryptography extension of ARMv8. Compiled for every aarch64 processor, called on those that have it. */
#include "base/sha256.h"

#if defined(__aarch64__)
#include <arm_neon.h>

#include "base/cpu.h"

#define SHA2 __attribute__((target("+sha2")))

typedef struct lanes {
    uint32x4_t abcd;
    uint32x4_t efgh;
} lanes;

/* Rounds 4 i to 4 i + 3 on four words of the message. */
SHA2 static inline lanes four_rounds(lanes v, uint32x4_t words, unsigned i) {
    uint32x4_t sum = vaddq_u32(words, vld1q_u32(l3_sha256_round_constants + 4 * (size_t)i));
    lanes next = {.abcd = vsha256hq_u32(v.abcd, v.efgh, sum), .efgh = vsha256h2q_u32(v.efgh, v.abcd, sum)};
    return next;
}

/* The four words that follow the sixteen in a, b, c, d. */
SHA2 static inline uint32x4_t next_words(uint32x4_t a, uint32x4_t b, uint32x4_t c, uint32x4_t d) {
    return vsha256su1q_u32(vsha256su0q_u32(a, b), c, d);
}

SHA2 static inline uint32x4_t load_words(const uint8_t *p) { return vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(p))); }

SHA2 static void compress(uint32_t state[8], const uint8_t *blocks, size_t count) {
    lanes v = {.abcd = vld1q_u32(state), .efgh = vld1q_u32(state + 4)};
    for (; count > 0; count--, blocks += 64) {
        lanes before = v;
        uint32x4_t a = load_words(blocks);
        uint32x4_t b = load_words(blocks + 16);
        uint32x4_t c = load_words(blocks + 32);
        uint32x4_t d = load_words(blocks + 48);
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
        v.abcd = vaddq_u32(v.abcd, before.abcd);
        v.efgh = vaddq_u32(v.efgh, before.efgh);
    }
    vst1q_u32(state, v.abcd);
    vst1q_u32(state + 4, v.efgh);
}

const l3_sha256_variant l3_sha256_armv8 = {.name = "armv8", .available = l3_cpu_has_armv8_sha2, .compress = compress};
#endif
