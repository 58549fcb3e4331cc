/* SHA-256 (FIPS 180-4). */
#ifndef L3_BASE_SHA256_H
#define L3_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

typedef struct l3_sha256 {
    uint32_t state[8];
    uint64_t length;
    uint8_t block[64];
} l3_sha256;

void l3_sha256_init(l3_sha256 *hash);
void l3_sha256_update(l3_sha256 *hash, const void *data, size_t length);
void l3_sha256_final(l3_sha256 *hash, uint8_t out[32]);

#endif
