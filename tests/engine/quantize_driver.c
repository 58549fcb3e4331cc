/* Encodes random rows of every type and layout with every instruction set: no access outside the buffers, which are
 * exactly as large as they must be, and the same bytes from all sets. Prints "ok". */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ling3_quantize.h"

static uint64_t state = 88172645463325252u;

static uint32_t draw(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32);
}

static const l3_rounding search8 = {
    .lowest = -127, .highest = 127, .plain = 127.0f, .refinements = 2, .divisor_count = 1, .divisors = {126.2f}};
static const l3_rounding search4 = {
    .lowest = -8, .highest = 7, .plain = 7.0f, .refinements = 2, .far_count = 2, .far_divisors = {7.4f, 8.5f}};

/* Random bits: NaN, infinities and numbers beyond every range come up too. */
static void *fill(size_t bytes, uint32_t type, int tame) {
    uint8_t *data = malloc(bytes);
    if (data == NULL) {
        exit(2);
    }
    for (size_t i = 0; i < bytes; i++) {
        data[i] = (uint8_t)draw();
    }
    const size_t item = type == L3_SOURCE_F32 ? 4u : 2u;
    for (size_t i = item - 1u; tame && i < bytes; i += item) {
        data[i] = (uint8_t)((data[i] & 0x80u) | 0x3Bu); /* the byte that holds sign and exponent */
    }
    return data;
}

static int check(uint64_t rows, uint64_t width, uint32_t type, uint32_t dtype, int transposed, int tame) {
    const char *names[4];
    const uint32_t sets = l3_quantize_kernels(names, 4);
    const size_t bytes = (size_t)(rows * width) * (type == L3_SOURCE_F32 ? 4u : 2u);
    const uint64_t size = l3_quantize_bytes(dtype, rows, width);
    if (size == 0) {
        return width % 32u != 0 ? 0 : 1;
    }
    l3_source source = {.values = fill(bytes, type, tame),
                        .bytes = bytes,
                        .rows = rows,
                        .width = width,
                        .row_stride = transposed ? 1u : width,
                        .column_stride = transposed ? rows : 1u,
                        .type = type};
    uint8_t *first = NULL;
    int32_t expected = 0;
    int wrong = 0;
    for (uint32_t set = 0; set < sets; set++) {
        l3_quantize_result result;
        uint8_t *out = malloc((size_t)size);
        const l3_rounding *rounding = dtype == L3_Q8X8 ? &search8 : dtype == L3_Q4X8 ? &search4 : NULL;
        const int32_t status = l3_quantize_rows(&source, dtype, rounding, out, size, names[set], &result);
        wrong |= status == L3_QUANTIZE_ARGUMENT || (tame && status != L3_QUANTIZE_OK);
        wrong |= l3_quantize_rows(&source, dtype, rounding, out, size - 1u, names[set], &result) != L3_QUANTIZE_ARGUMENT;
        if (first == NULL) {
            first = out;
            expected = status;
        } else {
            wrong |= status != expected || (status == L3_QUANTIZE_OK && memcmp(first, out, (size_t)size) != 0);
            free(out);
        }
    }
    free(first);
    free((void *)(uintptr_t)source.values);
    return wrong;
}

int main(void) {
    static const uint64_t shapes[][2] = {{1, 1}, {1, 32}, {8, 64}, {9, 33}, {7, 96}, {17, 32}, {64, 160}};
    for (size_t shape = 0; shape < sizeof shapes / sizeof shapes[0]; shape++) {
        for (uint32_t type = 0; type <= L3_SOURCE_BF16; type++) {
            for (uint32_t dtype = L3_F32X8; dtype <= L3_Q4X8; dtype++) {
                for (int mode = 0; mode < 4; mode++) {
                    if (check(shapes[shape][0], shapes[shape][1], type, dtype, mode & 1, mode >> 1)) {
                        fprintf(stderr, "shape %zu type %u dtype %u mode %d\n", shape, type, dtype, mode);
                        return 1;
                    }
                }
            }
        }
    }
    puts("ok");
    return 0;
}
