#include "base/bytes.h"
#include "package/package.h"

const char *l3_dtype_name(uint32_t dtype) {
    switch (dtype) {
    case L3_F32: return "F32";
    case L3_F32X8: return "F32X8";
    case L3_BF16X8: return "BF16X8";
    case L3_Q8X8: return "Q8X8";
    case L3_Q4X8: return "Q4X8";
    default: return "unknown";
    }
}

/* Bytes of one tile of 8 rows; false where k does not suit the dtype. */
static bool tile_length(uint32_t dtype, uint64_t k, uint64_t *bytes) {
    switch (dtype) {
    case L3_F32X8: return l3_mul_u64(k, L3_TILE_ROWS * 4u, bytes);
    case L3_BF16X8: return l3_mul_u64(k, L3_TILE_ROWS * 2u, bytes);
    case L3_Q8X8: return k % L3_GROUP == 0 && l3_mul_u64(k / L3_GROUP, L3_Q8_BLOCK, bytes);
    case L3_Q4X8: return k % L3_GROUP == 0 && l3_mul_u64(k / L3_GROUP, L3_Q4_BLOCK, bytes);
    default: return false;
    }
}

bool l3_tensor_length(uint32_t dtype, uint32_t rank, const uint64_t shape[4], uint64_t *length) {
    uint64_t n = 1;
    uint64_t tiles;
    if (rank < 1 || rank > 3) {
        return false;
    }
    for (uint32_t i = 0; i < 4; i++) {
        if (i < rank ? (shape[i] == 0 || shape[i] > UINT32_MAX) : shape[i] != 0) {
            return false;
        }
    }
    if (dtype == L3_F32) {
        for (uint32_t i = 0; i < rank; i++) {
            if (!l3_mul_u64(n, shape[i], &n)) {
                return false;
            }
        }
        return l3_mul_u64(n, 4, length);
    }
    if (rank < 2 || !tile_length(dtype, shape[rank - 1], &n)) {
        return false;
    }
    tiles = (shape[rank - 2] + L3_TILE_ROWS - 1) / L3_TILE_ROWS;
    if (!l3_mul_u64(n, tiles, &n)) {
        return false;
    }
    if (rank == 3 && !l3_mul_u64(n, shape[0], &n)) {
        return false;
    }
    *length = n;
    return true;
}

void l3_read_tiled_row(uint32_t dtype, const uint8_t *tile, uint32_t lane, uint64_t k, float *out) {
    for (uint64_t i = 0; i < k; i++) {
        const uint8_t *block;
        uint64_t in_group = i % L3_GROUP;
        uint64_t chunk = in_group / 4;
        switch (dtype) {
        case L3_F32X8: out[i] = l3_f32_from_bits(l3_load_u32(tile + (i * 8 + lane) * 4)); break;
        case L3_BF16X8: out[i] = l3_f32_from_bf16(l3_load_u16(tile + (i * 8 + lane) * 2)); break;
        case L3_Q8X8:
            block = tile + i / L3_GROUP * L3_Q8_BLOCK;
            out[i] = l3_f32_from_f16(l3_load_u16(block + 2 * lane)) *
                     (float)(int8_t)block[16 + 32 * chunk + 4 * lane + in_group % 4];
            break;
        default: {
            uint8_t byte;
            block = tile + i / L3_GROUP * L3_Q4_BLOCK;
            byte = block[16 + 32 * (chunk % 4) + 4 * lane + in_group % 4];
            out[i] = l3_f32_from_f16(l3_load_u16(block + 2 * lane)) *
                     (float)((chunk < 4 ? byte & 15 : byte >> 4) - 8);
            break;
        }
        }
    }
}
