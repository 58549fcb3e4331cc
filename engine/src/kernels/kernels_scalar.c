/* The reference set: plain C, always built, the measure of the others. */
#include "kernels/lanes_scalar.h"

#include "kernels/body.h"
#include "package/package.h"

static int32_t weight_q8(const uint8_t *block, size_t row, size_t k) {
    return (int8_t)block[16 + 32 * (k / 4) + 4 * row + k % 4];
}

static int32_t weight_q4(const uint8_t *block, size_t row, size_t k) {
    uint8_t byte = block[16 + 32 * (k % 16 / 4) + 4 * row + k % 4];
    return (k < 16 ? byte & 15 : byte >> 4) - 8;
}

static void matmul_integer(const uint8_t *data, uint64_t tile_bytes, uint32_t k, uint32_t first_tile, uint32_t tiles,
                           uint32_t last_rows, const l3_operand *operands, uint32_t n, size_t block_bytes,
                           int32_t (*weight)(const uint8_t *, size_t, size_t)) {
    for (uint32_t t = 0; t < n; t++) {
        for (uint32_t tile = 0; tile < tiles; tile++) {
            size_t rows = tile + 1 == tiles ? last_rows : 8;
            for (size_t row = 0; row < rows; row++) {
                const uint8_t *block = data + tile * tile_bytes;
                float sum = 0.0f;
                for (size_t g = 0; g < k / L3_GROUP; g++, block += block_bytes) {
                    const int8_t *q = operands[t].q + g * L3_GROUP;
                    int32_t whole = 0;
                    for (size_t i = 0; i < L3_GROUP; i++) {
                        whole += weight(block, row, i) * q[i];
                    }
                    sum += (float)whole * (l3_f32_from_f16(l3_load_u16(block + 2 * row)) * operands[t].scale[g]);
                }
                operands[t].y[8 * ((size_t)first_tile + tile) + row] = sum;
            }
        }
    }
}

static void matmul_q8(const uint8_t *data, uint64_t tile_bytes, uint32_t k, uint32_t first_tile, uint32_t tiles,
                      uint32_t last_rows, const l3_operand *operands, uint32_t n) {
    matmul_integer(data, tile_bytes, k, first_tile, tiles, last_rows, operands, n, L3_Q8_BLOCK, weight_q8);
}

static void matmul_q4(const uint8_t *data, uint64_t tile_bytes, uint32_t k, uint32_t first_tile, uint32_t tiles,
                      uint32_t last_rows, const l3_operand *operands, uint32_t n) {
    matmul_integer(data, tile_bytes, k, first_tile, tiles, last_rows, operands, n, L3_Q4_BLOCK, weight_q4);
}

static bool always(void) { return true; }

const l3_kernels l3_kernels_scalar = L3_KERNEL_TABLE("scalar", always);
