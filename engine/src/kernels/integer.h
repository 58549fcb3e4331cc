/* The integer products, written once for the vector sets. Include after body.h and after these of the set:
 *   packed_group                            the weights of 8 rows and 32 values of K, in registers
 *   unpack_q4, load_q8                      fill it from a block
 *   v8 weight_scales(block)                 the 8 scales
 *   v8 add_q4, add_q8(sum, w, operand, g, scales)   sum + float(integer sum of group g) * (scales * operand's scale) */
#ifndef L3_KERNELS_INTEGER_H
#define L3_KERNELS_INTEGER_H

/* `count` operands (1 or 4) share one pass over the tile. q4 is a constant in every call. */
static inline void tile_integer(const uint8_t *tile, uint32_t k, const l3_operand *operands, uint32_t count, size_t at,
                                size_t rows, bool q4) {
    v8 sum[4];
    for (uint32_t t = 0; t < count; t++) {
        sum[t] = v8_set1(0.0f);
    }
    for (size_t g = 0; g < k / L3_GROUP; g++, tile += q4 ? L3_Q4_BLOCK : L3_Q8_BLOCK) {
        v8 scales = weight_scales(tile);
        packed_group w;
        if (q4) {
            unpack_q4(tile, &w);
        } else {
            load_q8(tile, &w);
        }
        for (uint32_t t = 0; t < count; t++) {
            sum[t] = q4 ? add_q4(sum[t], &w, &operands[t], g, scales) : add_q8(sum[t], &w, &operands[t], g, scales);
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

#endif
