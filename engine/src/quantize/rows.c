/* Checks a call of ling3_quantize.h and walks its tiles. */
#include <stdbool.h>
#include <string.h>

#include "base/cpu.h"
#include "quantize/tiles.h"

#define MAX_KERNELS 2u

uint32_t l3_quantize_abi_version(void) { return L3_QUANTIZE_ABI_VERSION; }

static uint32_t available(const l3_tile_kernels *found[MAX_KERNELS]) {
    uint32_t count = 0;
#if defined(__x86_64__)
    if (l3_cpu_has_avx2()) {
        found[count++] = &l3_tiles_avx2;
    }
#endif
    found[count++] = &l3_tiles_portable;
    return count;
}

uint32_t l3_quantize_kernels(const char **names, uint32_t capacity) {
    const l3_tile_kernels *found[MAX_KERNELS];
    const uint32_t count = available(found);
    for (uint32_t i = 0; i < count && i < capacity; i++) {
        names[i] = found[i]->name;
    }
    return count;
}

static const l3_tile_kernels *find_kernels(const char *name) {
    const l3_tile_kernels *found[MAX_KERNELS];
    const uint32_t count = available(found);
    for (uint32_t i = 0; i < count; i++) {
        if (name[0] == '\0' || strcmp(name, found[i]->name) == 0) {
            return found[i];
        }
    }
    return NULL;
}

/* Bytes of a tile of 8 rows; 0 where the layout does not take this width or the number overflows. */
static uint64_t tile_bytes(uint32_t dtype, uint64_t width) {
    uint64_t bytes = 0;
    uint64_t units = width;
    uint64_t unit = 0;
    if (dtype == L3_F32X8) {
        unit = 4u * L3_TILE_ROWS;
    } else if (dtype == L3_BF16X8) {
        unit = 2u * L3_TILE_ROWS;
    } else if ((dtype == L3_Q8X8 || dtype == L3_Q4X8) && width % L3_QUANTIZE_GROUP == 0) {
        units = width / L3_QUANTIZE_GROUP;
        unit = L3_TILE_ROWS * (2u + (dtype == L3_Q4X8 ? L3_QUANTIZE_GROUP / 2u : L3_QUANTIZE_GROUP));
    }
    return __builtin_mul_overflow(units, unit, &bytes) ? 0 : bytes;
}

uint64_t l3_quantize_bytes(uint32_t dtype, uint64_t rows, uint64_t width) {
    uint64_t bytes = 0;
    const uint64_t tiles = rows / L3_TILE_ROWS + (rows % L3_TILE_ROWS != 0);
    return __builtin_mul_overflow(tiles, tile_bytes(dtype, width), &bytes) ? 0 : bytes;
}

/* Whether the last element lies within `bytes`. */
static bool fits(const l3_source *source) {
    const uint64_t item = source->type == L3_SOURCE_F32 ? 4u : 2u;
    uint64_t down = 0;
    uint64_t across = 0;
    uint64_t last = 0;
    uint64_t end = 0;
    return !__builtin_mul_overflow(source->rows - 1u, source->row_stride, &down) &&
           !__builtin_mul_overflow(source->width - 1u, source->column_stride, &across) &&
           !__builtin_add_overflow(down, across, &last) && !__builtin_add_overflow(last, 1u, &last) &&
           !__builtin_mul_overflow(last, item, &end) && end <= source->bytes;
}

static bool is_sound_rounding(const l3_rounding *rounding, uint32_t dtype) {
    const int32_t lowest = dtype == L3_Q4X8 ? -8 : -127;
    const int32_t highest = dtype == L3_Q4X8 ? 7 : 127;
    if (rounding == NULL || rounding->lowest < lowest || rounding->highest > highest ||
        rounding->divisor_count > L3_QUANTIZE_MAX_DIVISORS || rounding->far_count > L3_QUANTIZE_MAX_DIVISORS) {
        return false;
    }
    bool sound = rounding->plain >= 1.0f && rounding->plain <= 256.0f;
    for (uint32_t i = 0; i < rounding->divisor_count; i++) {
        sound = sound && rounding->divisors[i] >= 1.0f && rounding->divisors[i] <= 256.0f;
    }
    for (uint32_t i = 0; i < rounding->far_count; i++) {
        sound = sound && rounding->far_divisors[i] >= 1.0f && rounding->far_divisors[i] <= 256.0f;
    }
    return sound;
}

static bool is_sound_importance(const l3_source *source) {
    for (uint64_t k = 0; source->importance != NULL && k < source->width; k++) {
        const float weight = source->importance[k];
        if (!(weight >= 0.0f) || weight > 1e9f) {
            return false;
        }
    }
    return true;
}

static uint64_t first_not_finite(const l3_source *source) {
    for (uint64_t row = 0; row < source->rows; row++) {
        for (uint64_t k = 0; k < source->width; k++) {
            const uint64_t index = row * source->row_stride + k * source->column_stride;
            if (!l3_bits_are_finite(l3_widen_bits(source, index))) {
                return row * source->width + k;
            }
        }
    }
    return 0;
}

int32_t l3_quantize_rows(const l3_source *source, uint32_t dtype, const l3_rounding *rounding, void *out,
                         uint64_t capacity, const char *kernels, l3_quantize_result *result) {
    if (source == NULL || out == NULL || kernels == NULL || result == NULL || source->values == NULL ||
        source->type > L3_SOURCE_BF16 || source->rows == 0 || source->width == 0) {
        return L3_QUANTIZE_ARGUMENT;
    }
    const l3_tile_kernels *chosen = find_kernels(kernels);
    const uint64_t needed = l3_quantize_bytes(dtype, source->rows, source->width);
    const bool is_quantized = dtype == L3_Q8X8 || dtype == L3_Q4X8;
    if (chosen == NULL || needed == 0 || needed > capacity || needed > SIZE_MAX || !fits(source) ||
        !is_sound_importance(source) || (is_quantized && !is_sound_rounding(rounding, dtype))) {
        return L3_QUANTIZE_ARGUMENT;
    }
    const l3_tile_fn encode = dtype == L3_F32X8    ? chosen->float32
                              : dtype == L3_BF16X8 ? chosen->bfloat16
                              : dtype == L3_Q8X8   ? chosen->int8
                                                   : chosen->int4;
    *result = (l3_quantize_result){0};
    l3_tile_job job = {.source = source, .rounding = rounding, .out = out, .result = result};
    for (; job.first < source->rows; job.first += L3_TILE_ROWS) {
        const l3_quantize_status status = encode(&job);
        if (status == L3_QUANTIZE_NOT_FINITE) {
            result->position = first_not_finite(source);
        }
        if (status != L3_QUANTIZE_OK) {
            return (int32_t)status;
        }
        job.out += tile_bytes(dtype, source->width);
    }
    return L3_QUANTIZE_OK;
}
