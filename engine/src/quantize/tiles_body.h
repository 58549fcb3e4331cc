/* The kernels of tiles.h. The eight rows of a tile are the eight lanes of a vector, so every sum runs along K in one
 * order for every processor, and each lane is the scalar computation. L3_TILES_NAME and L3_TILES_TABLE come from the
 * file that includes this one.
 */
#include <stdbool.h>

#include "quantize/tiles.h"

#define GROUP L3_QUANTIZE_GROUP
#define ROWS L3_TILE_ROWS
#define HALF_MAX 65504.0f
#define HALF_TINY 0x1p-24f
#define HALF_NORMAL 0x1p-14f
/* Adding and subtracting it rounds what is below 2^22 to the nearest integer, ties to even. */
#define ROUND_TO_INTEGER 12582912.0f

/* Vectors are passed by address: by value they would travel differently with and without AVX. */
typedef float lanes __attribute__((vector_size(32)));
typedef int32_t ints __attribute__((vector_size(32)));

typedef struct group_values {
    lanes x[GROUP];
    const float *importance; /* of this group's columns, or NULL */
    lanes magnitude;         /* largest of each row */
    lanes largest;
    lanes smallest;
} group_values;

typedef struct choice {
    lanes scale;
    lanes error;
    lanes q[GROUP];
} choice;

static inline __attribute__((always_inline)) void choose(lanes *out, const ints *mask, const lanes *yes,
                                                         const lanes *no) {
    *out = (lanes)(((ints)*yes & *mask) | ((ints)*no & ~*mask));
}

/* Sum of the products a[k] b[k] of each row, or of (a[k] w[k]) b[k]: four running sums, each over every fourth k, the
 * upper k of each half of the group first. */
static inline __attribute__((always_inline)) void sum_products(lanes *out, const lanes a[GROUP], const lanes b[GROUP],
                                                               const float *weight) {
    lanes sums[4] = {{0}, {0}, {0}, {0}};
    for (unsigned half = 0; half < GROUP; half += 16u) {
        for (unsigned step = 0; step < 4u; step++) {
            for (unsigned lane = 0; lane < 4u; lane++) {
                const unsigned k = half + 4u * (3u - step) + lane;
                if (weight != NULL) {
                    sums[lane] += (a[k] * weight[k]) * b[k];
                } else {
                    sums[lane] += a[k] * b[k];
                }
            }
        }
    }
    *out = (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/* To the nearest float16, of either sign; what would become zero becomes the smallest one, except in a row of zeros. */
static inline __attribute__((always_inline)) void to_half_scale(lanes *scale, const group_values *group) {
    const lanes tiny = HALF_TINY - (lanes){0};
    const lanes most = HALF_MAX - (lanes){0};
    const ints sign = (ints)*scale & INT32_MIN;
    lanes size = (lanes)((ints)*scale & INT32_MAX);
    ints mask = size < tiny;
    choose(&size, &mask, &tiny, &size);
    mask = size > most;
    choose(&size, &mask, &most, &size);
    const ints bits = (ints)size;
    const lanes normal = (lanes)((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF);
    const lanes subnormal = (size + 0.5f) - 0.5f;
    mask = size < HALF_NORMAL;
    choose(&size, &mask, &subnormal, &normal);
    const lanes rounded = (lanes)((ints)size | sign);
    const lanes zero = {0};
    mask = group->magnitude > zero;
    choose(scale, &mask, &rounded, &zero);
}

/* Rounds the group with these scales and keeps scale, integers and error of every row that they serve better. */
static inline __attribute__((always_inline)) void try_scale(const group_values *group, const l3_rounding *rounding,
                                                            const lanes *scale, choice *best) {
    const lanes zero = {0};
    const lanes low = (float)rounding->lowest - zero;
    const lanes high = (float)rounding->highest - zero;
    ints mask = *scale != zero;
    lanes inverse = 1.0f / *scale;
    choose(&inverse, &mask, &inverse, &zero);
    lanes q[GROUP];
    lanes difference[GROUP];
    for (unsigned k = 0; k < GROUP; k++) {
        lanes value = (group->x[k] * inverse + ROUND_TO_INTEGER) - ROUND_TO_INTEGER;
        mask = value < low;
        choose(&value, &mask, &low, &value);
        mask = value > high;
        choose(&q[k], &mask, &high, &value);
        difference[k] = group->x[k] - q[k] * *scale;
    }
    lanes error;
    sum_products(&error, difference, difference, group->importance);
    mask = error < best->error;
    choose(&best->error, &mask, &error, &best->error);
    choose(&best->scale, &mask, scale, &best->scale);
    for (unsigned k = 0; k < GROUP; k++) {
        choose(&best->q[k], &mask, &q[k], &best->q[k]);
    }
}

/* The scale that fits the integers best: sum(x q) / sum(q q) where there is one. */
static inline __attribute__((always_inline)) void fit_scale(const group_values *group, const choice *best,
                                                            lanes *scale) {
    const lanes zero = {0};
    lanes product;
    lanes norm;
    sum_products(&product, group->x, best->q, group->importance);
    sum_products(&norm, best->q, best->q, group->importance);
    const ints mask = norm > zero;
    lanes fitted = product / norm;
    choose(scale, &mask, &fitted, &best->scale);
}

/* Fills `best`; the error of plain scales goes to *plain_error. */
static inline __attribute__((always_inline)) void search(const group_values *group, const l3_rounding *rounding,
                                                         choice *best, lanes *plain_error) {
    const lanes zero = {0};
    best->error = __builtin_inff() - zero;
    best->scale = zero;
    for (unsigned k = 0; k < GROUP; k++) {
        best->q[k] = zero;
    }
    lanes scale = group->magnitude / rounding->plain;
    to_half_scale(&scale, group);
    try_scale(group, rounding, &scale, best);
    *plain_error = best->error;
    for (uint32_t i = 0; i < rounding->divisor_count; i++) {
        scale = group->magnitude / rounding->divisors[i];
        to_half_scale(&scale, group);
        try_scale(group, rounding, &scale, best);
    }
    const ints upward = group->largest > -group->smallest;
    const lanes opposite = -group->magnitude;
    lanes far_end;
    choose(&far_end, &upward, &opposite, &group->magnitude);
    for (uint32_t i = 0; i < rounding->far_count; i++) {
        scale = far_end / rounding->far_divisors[i];
        to_half_scale(&scale, group);
        try_scale(group, rounding, &scale, best);
    }
    for (uint32_t i = 0; i < rounding->refinements; i++) {
        fit_scale(group, best, &scale);
        to_half_scale(&scale, group);
        try_scale(group, rounding, &scale, best);
    }
    ints any = {0};
    for (unsigned k = 0; k < GROUP; k++) {
        any |= best->q[k] != zero;
    }
    choose(&best->scale, &any, &best->scale, &zero);
}

/* Widens `count` columns from `column` on into values[k][row]; rows beyond the source are zero. */
static l3_quantize_status load_columns(const l3_tile_job *job, uint64_t column, uint32_t count, float (*values)[ROWS]) {
    const l3_source *source = job->source;
    const uint64_t left = source->rows - job->first;
    const uint32_t rows = left < ROWS ? (uint32_t)left : ROWS;
    uint32_t not_finite = 0;
    for (uint32_t row = 0; row < rows; row++) {
        uint64_t index = (job->first + row) * source->row_stride + column * source->column_stride;
        for (uint32_t k = 0; k < count; k++) {
            const uint32_t bits = l3_widen_bits(source, index);
            not_finite |= l3_bits_are_finite(bits) ? 0u : 1u;
            __builtin_memcpy(&values[k][row], &bits, 4u);
            index += source->column_stride;
        }
    }
    for (uint32_t row = rows; row < ROWS; row++) {
        for (uint32_t k = 0; k < count; k++) {
            values[k][row] = 0.0f;
        }
    }
    if (not_finite) {
        return L3_QUANTIZE_NOT_FINITE;
    }
    if (source->row_factors == NULL && source->column_factors == NULL) {
        return L3_QUANTIZE_OK;
    }
    for (uint32_t row = 0; row < rows; row++) {
        for (uint32_t k = 0; k < count; k++) {
            double value = (double)values[k][row];
            if (source->row_factors != NULL) {
                value *= source->row_factors[job->first + row];
            }
            if (source->column_factors != NULL) {
                value *= source->column_factors[column + k];
            }
            values[k][row] = (float)value;
            not_finite |= __builtin_isfinite(values[k][row]) ? 0u : 1u;
        }
    }
    if (not_finite) {
        job->result->magnitude = __builtin_inff();
        return L3_QUANTIZE_VALUE_RANGE;
    }
    return L3_QUANTIZE_OK;
}

static l3_quantize_status load_group(const l3_tile_job *job, uint64_t column, group_values *group) {
    float values[GROUP][ROWS];
    const l3_quantize_status status = load_columns(job, column, GROUP, values);
    if (status != L3_QUANTIZE_OK) {
        return status;
    }
    __builtin_memcpy(group->x, values, sizeof values);
    group->importance = job->source->importance == NULL ? NULL : job->source->importance + column;
    group->largest = group->x[0];
    group->smallest = group->x[0];
    for (unsigned k = 1; k < GROUP; k++) {
        ints mask = group->x[k] > group->largest;
        choose(&group->largest, &mask, &group->x[k], &group->largest);
        mask = group->x[k] < group->smallest;
        choose(&group->smallest, &mask, &group->x[k], &group->smallest);
    }
    const lanes below = -group->smallest;
    const ints mask = group->largest > below;
    choose(&group->magnitude, &mask, &group->largest, &below);
    /* Minus zero would turn the sign of a scale of zero. */
    group->magnitude = (lanes)((ints)group->magnitude & INT32_MAX);
    for (unsigned row = 0; row < ROWS; row++) {
        if ((double)group->magnitude[row] / (double)job->rounding->plain > (double)HALF_MAX) {
            job->result->magnitude = group->magnitude[row];
            return L3_QUANTIZE_SCALE_RANGE;
        }
    }
    return L3_QUANTIZE_OK;
}

/* The bit patterns of scales that are float16 values already. */
static void store_scales(const lanes *scale, uint8_t *out) {
    for (unsigned row = 0; row < ROWS; row++) {
        const float value = (*scale)[row];
        uint32_t bits;
        __builtin_memcpy(&bits, &value, 4u);
        const uint32_t sign = bits >> 31;
        bits &= INT32_MAX;
        const float size = sign ? -value : value;
        const uint32_t pattern = size < HALF_NORMAL ? (uint32_t)(size * 0x1p24f) : (bits >> 13) - (112u << 10);
        const uint32_t half = pattern | (sign << 15);
        out[2u * row] = (uint8_t)half;
        out[2u * row + 1u] = (uint8_t)(half >> 8);
    }
}

/* Four vectors of bytes side by side: byte 4 row + i of a chunk is row's value of vector i. */
static inline __attribute__((always_inline)) void store_chunk(const ints *v, uint8_t *out) {
    const ints packed = (v[0] & 0xFF) | ((v[1] & 0xFF) << 8) | ((v[2] & 0xFF) << 16) | (v[3] << 24);
    __builtin_memcpy(out, &packed, sizeof packed);
}

static inline __attribute__((always_inline)) l3_quantize_status quantize_tile(const l3_tile_job *job, bool is_int4) {
    const size_t group_bytes = 2u * ROWS + (is_int4 ? GROUP / 2u : GROUP) * ROWS;
    uint8_t *out = job->out;
    for (uint64_t column = 0; column < job->source->width; column += GROUP) {
        group_values group;
        const l3_quantize_status status = load_group(job, column, &group);
        if (status != L3_QUANTIZE_OK) {
            return status;
        }
        choice best;
        lanes plain_error;
        lanes energy;
        search(&group, job->rounding, &best, &plain_error);
        sum_products(&energy, group.x, group.x, group.importance);
        for (unsigned row = 0; row < ROWS; row++) {
            job->result->energy += (double)energy[row];
            job->result->error += (double)best.error[row];
            job->result->plain_error += (double)plain_error[row];
        }
        ints q[GROUP];
        for (unsigned k = 0; k < GROUP; k++) {
            q[k] = __builtin_convertvector(best.q[k], ints);
        }
        store_scales(&best.scale, out);
        if (is_int4) {
            for (unsigned k = 0; k < GROUP / 2u; k++) {
                q[k] = (q[k] + 8) | ((q[k + GROUP / 2u] + 8) << 4);
            }
        }
        for (unsigned k = 0; k < (is_int4 ? GROUP / 2u : GROUP); k += 4u) {
            store_chunk(&q[k], out + 2u * ROWS + (size_t)k * ROWS);
        }
        out += group_bytes;
    }
    return L3_QUANTIZE_OK;
}

static l3_quantize_status int8_tile(const l3_tile_job *job) { return quantize_tile(job, false); }

static l3_quantize_status int4_tile(const l3_tile_job *job) { return quantize_tile(job, true); }

static inline uint64_t columns_from(const l3_source *source, uint64_t column) {
    return source->width - column < GROUP ? source->width - column : GROUP;
}

static l3_quantize_status float32_tile(const l3_tile_job *job) {
    uint8_t *out = job->out;
    for (uint64_t column = 0; column < job->source->width; column += GROUP) {
        float values[GROUP][ROWS];
        const uint32_t count = (uint32_t)columns_from(job->source, column);
        const l3_quantize_status status = load_columns(job, column, count, values);
        if (status != L3_QUANTIZE_OK) {
            return status;
        }
        __builtin_memcpy(out, values, (size_t)count * sizeof values[0]);
        out += (size_t)count * sizeof values[0];
    }
    return L3_QUANTIZE_OK;
}

static l3_quantize_status bfloat16_tile(const l3_tile_job *job) {
    uint8_t *out = job->out;
    for (uint64_t column = 0; column < job->source->width; column += GROUP) {
        float values[GROUP][ROWS];
        const uint32_t count = (uint32_t)columns_from(job->source, column);
        const l3_quantize_status status = load_columns(job, column, count, values);
        if (status != L3_QUANTIZE_OK) {
            return status;
        }
        for (uint32_t k = 0; k < count; k++) {
            for (unsigned row = 0; row < ROWS; row++) {
                uint32_t bits;
                __builtin_memcpy(&bits, &values[k][row], 4u);
                const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16; /* ties to even */
                if ((rounded & 0x7F80u) == 0x7F80u) {
                    job->result->magnitude = values[k][row] < 0.0f ? -values[k][row] : values[k][row];
                    return L3_QUANTIZE_VALUE_RANGE;
                }
                out[0] = (uint8_t)rounded;
                out[1] = (uint8_t)(rounded >> 8);
                out += 2;
            }
        }
    }
    return L3_QUANTIZE_OK;
}

const l3_tile_kernels L3_TILES_TABLE = {
    .name = L3_TILES_NAME,
    .float32 = float32_tile,
    .bfloat16 = bfloat16_tile,
    .int8 = int8_tile,
    .int4 = int4_tile,
};
