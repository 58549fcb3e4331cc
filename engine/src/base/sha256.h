/* SHA-256 (FIPS 180-4): one scalar reference and, where the processor has instructions for it, these. */
#ifndef L3_BASE_SHA256_H
#define L3_BASE_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Files are read in steps of this many bytes: a second-level cache holds what was read until it is hashed. */
#define L3_SHA256_STEP (1u << 20)

/* Works `count` blocks of 64 bytes into the state. */
typedef void (*l3_sha256_compress_fn)(uint32_t state[8], const uint8_t *blocks, size_t count);

/* One implementation. All of them give the same digests; only speed tells them apart. */
typedef struct l3_sha256_variant {
    const char *name;
    bool (*available)(void);
    l3_sha256_compress_fn compress;
} l3_sha256_variant;

extern const l3_sha256_variant l3_sha256_scalar;
#if defined(__x86_64__)
extern const l3_sha256_variant l3_sha256_sha_ni;
#elif defined(__aarch64__)
extern const l3_sha256_variant l3_sha256_armv8;
#endif

/* First 32 bits of the fractional parts of the cube roots of the first 64 primes. */
extern const uint32_t l3_sha256_round_constants[64];

typedef struct l3_sha256 {
    l3_sha256_compress_fn compress;
    uint32_t state[8];
    uint64_t length;
    uint8_t block[64];
} l3_sha256;

/* The variant of that name, or with "" the best one; NULL where this build or this processor has none. */
const l3_sha256_variant *l3_sha256_find(const char *name);

/* Hashing with the best variant; it is chosen at the first call. */
void l3_sha256_init(l3_sha256 *hash);
void l3_sha256_init_with(l3_sha256 *hash, const l3_sha256_variant *variant);
void l3_sha256_update(l3_sha256 *hash, const void *data, size_t length);
void l3_sha256_final(l3_sha256 *hash, uint8_t out[32]);

#endif
