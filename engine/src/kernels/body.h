/* The float kernels, written once over eight lanes and compiled once per kernel set.
 * Include after one of the lanes_*.h headers. Lengths need not be multiples of 8: the tail is padded with zeros. */
#include <string.h>

#include "kernels/kernels.h"

#define L3_E4M3_UNIT 256.0f /* v8_load_e4m3 gives values divided by this */
#define L3_ROUND_MAGIC 12582912.0f /* 1.5 * 2^23: adding it rounds to a whole number, ties to even */

static inline v8 load_n(const float *p, size_t n) {
    float padded[8] = {0};
    if (n >= 8) {
        return v8_load(p);
    }
    memcpy(padded, p, n * sizeof *p);
    return v8_load(padded);
}

static inline void store_n(float *p, v8 a, size_t n) {
    float padded[8];
    if (n >= 8) {
        v8_store(p, a);
        return;
    }
    v8_store(padded, a);
    memcpy(p, padded, n * sizeof *p);
}

/* The fixed tree of kernels.h. */
static inline float sum8(v8 a) {
    float lane[8];
    v8_store(lane, a);
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

static inline float root(float x) { return __builtin_sqrtf(x); }

/* e^x within 2 ulp on [-87, 88]; clamped outside, NaN stays NaN. Cody-Waite reduction, then the Taylor series to x^7:
 * |r| <= ln2/2, so the first term left out is below 5e-9. */
static inline v8 exp8(v8 x) {
    v8 magic, n, r, p;
    x = v8_max(v8_set1(-87.0f), x);
    x = v8_min(v8_set1(88.0f), x);
    magic = v8_add(v8_mul(x, v8_set1(1.44269504f)), v8_set1(L3_ROUND_MAGIC));
    n = v8_sub(magic, v8_set1(L3_ROUND_MAGIC));
    r = v8_sub(x, v8_mul(n, v8_set1(0.693359375f)));
    r = v8_sub(r, v8_mul(n, v8_set1(-2.12194440e-4f)));
    p = v8_set1(1.0f / 5040.0f);
    p = v8_add(v8_mul(p, r), v8_set1(1.0f / 720.0f));
    p = v8_add(v8_mul(p, r), v8_set1(1.0f / 120.0f));
    p = v8_add(v8_mul(p, r), v8_set1(1.0f / 24.0f));
    p = v8_add(v8_mul(p, r), v8_set1(1.0f / 6.0f));
    p = v8_add(v8_mul(p, r), v8_set1(0.5f));
    p = v8_add(v8_mul(p, r), v8_set1(1.0f));
    p = v8_add(v8_mul(p, r), v8_set1(1.0f));
    /* The last step works on bits and would make a number of a NaN that carries a payload. */
    return v8_add(v8_scale2(p, magic), v8_mul(x, v8_set1(0.0f)));
}

static inline v8 sigmoid8(v8 x) {
    v8 one = v8_set1(1.0f);
    return v8_div(one, v8_add(one, exp8(v8_sub(v8_set1(0.0f), x))));
}

static void rms_norm(const float *x, const float *w, size_t n, float eps, float *y) {
    v8 sum = v8_set1(0.0f);
    v8 factor;
    for (size_t i = 0; i < n; i += 8) {
        v8 v = load_n(x + i, n - i);
        sum = v8_add(sum, v8_mul(v, v));
    }
    factor = v8_set1(1.0f / root(sum8(sum) / (float)n + eps));
    for (size_t i = 0; i < n; i += 8) {
        v8 v = v8_mul(load_n(w + i, n - i), v8_mul(load_n(x + i, n - i), factor));
        store_n(y + i, v, n - i);
    }
}

static void l2_norm(const float *x, size_t n, float eps, float factor, float *y) {
    v8 sum = v8_set1(0.0f);
    v8 scale;
    for (size_t i = 0; i < n; i += 8) {
        v8 v = load_n(x + i, n - i);
        sum = v8_add(sum, v8_mul(v, v));
    }
    scale = v8_set1(1.0f / root(sum8(sum) + eps) * factor);
    for (size_t i = 0; i < n; i += 8) {
        store_n(y + i, v8_mul(load_n(x + i, n - i), scale), n - i);
    }
}

static void add(float *y, const float *x, size_t n) {
    for (size_t i = 0; i < n; i += 8) {
        store_n(y + i, v8_add(load_n(y + i, n - i), load_n(x + i, n - i)), n - i);
    }
}

static void axpy(float *y, float a, const float *x, size_t n) {
    for (size_t i = 0; i < n; i += 8) {
        v8 product = v8_mul(v8_set1(a), load_n(x + i, n - i));
        store_n(y + i, v8_add(load_n(y + i, n - i), product), n - i);
    }
}

static void scale(float *y, float a, size_t n) {
    for (size_t i = 0; i < n; i += 8) {
        store_n(y + i, v8_mul(load_n(y + i, n - i), v8_set1(a)), n - i);
    }
}

static void silu_mul(const float *gate, const float *up, size_t n, float *y) {
    for (size_t i = 0; i < n; i += 8) {
        v8 g = load_n(gate + i, n - i);
        store_n(y + i, v8_mul(v8_mul(g, sigmoid8(g)), load_n(up + i, n - i)), n - i);
    }
}

static void sigmoid_mul(float *y, const float *gate, size_t n) {
    for (size_t i = 0; i < n; i += 8) {
        store_n(y + i, v8_mul(load_n(y + i, n - i), sigmoid8(load_n(gate + i, n - i))), n - i);
    }
}

static void sigmoid(const float *x, size_t n, float *y) {
    for (size_t i = 0; i < n; i += 8) {
        store_n(y + i, sigmoid8(load_n(x + i, n - i)), n - i);
    }
}

static void conv_silu(const float *const *taps, const float *w, size_t w_stride, size_t kernel, size_t n, float *y) {
    for (size_t i = 0; i < n; i += 8) {
        v8 sum = v8_set1(0.0f);
        for (size_t j = 0; j < kernel; j++) {
            sum = v8_add(sum, v8_mul(load_n(w + j * w_stride + i, n - i), load_n(taps[j] + i, n - i)));
        }
        store_n(y + i, v8_mul(sum, sigmoid8(sum)), n - i);
    }
}

static void kda_decay(const float *f, const float *bias, float a_log, float lower, size_t n, float *a) {
    v8 rate = exp8(v8_set1(a_log));
    for (size_t i = 0; i < n; i += 8) {
        v8 gate = sigmoid8(v8_mul(rate, v8_add(load_n(f + i, n - i), load_n(bias + i, n - i))));
        store_n(a + i, exp8(v8_mul(v8_set1(lower), gate)), n - i);
    }
}

/* `blocks` columns of eight starting at s: the two passes touch dk * 8 * blocks floats, which stay in the first cache. */
static inline void kda_columns(float *s, size_t dk, size_t dv, const float *q, const float *k, const float *v,
                               const float *a, float beta, float *o, size_t blocks) {
    v8 seen[4];
    v8 out[4];
    for (size_t b = 0; b < blocks; b++) {
        seen[b] = v8_set1(0.0f);
        out[b] = v8_set1(0.0f);
    }
    for (size_t i = 0; i < dk; i++) {
        v8 ka = v8_set1(k[i]);
        v8 decay = v8_set1(a[i]);
        for (size_t b = 0; b < blocks; b++) {
            v8 state = v8_mul(v8_load(s + i * dv + 8 * b), decay);
            seen[b] = v8_add(seen[b], v8_mul(state, ka));
        }
    }
    for (size_t b = 0; b < blocks; b++) {
        seen[b] = v8_mul(v8_set1(beta), v8_sub(v8_load(v + 8 * b), seen[b]));
    }
    for (size_t i = 0; i < dk; i++) {
        v8 ka = v8_set1(k[i]);
        v8 decay = v8_set1(a[i]);
        v8 qa = v8_set1(q[i]);
        for (size_t b = 0; b < blocks; b++) {
            v8 state = v8_mul(v8_load(s + i * dv + 8 * b), decay);
            state = v8_add(state, v8_mul(ka, seen[b]));
            v8_store(s + i * dv + 8 * b, state);
            out[b] = v8_add(out[b], v8_mul(state, qa));
        }
    }
    for (size_t b = 0; b < blocks; b++) {
        v8_store(o + 8 * b, out[b]);
    }
}

static void kda_step(float *s, size_t dk, size_t dv, const float *q, const float *k, const float *v, const float *a,
                     float beta, float *o) {
    size_t c = 0;
    for (; c + 32 <= dv; c += 32) {
        kda_columns(s + c, dk, dv, q, k, v + c, a, beta, o + c, 4);
    }
    for (; c + 8 <= dv; c += 8) { /* dv is a multiple of 8 */
        kda_columns(s + c, dk, dv, q, k, v + c, a, beta, o + c, 1);
    }
}

/* -- rows of the MLA cache -- */

/* `type` is kv->type, and like `heads` a constant in every call: each call is to become code of its own, in which no
 * inner loop looks at them. Builds with AddressSanitizer would take minutes for that. */
#if defined(__SANITIZE_ADDRESS__)
#define L3_SPECIALISED static inline
#else
#define L3_SPECIALISED static inline __attribute__((always_inline))
#endif

static inline bool has_row_scale(uint32_t type) { return type == L3_KV_FP8 || type == L3_KV_INT8; }

/* Eight values of the latent from i on; where rows have a scale, before it. */
L3_SPECIALISED v8 load_latent(const uint8_t *row, uint32_t type, size_t i) {
    const void *p = row;
    switch (type) {
    case L3_KV_BF16: return v8_load_bf16((const uint16_t *)p + i);
    case L3_KV_F16: return v8_load_f16((const uint16_t *)p + i);
    case L3_KV_FP8: return v8_load_e4m3(row + i);
    case L3_KV_INT8: return v8_load_i8((const int8_t *)p + i);
    default: return v8_load((const float *)p + i);
    }
}

static inline const uint16_t *row_key(const uint8_t *row, const l3_kv_layout *kv) {
    return (const uint16_t *)(const void *)(row + kv->latent);
}

static inline float row_scale(const uint8_t *row, const l3_kv_layout *kv, uint32_t type) {
    float factor = l3_f32_from_bits(l3_load_u32(row + kv->latent + 2 * (size_t)kv->rope));
    return type == L3_KV_FP8 ? factor * L3_E4M3_UNIT : factor;
}

/* One row for `heads` queries (1 or 4). */
L3_SPECIALISED void score_row(const float *q, size_t heads, const uint8_t *row, const l3_kv_layout *kv, uint32_t type,
                             float factor, float *out, size_t out_stride) {
    size_t width = kv->latent + kv->rope;
    size_t plain = has_row_scale(type) ? kv->latent : width;
    v8 sum[4];
    for (size_t h = 0; h < heads; h++) {
        sum[h] = v8_set1(0.0f);
    }
    for (size_t d = 0; d < plain; d += 8) {
        v8 c = load_latent(row, type, d);
        for (size_t h = 0; h < heads; h++) {
            sum[h] = v8_add(sum[h], v8_mul(v8_load(q + h * width + d), c));
        }
    }
    if (has_row_scale(type)) {
        v8 rescale = v8_set1(row_scale(row, kv, type));
        for (size_t h = 0; h < heads; h++) {
            sum[h] = v8_mul(sum[h], rescale);
        }
        for (size_t d = kv->latent; d < width; d += 8) {
            v8 c = v8_load_bf16(row_key(row, kv) + (d - kv->latent));
            for (size_t h = 0; h < heads; h++) {
                sum[h] = v8_add(sum[h], v8_mul(v8_load(q + h * width + d), c));
            }
        }
    }
    for (size_t h = 0; h < heads; h++) {
        out[h * out_stride] = factor * sum8(sum[h]);
    }
}

L3_SPECIALISED void scores_of(const float *q, size_t heads, const uint8_t *cache, const l3_kv_layout *kv,
                             uint32_t type, size_t count, float factor, float *out, size_t out_stride) {
    size_t width = kv->latent + kv->rope;
    for (size_t i = 0; i < count; i++) {
        const uint8_t *row = cache + i * kv->row_bytes;
        size_t h = 0;
        for (; h + 4 <= heads; h += 4) {
            score_row(q + h * width, 4, row, kv, type, factor, out + h * out_stride + i, out_stride);
        }
        for (; h < heads; h++) {
            score_row(q + h * width, 1, row, kv, type, factor, out + h * out_stride + i, out_stride);
        }
    }
}

static void mla_scores(const float *q, size_t heads, const void *cache, const l3_kv_layout *kv, size_t count,
                       float factor, float *out, size_t out_stride) {
    switch (kv->type) {
    case L3_KV_BF16: scores_of(q, heads, cache, kv, L3_KV_BF16, count, factor, out, out_stride); break;
    case L3_KV_F16: scores_of(q, heads, cache, kv, L3_KV_F16, count, factor, out, out_stride); break;
    case L3_KV_FP8: scores_of(q, heads, cache, kv, L3_KV_FP8, count, factor, out, out_stride); break;
    case L3_KV_INT8: scores_of(q, heads, cache, kv, L3_KV_INT8, count, factor, out, out_stride); break;
    default: scores_of(q, heads, cache, kv, L3_KV_F32, count, factor, out, out_stride); break;
    }
}

static void softmax(float *x, size_t n) {
    float top = x[0];
    v8 sum = v8_set1(0.0f);
    for (size_t i = 1; i < n; i++) {
        top = x[i] > top ? x[i] : top;
    }
    for (size_t i = 0; i < n; i += 8) {
        float e[8] = {0};
        v8_store(e, exp8(v8_sub(load_n(x + i, n - i), v8_set1(top))));
        for (size_t j = n - i; j < 8; j++) {
            e[j] = 0.0f;
        }
        sum = v8_add(sum, v8_load(e));
        store_n(x + i, v8_load(e), n - i);
    }
    scale(x, 1.0f / sum8(sum), n);
}

/* Rows that are mixed before the next ones: they stay in the first cache for all columns and heads. */
#define L3_MIX_ROWS 32u

/* Adds `count` rows (at most L3_MIX_ROWS) to columns [first, last) of `heads` outputs (1 or 4). */
L3_SPECIALISED void mix_rows(const float *p, size_t heads, size_t p_stride, const uint8_t *rows,
                            const l3_kv_layout *kv, uint32_t type, size_t count, bool fresh, size_t first, size_t last,
                            float *out, size_t out_stride) {
    float weights[4][L3_MIX_ROWS];
    for (size_t i = 0; i < count; i++) {
        float factor = has_row_scale(type) ? row_scale(rows + i * kv->row_bytes, kv, type) : 1.0f;
        for (size_t h = 0; h < heads; h++) {
            weights[h][i] = p[h * p_stride + i] * factor;
        }
    }
    for (size_t d = first; d < last; d += 8) {
        v8 sum[4];
        for (size_t h = 0; h < heads; h++) {
            sum[h] = fresh ? v8_set1(0.0f) : v8_load(out + h * out_stride + d);
        }
        for (size_t i = 0; i < count; i++) {
            v8 c = load_latent(rows + i * kv->row_bytes, type, d);
            for (size_t h = 0; h < heads; h++) {
                sum[h] = v8_add(sum[h], v8_mul(v8_set1(weights[h][i]), c));
            }
        }
        for (size_t h = 0; h < heads; h++) {
            v8_store(out + h * out_stride + d, sum[h]);
        }
    }
}

L3_SPECIALISED void mix_of(const float *p, size_t heads, size_t p_stride, const uint8_t *cache, const l3_kv_layout *kv,
                          uint32_t type, size_t count, size_t first, size_t last, float *out, size_t out_stride) {
    for (size_t i = 0; i < count; i += L3_MIX_ROWS) {
        const uint8_t *rows = cache + i * kv->row_bytes;
        size_t n = count - i < L3_MIX_ROWS ? count - i : L3_MIX_ROWS;
        size_t h = 0;
        for (; h + 4 <= heads; h += 4) {
            mix_rows(p + h * p_stride + i, 4, p_stride, rows, kv, type, n, i == 0, first, last, out + h * out_stride,
                     out_stride);
        }
        for (; h < heads; h++) {
            mix_rows(p + h * p_stride + i, 1, p_stride, rows, kv, type, n, i == 0, first, last, out + h * out_stride,
                     out_stride);
        }
    }
}

static void mla_mix(const float *p, size_t heads, size_t p_stride, const void *cache, const l3_kv_layout *kv,
                    size_t count, size_t first, size_t last, float *out, size_t out_stride) {
    switch (kv->type) {
    case L3_KV_BF16: mix_of(p, heads, p_stride, cache, kv, L3_KV_BF16, count, first, last, out, out_stride); break;
    case L3_KV_F16: mix_of(p, heads, p_stride, cache, kv, L3_KV_F16, count, first, last, out, out_stride); break;
    case L3_KV_FP8: mix_of(p, heads, p_stride, cache, kv, L3_KV_FP8, count, first, last, out, out_stride); break;
    case L3_KV_INT8: mix_of(p, heads, p_stride, cache, kv, L3_KV_INT8, count, first, last, out, out_stride); break;
    default: mix_of(p, heads, p_stride, cache, kv, L3_KV_F32, count, first, last, out, out_stride); break;
    }
}

/* The factor that maps the largest magnitude of x to `most`, and its inverse for the way back. Below 1e-30 the factor
 * would overflow and the values are nothing: both are 0. What is not finite must not vanish in integers: the inverse
 * carries it on as NaN. n % 8 == 0. */
static inline float range_factor(const float *x, size_t n, float most, float *inverse) {
    float lane[8];
    float top = 0.0f;
    v8 largest = v8_set1(0.0f);
    v8 nothing = v8_set1(0.0f); /* NaN where any value is not finite */
    for (size_t i = 0; i < n; i += 8) {
        v8 v = v8_load(x + i);
        largest = v8_max(largest, v8_abs(v));
        nothing = v8_add(nothing, v8_mul(v, v8_set1(0.0f)));
    }
    v8_store(lane, largest);
    for (size_t i = 0; i < 8; i++) {
        top = lane[i] > top ? lane[i] : top;
    }
    *inverse = (top < 1e-30f ? 0.0f : top / most) + sum8(nothing);
    return top < 1e-30f ? 0.0f : most / top;
}

/* x * factor within -most..most; NaN becomes -most. */
static inline v8 scaled_within(const float *x, v8 factor, float most) {
    return v8_min(v8_max(v8_mul(v8_load(x), factor), v8_set1(-most)), v8_set1(most));
}

static inline void store_rounded(const float *x, size_t n, float factor, int8_t *q) {
    for (size_t i = 0; i < n; i += 8) {
        v8 scaled = scaled_within(x + i, v8_set1(factor), 127.0f);
        v8_store_i8(q + i, v8_sub(v8_add(scaled, v8_set1(L3_ROUND_MAGIC)), v8_set1(L3_ROUND_MAGIC)));
    }
}

static inline void store_e4m3(const float *x, size_t n, float factor, uint8_t *out) {
    for (size_t i = 0; i < n; i += 8) {
        float lane[8];
        v8_store(lane, scaled_within(x + i, v8_set1(factor), 448.0f));
        for (size_t j = 0; j < 8; j++) {
            out[i + j] = l3_e4m3_from_f32(lane[j]);
        }
    }
}

static void store_bf16(const float *x, size_t n, uint16_t *out) {
    for (size_t i = 0; i < n; i++) {
        out[i] = l3_bf16_from_f32(x[i]);
    }
}

static void store_kv(const float *x, const l3_kv_layout *kv, void *row) {
    size_t width = kv->latent + kv->rope;
    uint8_t *bytes = row;
    float factor;
    float inverse;
    switch (kv->type) {
    case L3_KV_BF16: store_bf16(x, width, row); return;
    case L3_KV_F16:
        for (size_t i = 0; i < width; i += 8) {
            v8_store_f16((uint16_t *)row + i, v8_load(x + i));
        }
        return;
    case L3_KV_FP8:
        factor = range_factor(x, kv->latent, 448.0f, &inverse);
        store_e4m3(x, kv->latent, factor, bytes);
        break;
    case L3_KV_INT8:
        factor = range_factor(x, kv->latent, 127.0f, &inverse);
        store_rounded(x, kv->latent, factor, row);
        break;
    default: memcpy(row, x, width * sizeof *x); return;
    }
    store_bf16(x + kv->latent, kv->rope, (uint16_t *)(void *)(bytes + kv->latent));
    inverse = inverse == inverse ? inverse : l3_f32_from_bits(0x7fc00000u); /* processors make NaNs of their own */
    memcpy(bytes + kv->latent + 2 * (size_t)kv->rope, &inverse, sizeof inverse);
}

static void quantize_a8(const float *x, size_t n, int8_t *q, float *group_scale, int32_t *group_sum8) {
    for (size_t g = 0; g < n / 32; g++, x += 32, q += 32) {
        int32_t sum = 0;
        float factor = range_factor(x, 32, 127.0f, &group_scale[g]);
        store_rounded(x, 32, factor, q);
        for (size_t i = 0; i < 32; i++) {
            sum += q[i];
        }
        group_sum8[g] = 8 * sum;
    }
}

/* Float matrices: four tiles side by side, so that the additions of one row need not wait for each other. */
static inline v8 load_weight(const uint8_t *p, bool bf16) {
    return bf16 ? v8_load_bf16((const uint16_t *)(const void *)p) : v8_load((const float *)(const void *)p);
}

static inline void matmul_float(const uint8_t *data, uint64_t tile_bytes, uint32_t k, uint32_t first_tile,
                                uint32_t tiles, uint32_t last_rows, const l3_operand *operands, uint32_t n, bool bf16) {
    size_t step = bf16 ? 16 : 32;
    for (uint32_t t = 0; t < n; t++) {
        const float *x = operands[t].x;
        float *y = operands[t].y + 8 * (size_t)first_tile;
        uint32_t tile = 0;
        for (; tile + 4 < tiles; tile += 4) { /* the last tile is never among the four */
            const uint8_t *p = data + tile * tile_bytes;
            v8 sum0 = v8_set1(0.0f);
            v8 sum1 = sum0;
            v8 sum2 = sum0;
            v8 sum3 = sum0;
            for (size_t i = 0; i < k; i++) {
                v8 xi = v8_set1(x[i]);
                sum0 = v8_add(sum0, v8_mul(load_weight(p + i * step, bf16), xi));
                sum1 = v8_add(sum1, v8_mul(load_weight(p + tile_bytes + i * step, bf16), xi));
                sum2 = v8_add(sum2, v8_mul(load_weight(p + 2 * tile_bytes + i * step, bf16), xi));
                sum3 = v8_add(sum3, v8_mul(load_weight(p + 3 * tile_bytes + i * step, bf16), xi));
            }
            v8_store(y + 8 * tile, sum0);
            v8_store(y + 8 * tile + 8, sum1);
            v8_store(y + 8 * tile + 16, sum2);
            v8_store(y + 8 * tile + 24, sum3);
        }
        for (; tile < tiles; tile++) {
            const uint8_t *p = data + tile * tile_bytes;
            v8 sum = v8_set1(0.0f);
            for (size_t i = 0; i < k; i++) {
                sum = v8_add(sum, v8_mul(load_weight(p + i * step, bf16), v8_set1(x[i])));
            }
            store_n(y + 8 * tile, sum, tile + 1 == tiles ? last_rows : 8);
        }
    }
}

static void matmul_f32(const uint8_t *data, uint64_t tile_bytes, uint32_t k, uint32_t first_tile, uint32_t tiles,
                       uint32_t last_rows, const l3_operand *operands, uint32_t n) {
    matmul_float(data, tile_bytes, k, first_tile, tiles, last_rows, operands, n, false);
}

static void matmul_bf16(const uint8_t *data, uint64_t tile_bytes, uint32_t k, uint32_t first_tile, uint32_t tiles,
                        uint32_t last_rows, const l3_operand *operands, uint32_t n) {
    matmul_float(data, tile_bytes, k, first_tile, tiles, last_rows, operands, n, true);
}

#define L3_KERNEL_TABLE(set_name, set_available)                                                                       \
    {.name = (set_name),                                                                                               \
     .available = (set_available),                                                                                     \
     .matmul_f32 = matmul_f32,                                                                                         \
     .matmul_bf16 = matmul_bf16,                                                                                       \
     .matmul_q8 = matmul_q8,                                                                                           \
     .matmul_q4 = matmul_q4,                                                                                           \
     .quantize_a8 = quantize_a8,                                                                                       \
     .rms_norm = rms_norm,                                                                                             \
     .l2_norm = l2_norm,                                                                                               \
     .add = add,                                                                                                       \
     .axpy = axpy,                                                                                                     \
     .silu_mul = silu_mul,                                                                                             \
     .sigmoid_mul = sigmoid_mul,                                                                                       \
     .scale = scale,                                                                                                   \
     .sigmoid = sigmoid,                                                                                               \
     .conv_silu = conv_silu,                                                                                           \
     .kda_decay = kda_decay,                                                                                           \
     .kda_step = kda_step,                                                                                             \
     .mla_scores = mla_scores,                                                                                         \
     .softmax = softmax,                                                                                               \
     .mla_mix = mla_mix,                                                                                               \
     .store_kv = store_kv}
