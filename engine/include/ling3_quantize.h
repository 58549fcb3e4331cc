/* ling3_quantize.h - encodes rows of a checkpoint in the layouts of the .l3r package.
 *
 * A library of its own, libling3_quantize: who runs a model does not need it. It keeps no state, allocates nothing and
 * starts no thread; any number of threads may call it at once. The same input gives the same bytes on every processor:
 * the order of every sum is fixed and nothing is contracted.
 */
#ifndef LING3_QUANTIZE_H
#define LING3_QUANTIZE_H

#include "ling3.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Raised whenever a struct or a function below changes its meaning. */
#define L3_QUANTIZE_ABI_VERSION 1u

#define L3_QUANTIZE_GROUP 32u
#define L3_QUANTIZE_MAX_DIVISORS 8u

typedef enum l3_source_type {
    L3_SOURCE_F32 = 0,
    L3_SOURCE_F16 = 1,
    L3_SOURCE_BF16 = 2
} l3_source_type;

typedef enum l3_quantize_status {
    L3_QUANTIZE_OK = 0,
    L3_QUANTIZE_ARGUMENT = 1,      /* the caller broke the contract of this header */
    L3_QUANTIZE_NOT_FINITE = 2,    /* the source holds NaN or infinity; `position` says where */
    L3_QUANTIZE_SCALE_RANGE = 3,   /* a group needs a scale beyond float16; `magnitude` is what causes it */
    L3_QUANTIZE_VALUE_RANGE = 4    /* a value is beyond bfloat16, or beyond float32 after its factors */
} l3_quantize_status;

/* A block of rows. Element (row, k) lies at values + row * row_stride + k * column_stride, counted in elements. */
typedef struct l3_source {
    const void *values;
    uint64_t bytes; /* that may be read from `values` on */
    uint64_t rows;
    uint64_t width;
    uint64_t row_stride;
    uint64_t column_stride;
    const double *row_factors;    /* [rows] or NULL */
    const double *column_factors; /* [width] or NULL; a value is multiplied by its row's factor first */
    const float *importance;      /* [width] or NULL: weight of each column's squared error, finite and not negative */
    uint32_t type;                /* an l3_source_type */
    uint32_t reserved;            /* zero */
} l3_source;

/* How a group of 32 values is rounded to integers with one float16 scale. The plain scale is largest magnitude / plain;
 * every other scale must give a smaller squared error than the best one before it. */
typedef struct l3_rounding {
    int32_t lowest;  /* of the integers; at least -127 for int8, -8 for int4 */
    int32_t highest; /* at most 127 for int8, 7 for int4 */
    float plain;
    uint32_t refinements; /* how often the best scale is fitted to its own integers by least squares */
    uint32_t divisor_count;
    uint32_t far_count;
    float divisors[L3_QUANTIZE_MAX_DIVISORS]; /* further divisors to try */
    float far_divisors[L3_QUANTIZE_MAX_DIVISORS]; /* the same with the sign that takes the largest magnitude to `lowest` */
} l3_rounding;

/* Sums over the groups of a quantised layout, weighted by importance where there is one; zero for other layouts. */
typedef struct l3_quantize_result {
    double energy;      /* of squared values */
    double error;       /* of squared errors */
    double plain_error; /* of squared errors that plain scales would make */
    uint64_t position;  /* row * width + k of the first value that is not finite */
    float magnitude;
    uint32_t reserved;
} l3_quantize_result;

L3_API uint32_t l3_quantize_abi_version(void);

/* Names of the instruction sets that this processor has, best first: writes at most `capacity`, returns how many. */
L3_API uint32_t l3_quantize_kernels(const char **names, uint32_t capacity);

/* Bytes of `rows` x `width` in a layout, the padding rows of the last tile of 8 included; 0 where the layout is not one
 * of matrices, the width does not fit it or the number overflows. */
L3_API uint64_t l3_quantize_bytes(uint32_t dtype, uint64_t rows, uint64_t width);

/* Encodes the rows.
 *
 * dtype: L3_F32X8, L3_BF16X8, L3_Q8X8 or L3_Q4X8. rounding: needed by the last two. out, capacity: at least
 * l3_quantize_bytes. kernels: a name of l3_quantize_kernels, or "" for the best. result: filled unless ARGUMENT.
 * Returns an l3_quantize_status; the content of `out` counts only after OK.
 */
L3_API int32_t l3_quantize_rows(const l3_source *source, uint32_t dtype, const l3_rounding *rounding, void *out,
                                uint64_t capacity, const char *kernels, l3_quantize_result *result);

#ifdef __cplusplus
}
#endif
#endif
