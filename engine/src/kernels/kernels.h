/* The one interface of all arithmetic that is worth a vector unit.
 *
 * Every kernel set gives the same bits. Integer sums are exact; float sums run in the order that is written here,
 * without fused multiply-add:
 *   - a matrix row is summed along K from 0 on, group after group, in one accumulator;
 *   - a dot product keeps 8 partial sums (element i goes to sum i % 8), added as ((0+4)+(2+6)) + ((1+5)+(3+7));
 *   - everything else is element by element.
 * Hence a result never depends on batch size, thread count or kernel set. */
#ifndef L3_KERNELS_KERNELS_H
#define L3_KERNELS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ling3.h"

/* One token's activations for a matrix, and where its results go. Float matrices read x, integer ones q, scale, sum8. */
typedef struct l3_operand {
    const float *x;      /* [K] */
    const int8_t *q;     /* [K], -127..127 */
    const float *scale;  /* [K/32] */
    const int32_t *sum8; /* [K/32]: 8 * sum of the group's q, the Q4 offset */
    float *y;            /* [rows] */
} l3_operand;

/* Rows [8 first_tile, ...) of one matrix for n operands: `tiles` tiles at data, of which the last holds last_rows rows. */
typedef void (*l3_matmul_fn)(const uint8_t *data, uint64_t tile_bytes, uint32_t k, uint32_t first_tile, uint32_t tiles,
                             uint32_t last_rows, const l3_operand *operands, uint32_t n);

/* One row of the MLA cache: what a token leaves there. Both widths are multiples of 8.
 *   f32, bf16, f16:  latent + rope values of the type
 *   fp8, int8:       latent bytes, rope bfloat16 values, one float32 scale of the latent; rows are whole words, so that
 *                    512 + 64 values take 512 + 128 + 4 = 644 bytes (bf16: 1152) */
typedef struct l3_kv_layout {
    uint32_t type;      /* l3_kv_type */
    uint32_t latent;    /* values that scores are made of and that are mixed */
    uint32_t rope;      /* values that scores are made of */
    uint32_t row_bytes;
} l3_kv_layout;

l3_kv_layout l3_kv_layout_of(uint32_t kv_type, uint32_t latent, uint32_t rope);

typedef struct l3_kernels {
    const char *name;
    bool (*available)(void);

    l3_matmul_fn matmul_f32;
    l3_matmul_fn matmul_bf16;
    l3_matmul_fn matmul_q8;
    l3_matmul_fn matmul_q4;

    /* Symmetric int8 in groups of 32: scale = amax/127, q = round to nearest even of x * (127/amax). n % 32 == 0. */
    void (*quantize_a8)(const float *x, size_t n, int8_t *q, float *scale, int32_t *sum8);

    /* y = w * x / sqrt(mean(x^2) + eps) */
    void (*rms_norm)(const float *x, const float *w, size_t n, float eps, float *y);
    /* y = x / sqrt(sum(x^2) + eps) * factor */
    void (*l2_norm)(const float *x, size_t n, float eps, float factor, float *y);
    /* y += x */
    void (*add)(float *y, const float *x, size_t n);
    /* y += a * x */
    void (*axpy)(float *y, float a, const float *x, size_t n);
    /* y = silu(gate) * up */
    void (*silu_mul)(const float *gate, const float *up, size_t n, float *y);
    /* y *= sigmoid(gate) */
    void (*sigmoid_mul)(float *y, const float *gate, size_t n);
    void (*scale)(float *y, float a, size_t n);
    /* y = sigmoid(x) */
    void (*sigmoid)(const float *x, size_t n, float *y);
    /* y = silu(sum over j of w[j][.] * taps[j][.]) */
    void (*conv_silu)(const float *const *taps, const float *w, size_t w_stride, size_t kernel, size_t n, float *y);
    /* a = exp(lower * sigmoid(exp(a_log) * (f + bias))) */
    void (*kda_decay)(const float *f, const float *bias, float a_log, float lower, size_t n, float *a);
    /* One token of the delta rule on S[dk][dv]; k, q, a are [dk], v, o are [dv]. */
    void (*kda_step)(float *s, size_t dk, size_t dv, const float *q, const float *k, const float *v, const float *a,
                     float beta, float *o);
    /* Dot products of q[heads][latent + rope] with cache rows [count]: out[h * out_stride + i] = scale * q[h] . row i.
     * Where rows have a scale, the 8 partial sums of the latent are multiplied by it before those of the key follow. */
    void (*mla_scores)(const float *q, size_t heads, const void *cache, const l3_kv_layout *kv, size_t count,
                       float scale, float *out, size_t out_stride);
    /* In place: exp(x - max) / sum */
    void (*softmax)(float *x, size_t n);
    /* out[h * out_stride + d] = sum over i of p[h * p_stride + i] * row i [d], d in [first, last) of the latent. Where
     * rows have a scale, p is multiplied by it first. */
    void (*mla_mix)(const float *p, size_t heads, size_t p_stride, const void *cache, const l3_kv_layout *kv,
                    size_t count, size_t first, size_t last, float *out, size_t out_stride);
    /* Writes latent + rope floats as one row. A latent below 1e-30 throughout becomes zero in fp8 and int8; one that is
     * not finite gets a scale of NaN. */
    void (*store_kv)(const float *x, const l3_kv_layout *kv, void *row);
} l3_kernels;

/* NULL where the name is unknown; "" and "auto" give the best available set. */
const l3_kernels *l3_kernels_find(const char *name);

extern const l3_kernels l3_kernels_scalar;
#if defined(__x86_64__)
extern const l3_kernels l3_kernels_avx2;
#endif
#if defined(__aarch64__)
extern const l3_kernels l3_kernels_neon;
#endif

#endif
