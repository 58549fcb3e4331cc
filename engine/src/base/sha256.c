#include "base/sha256.h"

#include <stdatomic.h>
#include <string.h>

#include "ling3.h"

const uint32_t l3_sha256_round_constants[64] = {
    0x428a2f98u, 0x71374491u, 0xb5c0fbcfu, 0xe9b5dba5u, 0x3956c25bu, 0x59f111f1u, 0x923f82a4u, 0xab1c5ed5u,
    0xd807aa98u, 0x12835b01u, 0x243185beu, 0x550c7dc3u, 0x72be5d74u, 0x80deb1feu, 0x9bdc06a7u, 0xc19bf174u,
    0xe49b69c1u, 0xefbe4786u, 0x0fc19dc6u, 0x240ca1ccu, 0x2de92c6fu, 0x4a7484aau, 0x5cb0a9dcu, 0x76f988dau,
    0x983e5152u, 0xa831c66du, 0xb00327c8u, 0xbf597fc7u, 0xc6e00bf3u, 0xd5a79147u, 0x06ca6351u, 0x14292967u,
    0x27b70a85u, 0x2e1b2138u, 0x4d2c6dfcu, 0x53380d13u, 0x650a7354u, 0x766a0abbu, 0x81c2c92eu, 0x92722c85u,
    0xa2bfe8a1u, 0xa81a664bu, 0xc24b8b70u, 0xc76c51a3u, 0xd192e819u, 0xd6990624u, 0xf40e3585u, 0x106aa070u,
    0x19a4c116u, 0x1e376c08u, 0x2748774cu, 0x34b0bcb5u, 0x391c0cb3u, 0x4ed8aa4au, 0x5b9cca4fu, 0x682e6ff3u,
    0x748f82eeu, 0x78a5636fu, 0x84c87814u, 0x8cc70208u, 0x90befffau, 0xa4506cebu, 0xbef9a3f7u, 0xc67178f2u};

static uint32_t rotate_right(uint32_t x, unsigned n) { return (x >> n) | (x << (32u - n)); }

static uint32_t load_big_endian(const uint8_t *p) {
    return ((uint32_t)p[0] << 24) | ((uint32_t)p[1] << 16) | ((uint32_t)p[2] << 8) | (uint32_t)p[3];
}

static void compress_block(uint32_t state[8], const uint8_t *block) {
    uint32_t w[64];
    uint32_t v[8];
    for (size_t t = 0; t < 16; t++) {
        w[t] = load_big_endian(block + 4 * t);
    }
    for (size_t t = 16; t < 64; t++) {
        uint32_t s0 = rotate_right(w[t - 15], 7) ^ rotate_right(w[t - 15], 18) ^ (w[t - 15] >> 3);
        uint32_t s1 = rotate_right(w[t - 2], 17) ^ rotate_right(w[t - 2], 19) ^ (w[t - 2] >> 10);
        w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }
    memcpy(v, state, sizeof v);
    for (size_t t = 0; t < 64; t++) {
        uint32_t s1 = rotate_right(v[4], 6) ^ rotate_right(v[4], 11) ^ rotate_right(v[4], 25);
        uint32_t choice = (v[4] & v[5]) ^ (~v[4] & v[6]);
        uint32_t t1 = v[7] + s1 + choice + l3_sha256_round_constants[t] + w[t];
        uint32_t s0 = rotate_right(v[0], 2) ^ rotate_right(v[0], 13) ^ rotate_right(v[0], 22);
        uint32_t majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
        uint32_t t2 = s0 + majority;
        v[7] = v[6];
        v[6] = v[5];
        v[5] = v[4];
        v[4] = v[3] + t1;
        v[3] = v[2];
        v[2] = v[1];
        v[1] = v[0];
        v[0] = t1 + t2;
    }
    for (size_t i = 0; i < 8; i++) {
        state[i] += v[i];
    }
}

static void compress(uint32_t state[8], const uint8_t *blocks, size_t count) {
    for (size_t i = 0; i < count; i++) {
        compress_block(state, blocks + 64 * i);
    }
}

static bool always(void) { return true; }

const l3_sha256_variant l3_sha256_scalar = {.name = "scalar", .available = always, .compress = compress};

/* Best first. */
static const l3_sha256_variant *const variants[] = {
#if defined(__x86_64__)
    &l3_sha256_sha_ni,
#elif defined(__aarch64__)
    &l3_sha256_armv8,
#endif
    &l3_sha256_scalar,
};

const l3_sha256_variant *l3_sha256_find(const char *name) {
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        if ((name[0] == '\0' || strcmp(name, variants[i]->name) == 0) && variants[i]->available()) {
            return variants[i];
        }
    }
    return NULL;
}

/* Kept, because asking the processor costs a trip to the hypervisor on virtual machines. Threads that come at the same
 * time find the same answer. */
static const l3_sha256_variant *best(void) {
    static const l3_sha256_variant *_Atomic chosen;
    const l3_sha256_variant *variant = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (variant == NULL) {
        variant = l3_sha256_find("");
        atomic_store_explicit(&chosen, variant, memory_order_relaxed);
    }
    return variant;
}

const char *l3_sha256_implementation(void) { return best()->name; }

void l3_sha256_init(l3_sha256 *hash) { l3_sha256_init_with(hash, best()); }

void l3_sha256_init_with(l3_sha256 *hash, const l3_sha256_variant *variant) {
    static const uint32_t initial[8] = {0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au,
                                        0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};
    hash->compress = variant->compress;
    memcpy(hash->state, initial, sizeof initial);
    hash->length = 0;
}

void l3_sha256_update(l3_sha256 *hash, const void *data, size_t length) {
    const uint8_t *p = data;
    size_t used = (size_t)(hash->length % 64);
    hash->length += length;
    if (used > 0) {
        size_t take = 64 - used < length ? 64 - used : length;
        if (take > 0) {
            memcpy(hash->block + used, p, take);
        }
        p += take;
        length -= take;
        if (used + take < 64) {
            return;
        }
        hash->compress(hash->state, hash->block, 1);
    }
    if (length >= 64) {
        size_t whole = length / 64;
        hash->compress(hash->state, p, whole);
        p += 64 * whole;
        length %= 64;
    }
    if (length > 0) {
        memcpy(hash->block, p, length);
    }
}

void l3_sha256_final(l3_sha256 *hash, uint8_t out[32]) {
    static const uint8_t padding[64] = {0x80};
    uint64_t bits = hash->length * 8;
    size_t used = (size_t)(hash->length % 64);
    uint8_t tail[8];
    for (size_t i = 0; i < 8; i++) {
        tail[i] = (uint8_t)(bits >> (56 - 8 * i));
    }
    l3_sha256_update(hash, padding, used < 56 ? 56 - used : 120 - used);
    l3_sha256_update(hash, tail, sizeof tail);
    for (size_t i = 0; i < 8; i++) {
        out[4 * i] = (uint8_t)(hash->state[i] >> 24);
        out[4 * i + 1] = (uint8_t)(hash->state[i] >> 16);
        out[4 * i + 2] = (uint8_t)(hash->state[i] >> 8);
        out[4 * i + 3] = (uint8_t)hash->state[i];
    }
}
