/* Runs every kernel of one set on generated inputs and writes inputs and results to stdout:
 *   kernel_driver SET
 * Per array: u32 length of name, name, char type (f float32, b bytes, i int32, h 16 bits), u64 count, values; all
 * little-endian. The inputs depend on nothing but this file, so two sets, or two machines, write the same bytes exactly
 * when their kernels agree. Every buffer is a heap block of its exact size for the sanitizers, floats start at an odd
 * multiple of four bytes, and results are followed by GUARD values that no kernel may touch. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "kernels/kernels.h"
#include "package/package.h"

#define GUARD 3
#define GUARD_VALUE (-77.0f)
#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

/* -- output -- */

static void put(const char *name, char type, size_t count, size_t size, const void *values) {
    uint32_t length = (uint32_t)strlen(name);
    uint64_t wide = count;
    if (fwrite(&length, sizeof length, 1, stdout) != 1 || fwrite(name, 1, length, stdout) != length ||
        fwrite(&type, 1, 1, stdout) != 1 || fwrite(&wide, sizeof wide, 1, stdout) != 1 ||
        fwrite(values, size, count, stdout) != count) {
        perror("kernel_driver");
        exit(1);
    }
}

static void put_floats(const char *name, const float *values, size_t count) { put(name, 'f', count, 4, values); }

/* -- memory -- */

static void *block(size_t bytes) {
    void *p = malloc(bytes > 0 ? bytes : 1);
    if (p == NULL) {
        perror("kernel_driver");
        exit(1);
    }
    return p;
}

static float *floats(size_t n) { return (float *)block((n + 1) * sizeof(float)) + 1; }
static void free_floats(float *p) { free(p - 1); }

/* Room for n results and the guard behind them. */
static float *results(size_t n) {
    float *p = floats(n + GUARD);
    for (size_t i = 0; i < n + GUARD; i++) {
        p[i] = GUARD_VALUE;
    }
    return p;
}

/* -- inputs -- */

static uint64_t state;

static void seed(uint64_t value) { state = value * 0x9e3779b97f4a7c15u + 1u; }

static uint32_t bits(void) { /* splitmix64 */
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) >> 32);
}

/* In [-1, 1), a multiple of 2^-23. */
static float uniform(void) { return (float)((int32_t)(bits() >> 8) - 0x800000) * 0x1p-23f; }

static void fill(float *x, size_t n, float scale) {
    for (size_t i = 0; i < n; i++) {
        x[i] = scale * uniform();
    }
}

/* Magnitudes from 2^-24 to 2^8. */
static void fill_wide(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float power = l3_f32_from_bits((103u + bits() % 33u) << 23);
        x[i] = power * uniform();
    }
}

static const float specials[] = {0.0f,     -0.0f,     1.0f,      -1.0f,    INFINITY, -INFINITY, NAN,     FLT_MAX,
                                 -FLT_MAX, FLT_MIN,   0x1p-149f, -1e-40f,  87.0f,    88.0f,     89.0f,   -87.0f,
                                 -88.0f,   -104.0f,   104.0f,    1e-30f,   0.5f,     -0.5f,     1e20f,   -1e20f,
                                 65504.0f, 65519.96f, 65520.0f,  6.1e-05f, 5.96e-8f, 2.98e-8f,  -1e-8f,  3.0f};

static void fill_special(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        x[i] = specials[bits() % COUNT_OF(specials)];
    }
}

/* -- matrix products -- */

typedef struct product_case {
    const char *type;
    l3_matmul_fn matmul;
    size_t tile_bytes;
    uint32_t k;
    uint32_t tiles; /* that exist */
    uint8_t *data;
    l3_operand operands[9];
} product_case;

static void multiply(const product_case *c, const char *variant, uint32_t rows, uint32_t n) {
    char name[96];
    l3_operand operands[9];
    size_t stride = rows + GUARD;
    float *y = floats(n * stride);
    for (size_t i = 0; i < n * stride; i++) {
        y[i] = GUARD_VALUE;
    }
    for (uint32_t t = 0; t < n; t++) {
        operands[t] = c->operands[t];
        operands[t].y = y + t * stride;
    }
    c->matmul(c->data, c->tile_bytes, c->k, 0, (rows + 7) / 8, rows - (rows - 1) / 8 * 8, operands, n);
    snprintf(name, sizeof name, "%s %s k=%u y rows=%u n=%u", c->type, variant, c->k, rows, n);
    put_floats(name, y, n * stride);
    free_floats(y);
}

/* The same product in three calls, as threads share it. */
static void multiply_in_parts(const product_case *c, const char *variant, uint32_t rows, uint32_t n) {
    char name[96];
    l3_operand operands[9];
    size_t stride = rows + GUARD;
    uint32_t tiles = (rows + 7) / 8;
    uint32_t edges[] = {0, tiles / 3, tiles / 2 + 1, tiles};
    float *y = floats(n * stride);
    for (size_t i = 0; i < n * stride; i++) {
        y[i] = GUARD_VALUE;
    }
    for (uint32_t t = 0; t < n; t++) {
        operands[t] = c->operands[t];
        operands[t].y = y + t * stride;
    }
    for (size_t part = 3; part > 0; part--) {
        uint32_t from = edges[part - 1];
        uint32_t to = edges[part];
        if (to > from) {
            c->matmul(c->data + from * c->tile_bytes, c->tile_bytes, c->k, from, to - from,
                      to == tiles ? rows - 8 * (tiles - 1) : 8, operands, n);
        }
    }
    snprintf(name, sizeof name, "%s %s k=%u parts rows=%u n=%u", c->type, variant, c->k, rows, n);
    put_floats(name, y, n * stride);
    free_floats(y);
}

static void multiply_sizes(const product_case *c, const char *variant, bool all) {
    static const uint32_t few[][2] = {{1, 1}, {8, 4}, {13, 5}, {17, 9}};
    static const uint32_t tall[] = {24, 31, 32, 33, 40, 41, 63, 64, 65, 72, 129};
    if (!all) {
        for (size_t i = 0; i < COUNT_OF(few); i++) {
            multiply(c, variant, few[i][0], few[i][1]);
        }
        return;
    }
    for (uint32_t n = 1; n <= 9; n++) {
        for (uint32_t rows = 1; rows <= 17 && rows <= 8 * c->tiles; rows++) {
            multiply(c, variant, rows, n);
        }
        for (size_t i = 0; i < COUNT_OF(tall) && tall[i] <= 8 * c->tiles; i++) {
            multiply(c, variant, tall[i], n);
            multiply_in_parts(c, variant, tall[i], n);
        }
    }
}

/* Weights of one variant; the float16 scales of integer types stand before each group. */
static void fill_weights(const product_case *c, const char *variant, bool q4) {
    size_t block_bytes = q4 ? L3_Q4_BLOCK : L3_Q8_BLOCK;
    size_t blocks = c->tiles * c->tile_bytes / block_bytes;
    for (size_t b = 0; b < blocks; b++) {
        uint8_t *p = c->data + b * block_bytes;
        for (size_t row = 0; row < 8; row++) {
            uint16_t scale = (uint16_t)(0x2000u + bits() % 0x1800u); /* 2^-7 to 0.5 */
            if (strcmp(variant, "negative") == 0) {
                scale |= (uint16_t)((bits() & 1u) << 15);
            } else if (strcmp(variant, "zero") == 0) {
                scale = (bits() & 1u) != 0 ? 0 : scale;
            } else if (strcmp(variant, "subnormal") == 0) {
                scale = (uint16_t)(bits() % 0x400u);
            } else if (strcmp(variant, "huge") == 0) {
                scale = 0x7bffu; /* 65504 */
            }
            memcpy(p + 2 * row, &scale, sizeof scale);
        }
        for (size_t i = 16; i < block_bytes; i++) {
            int32_t value = (int32_t)(bits() % 255u) - 127;
            if (strcmp(variant, "top") == 0 || strcmp(variant, "huge") == 0) {
                value = 127;
            } else if (strcmp(variant, "bottom") == 0) {
                value = -127;
            } else if (strcmp(variant, "lowest") == 0) { /* no writer makes it, a file may hold it */
                value = -128;
            }
            p[i] = (uint8_t)value;
            if (q4) {
                uint32_t random = bits();
                p[i] = (uint8_t)random;
                if (strcmp(variant, "top") == 0 || strcmp(variant, "huge") == 0) {
                    p[i] = 0xff;
                } else if (strcmp(variant, "bottom") == 0 || strcmp(variant, "lowest") == 0) {
                    p[i] = 0; /* -8 and -8 */
                }
            }
        }
    }
}

static void run_integer(const l3_kernels *kernels, bool q4, uint32_t k, const char *variant, bool all) {
    product_case c = {.type = q4 ? "q4" : "q8", .matmul = q4 ? kernels->matmul_q4 : kernels->matmul_q8, .k = k};
    char name[96];
    size_t groups = k / L3_GROUP;
    bool extreme = strcmp(variant, "random") != 0 && strcmp(variant, "negative") != 0;
    uint8_t *memory;
    int8_t *q = block(9 * (size_t)k);
    float *scale = floats(9 * groups);
    int32_t *sum8 = block(9 * groups * sizeof *sum8);
    c.tiles = !all ? 3 : k > 96 ? 9 : 17;
    c.tile_bytes = groups * (q4 ? L3_Q4_BLOCK : L3_Q8_BLOCK);
    memory = block(c.tiles * c.tile_bytes + 16);
    c.data = memory + 16; /* extents promise no more than 16 bytes of alignment to a tile */
    seed(k + (q4 ? 1000u : 0u) + (uint64_t)variant[0] * 7919u);
    fill_weights(&c, variant, q4);
    fill(scale, 9 * groups, 0.05f);
    for (size_t i = 0; i < 9 * (size_t)k; i++) {
        q[i] = (int8_t)((int32_t)(bits() % 255u) - 127);
        if (extreme && i / k % 3 != 2) { /* all 127, all -127, random */
            q[i] = i / k % 3 == 0 ? 127 : -127;
        }
    }
    for (size_t g = 0; g < 9 * groups; g++) {
        int32_t sum = 0;
        for (size_t i = 0; i < L3_GROUP; i++) {
            sum += q[g * L3_GROUP + i];
        }
        sum8[g] = 8 * sum;
        if (strcmp(variant, "zero") == 0 && g % 2 == 0) {
            scale[g] = 0.0f;
        }
        if (strcmp(variant, "huge") == 0) {
            scale[g] = g % 5 == 0 ? INFINITY : g % 5 == 1 ? NAN : 1e30f * (float)(1 + g % 7);
        }
    }
    for (size_t t = 0; t < 9; t++) {
        c.operands[t] = (l3_operand){.q = q + t * k, .scale = scale + t * groups, .sum8 = sum8 + t * groups};
    }
    snprintf(name, sizeof name, "%s %s k=%u weights", c.type, variant, k);
    put(name, 'b', c.tiles * c.tile_bytes, 1, c.data);
    snprintf(name, sizeof name, "%s %s k=%u q", c.type, variant, k);
    put(name, 'b', 9 * (size_t)k, 1, q);
    snprintf(name, sizeof name, "%s %s k=%u scale", c.type, variant, k);
    put_floats(name, scale, 9 * groups);
    multiply_sizes(&c, variant, all);
    free(memory);
    free(q);
    free_floats(scale);
    free(sum8);
}

static void run_float(const l3_kernels *kernels, bool bf16, uint32_t k, const char *variant, bool all) {
    product_case c = {.type = bf16 ? "bf16" : "f32", .matmul = bf16 ? kernels->matmul_bf16 : kernels->matmul_f32};
    char name[96];
    uint8_t *memory;
    float *x = floats(9 * (size_t)k);
    c.k = k;
    c.tiles = !all ? 3 : k > 96 ? 9 : 17;
    c.tile_bytes = (size_t)k * (bf16 ? 16 : 32);
    memory = block(c.tiles * c.tile_bytes + 16);
    c.data = memory + 16;
    seed(k + (bf16 ? 3000u : 2000u) + (uint64_t)variant[0] * 104729u);
    for (size_t i = 0; i < c.tiles * 8 * (size_t)k; i++) {
        float value = strcmp(variant, "special") == 0 && bits() % 64u == 0 ? specials[bits() % COUNT_OF(specials)]
                                                                         : uniform();
        uint16_t half = l3_bf16_from_f32(value);
        memcpy(c.data + i * (bf16 ? 2 : 4), bf16 ? (const void *)&half : (const void *)&value, bf16 ? 2 : 4);
    }
    fill_wide(x, 9 * (size_t)k);
    if (strcmp(variant, "special") == 0) {
        fill_special(x, k);
        x[2 * k] = NAN;
        x[3 * k + k - 1] = INFINITY;
    }
    for (size_t t = 0; t < 9; t++) {
        c.operands[t] = (l3_operand){.x = x + t * k};
    }
    snprintf(name, sizeof name, "%s %s k=%u weights", c.type, variant, k);
    put(name, 'b', c.tiles * c.tile_bytes, 1, c.data);
    snprintf(name, sizeof name, "%s %s k=%u x", c.type, variant, k);
    put_floats(name, x, 9 * (size_t)k);
    multiply_sizes(&c, variant, all);
    free(memory);
    free_floats(x);
}

static void run_products(const l3_kernels *kernels) {
    static const uint32_t widths[] = {32, 64, 96, 1536};
    static const uint32_t odd[] = {1, 7, 9, 24, 33};
    static const char *const variants[] = {"negative", "zero", "subnormal", "huge", "top", "bottom", "lowest"};
    for (size_t i = 0; i < COUNT_OF(widths); i++) {
        for (int second = 0; second < 2; second++) {
            run_integer(kernels, second != 0, widths[i], "random", true);
            run_float(kernels, second != 0, widths[i], "random", true);
            run_float(kernels, second != 0, widths[i], "special", false);
            for (size_t v = 0; v < COUNT_OF(variants); v++) {
                run_integer(kernels, second != 0, widths[i], variants[v], false);
            }
        }
    }
    for (size_t i = 0; i < COUNT_OF(odd); i++) { /* float matrices of any width */
        run_float(kernels, false, odd[i], "random", false);
        run_float(kernels, true, odd[i], "random", false);
    }
}

/* -- rounding of activations -- */

static void quantize(const l3_kernels *kernels, const char *variant, const float *x, size_t n) {
    char name[96];
    int8_t *q = block(n + GUARD);
    float *scale = results(n / 32);
    int32_t *sum8 = block((n / 32 + GUARD) * sizeof *sum8);
    memset(q, 99, n + GUARD);
    memset(sum8, 99, (n / 32 + GUARD) * sizeof *sum8);
    kernels->quantize_a8(x, n, q, scale, sum8);
    snprintf(name, sizeof name, "a8 %s n=%zu x", variant, n);
    put_floats(name, x, n);
    snprintf(name, sizeof name, "a8 %s n=%zu q", variant, n);
    put(name, 'b', n + GUARD, 1, q);
    snprintf(name, sizeof name, "a8 %s n=%zu scale", variant, n);
    put_floats(name, scale, n / 32 + GUARD);
    snprintf(name, sizeof name, "a8 %s n=%zu sum8", variant, n);
    put(name, 'i', n / 32 + GUARD, 4, sum8);
    free(q);
    free_floats(scale);
    free(sum8);
}

static void run_quantize(const l3_kernels *kernels) {
    static const size_t lengths[] = {32, 64, 96, 1536};
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        size_t n = lengths[i];
        float *x = floats(n);
        seed(n + 4000u);
        fill(x, n, 3.0f);
        quantize(kernels, "uniform", x, n);
        fill_wide(x, n);
        quantize(kernels, "wide", x, n);
        for (size_t j = 0; j < n; j++) { /* halves between two integers, with a scale of one */
            x[j] = j % 32 == 31 ? 127.0f : (float)((int32_t)(bits() % 253u) - 126) + 0.5f;
        }
        quantize(kernels, "ties", x, n);
        for (size_t j = 0; j < n; j++) { /* one value decides alone, from every position */
            x[j] = j % 32 == j / 32 % 32 ? -1e4f : 0.0f;
        }
        quantize(kernels, "single", x, n);
        memset(x, 0, n * sizeof *x);
        quantize(kernels, "zero", x, n);
        fill(x, n, 1e-31f);
        quantize(kernels, "vanishing", x, n);
        fill(x, n, FLT_MAX);
        quantize(kernels, "huge", x, n);
        fill(x, n, 1.0f);
        for (size_t g = 0; g < n / 32; g++) { /* not finite at every position in turn */
            x[32 * g + g % 32] = g % 3 == 0 ? NAN : g % 3 == 1 ? INFINITY : -INFINITY;
        }
        quantize(kernels, "broken", x, n);
        free_floats(x);
    }
}

/* -- vectors -- */

typedef struct vectors {
    size_t n;
    float *a, *b, *w, *y;
    char label[48];
} vectors;

static void show(const vectors *v, const char *kernel, const float *y, size_t count) {
    char name[96];
    snprintf(name, sizeof name, "%s %s", kernel, v->label);
    put_floats(name, y, count);
}

static float *fresh(const vectors *v) {
    for (size_t i = 0; i < v->n + GUARD; i++) {
        v->y[i] = GUARD_VALUE;
    }
    return v->y;
}

static float *copied(const vectors *v, const float *from) {
    fresh(v);
    memcpy(v->y, from, v->n * sizeof *from);
    return v->y;
}

static void run_vector_kernels(const l3_kernels *k, const vectors *v) {
    size_t n = v->n;
    size_t end = n + GUARD;
    show(v, "input a", v->a, n);
    show(v, "input b", v->b, n);
    show(v, "input w", v->w, n);
    k->rms_norm(v->a, v->w, n, 1e-6f, fresh(v)), show(v, "rms_norm", v->y, end);
    k->rms_norm(copied(v, v->a), v->w, n, 1e-6f, v->y), show(v, "rms_norm in place", v->y, end);
    k->l2_norm(v->a, n, 1e-6f, 0.25f, fresh(v)), show(v, "l2_norm", v->y, end);
    k->l2_norm(copied(v, v->a), n, 1e-6f, 0.25f, v->y), show(v, "l2_norm in place", v->y, end);
    k->add(copied(v, v->a), v->b, n), show(v, "add", v->y, end);
    k->axpy(copied(v, v->a), -1.75f, v->b, n), show(v, "axpy", v->y, end);
    k->scale(copied(v, v->a), 0.3f, n), show(v, "scale", v->y, end);
    k->silu_mul(v->a, v->b, n, fresh(v)), show(v, "silu_mul", v->y, end);
    k->silu_mul(copied(v, v->a), v->b, n, v->y), show(v, "silu_mul in place", v->y, end);
    k->sigmoid_mul(copied(v, v->a), v->b, n), show(v, "sigmoid_mul", v->y, end);
    k->sigmoid(v->a, n, fresh(v)), show(v, "sigmoid", v->y, end);
    k->sigmoid(copied(v, v->a), n, v->y), show(v, "sigmoid in place", v->y, end);
    k->kda_decay(v->a, v->b, 0.4f, -5.0f, n, fresh(v)), show(v, "kda_decay", v->y, end);
    k->softmax(copied(v, v->a), n), show(v, "softmax", v->y, end);
}

static void run_vectors(const l3_kernels *kernels) {
    static const size_t lengths[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,   10,  11,   12,  13,
                                     14, 15, 16, 17, 31, 32, 33, 63, 64, 100, 128, 1536, 4099};
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        static const char *const variants[] = {"uniform", "wide", "large", "special", "nan", "equal"};
        vectors v = {.n = lengths[i]};
        v.a = floats(v.n);
        v.b = floats(v.n);
        v.w = floats(v.n);
        v.y = results(v.n);
        for (size_t j = 0; j < COUNT_OF(variants); j++) {
            seed(v.n + 5000u + 131u * j);
            fill(v.w, v.n, 2.0f);
            fill(v.a, v.n, j == 2 ? 120.0f : 4.0f);
            fill(v.b, v.n, j == 2 ? 120.0f : 4.0f);
            if (j == 1) {
                fill_wide(v.a, v.n);
                fill_wide(v.b, v.n);
            } else if (j == 3) {
                fill_special(v.a, v.n);
                fill_special(v.b, v.n);
            } else if (j == 4) {
                v.a[bits() % v.n] = NAN;
                v.b[bits() % v.n] = NAN;
            } else if (j == 5) {
                for (size_t at = 0; at < v.n; at++) {
                    v.a[at] = 1e30f;
                    v.b[at] = -1e30f;
                }
            }
            snprintf(v.label, sizeof v.label, "%s n=%zu", variants[j], v.n);
            run_vector_kernels(kernels, &v);
        }
        free_floats(v.a);
        free_floats(v.b);
        free_floats(v.w);
        free_floats(v.y);
    }
}

/* A fine grid over everything that exp distinguishes. */
static void run_exponentials(const l3_kernels *kernels) {
    size_t n = 40001;
    vectors v = {.n = n, .label = "grid"};
    v.a = floats(n);
    v.b = floats(n);
    v.y = results(n);
    for (size_t i = 0; i < n; i++) {
        v.a[i] = ((float)i - 20000.0f) * 0.00525f; /* -105 to 105 */
        v.b[i] = 1.0f;
    }
    show(&v, "input a", v.a, n);
    kernels->sigmoid(v.a, n, v.y), show(&v, "sigmoid", v.y, n);
    kernels->silu_mul(v.a, v.b, n, v.y), show(&v, "silu_mul", v.y, n);
    for (size_t i = 0; i < n; i++) { /* pairs (0, x): both exponentials and their sum */
        float pair[2] = {0.0f, v.a[i]};
        kernels->softmax(pair, 2);
        v.y[i] = pair[1];
    }
    show(&v, "softmax pairs", v.y, n);
    memset(v.b, 0, n * sizeof *v.b);
    kernels->kda_decay(v.a, v.b, 0.0f, -5.0f, n, v.y), show(&v, "kda_decay", v.y, n);
    free_floats(v.a);
    free_floats(v.b);
    free_floats(v.y);
}

static void run_convolutions(const l3_kernels *kernels) {
    static const size_t sizes[][2] = {{4, 1}, {4, 7}, {4, 8}, {4, 13}, {4, 64}, {4, 128}, {1, 9}, {3, 24}, {16, 40}};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        size_t taps = sizes[i][0];
        size_t n = sizes[i][1];
        for (int broken = 0; broken < 2; broken++) {
            char name[96];
            const float *rows[16];
            size_t stride = n + 5;
            float *w = floats((taps - 1) * stride + n);
            float *x = floats(taps * n);
            float *y = results(n);
            seed(6000u + 17u * i + (unsigned)broken);
            fill(w, (taps - 1) * stride + n, 1.0f);
            fill(x, taps * n, 4.0f);
            if (broken != 0) {
                x[bits() % (taps * n)] = NAN;
                x[bits() % (taps * n)] = INFINITY;
            }
            for (size_t tap = 0; tap < taps; tap++) {
                rows[tap] = x + tap * n;
            }
            kernels->conv_silu(rows, w, stride, taps, n, y);
            snprintf(name, sizeof name, "conv %s taps=%zu n=%zu w", broken != 0 ? "special" : "uniform", taps, n);
            put_floats(name, w, (taps - 1) * stride + n);
            name[strlen(name) - 1] = 'x';
            put_floats(name, x, taps * n);
            name[strlen(name) - 1] = 'y';
            put_floats(name, y, n + GUARD);
            free_floats(w);
            free_floats(x);
            free_floats(y);
        }
    }
}

/* -- the delta rule -- */

static void run_delta_rule(const l3_kernels *kernels) {
    static const size_t sizes[][2] = {{8, 8}, {1, 8}, {16, 24}, {32, 32}, {24, 40}, {64, 64}, {128, 128}};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        size_t dk = sizes[i][0];
        size_t dv = sizes[i][1];
        char name[96];
        float *s = floats(dk * dv);
        seed(7000u + i);
        fill(s, dk * dv, 1.0f);
        for (unsigned step = 0; step < 4; step++) { /* the last one with a value that is not finite */
            float *q = floats(dk);
            float *k = floats(dk);
            float *v = floats(dv);
            float *a = floats(dk);
            float *o = results(dv);
            float beta = 0.5f + 0.5f * uniform();
            fill(q, dk, 0.3f);
            fill(k, dk, 0.3f);
            fill(v, dv, 2.0f);
            for (size_t at = 0; at < dk; at++) {
                a[at] = 0.5f + 0.5f * uniform();
            }
            if (step == 3) {
                v[bits() % dv] = NAN;
            }
            snprintf(name, sizeof name, "delta dk=%zu dv=%zu step=%u s", dk, dv, step);
            put_floats(name, s, dk * dv);
            kernels->kda_step(s, dk, dv, q, k, v, a, beta, o);
            name[strlen(name) - 1] = 'q';
            put_floats(name, q, dk);
            name[strlen(name) - 1] = 'k';
            put_floats(name, k, dk);
            name[strlen(name) - 1] = 'v';
            put_floats(name, v, dv);
            name[strlen(name) - 1] = 'a';
            put_floats(name, a, dk);
            name[strlen(name) - 1] = 'b';
            put_floats(name, &beta, 1);
            name[strlen(name) - 1] = 'o';
            put_floats(name, o, dv + GUARD);
            name[strlen(name) - 1] = 't';
            put_floats(name, s, dk * dv);
            free_floats(q);
            free_floats(k);
            free_floats(v);
            free_floats(a);
            free_floats(o);
        }
        free_floats(s);
    }
}

/* -- attention over the cache -- */

typedef struct attention_case {
    uint32_t kv_type;
    uint32_t latent, rope;
    size_t heads, count;
} attention_case;

/* Memory of `count` rows, aligned to four bytes only; the block starts four bytes before. */
static uint8_t *cache_rows(const l3_kv_layout *kv, size_t count) {
    return (uint8_t *)block(count * kv->row_bytes + 4) + 4;
}

static void run_attention_case(const l3_kernels *kernels, const attention_case *c) {
    char name[96];
    l3_kv_layout kv = l3_kv_layout_of(c->kv_type, c->latent, c->rope);
    size_t width = c->latent + c->rope;
    size_t stride = c->count + 2;
    size_t first = c->latent > 16 ? 8 : 0;
    size_t last = c->latent > 16 ? c->latent - 8 : c->latent;
    float *rows = floats(c->count * width);
    float *q = floats(c->heads * width);
    float *p = floats(c->heads * stride);
    float *scores = results(c->heads * stride);
    float *mixed = results(c->heads * width);
    uint8_t *cache = cache_rows(&kv, c->count);
    fill(rows, c->count * width, 3.0f);
    fill(q, c->heads * width, 1.0f);
    fill(p, c->heads * stride, 0.5f);
    for (size_t i = 0; i < c->count; i++) {
        kernels->store_kv(rows + i * width, &kv, cache + i * kv.row_bytes);
    }
    kernels->mla_scores(q, c->heads, cache, &kv, c->count, 0.125f, scores, stride);
    kernels->mla_mix(p, c->heads, stride, cache, &kv, c->count, first, last, mixed, width);
    snprintf(name, sizeof name, "attention kv=%u heads=%zu latent=%u rope=%u count=%zu r", c->kv_type, c->heads,
             c->latent, c->rope, c->count);
    put_floats(name, rows, c->count * width);
    name[strlen(name) - 1] = 'c';
    put(name, 'b', c->count * kv.row_bytes, 1, cache);
    name[strlen(name) - 1] = 'q';
    put_floats(name, q, c->heads * width);
    name[strlen(name) - 1] = 'p';
    put_floats(name, p, c->heads * stride);
    name[strlen(name) - 1] = 's';
    put_floats(name, scores, c->heads * stride + GUARD);
    name[strlen(name) - 1] = 'm';
    put_floats(name, mixed, c->heads * width + GUARD);
    free_floats(rows);
    free_floats(q);
    free_floats(p);
    free_floats(scores);
    free_floats(mixed);
    free(cache - 4);
}

static void run_attention(const l3_kernels *kernels) {
    static const uint32_t widths[][2] = {{8, 0}, {8, 8}, {32, 8}, {144, 16}, {512, 64}};
    static const size_t counts[] = {1, 2, 3, 4, 5, 7, 8, 9, 17, 32, 33, 70};
    for (uint32_t kv_type = 0; kv_type <= L3_KV_INT8; kv_type++) {
        for (size_t w = 0; w < COUNT_OF(widths); w++) {
            for (size_t i = 0; i < COUNT_OF(counts); i++) {
                attention_case c = {kv_type, widths[w][0], widths[w][1], 1 + (i + w) % 9, counts[i]};
                seed(8000u + 100u * kv_type + 20u * w + i);
                run_attention_case(kernels, &c);
            }
        }
    }
}

/* All 16-bit patterns read; written: each value, the middle between two, and the floats beside the middle. */
static void run_half_precision(const l3_kernels *kernels) {
    size_t n = 65536;
    float one = 1.0f;
    uint16_t *patterns = block(n * sizeof *patterns);
    uint16_t *stored = block(n * sizeof *stored);
    float *x = floats(n);
    float *y = floats(n);
    for (size_t i = 0; i < n; i++) {
        patterns[i] = (uint16_t)i;
    }
    for (uint32_t kv_type = L3_KV_BF16; kv_type <= L3_KV_F16; kv_type++) {
        char name[96];
        l3_kv_layout kv = l3_kv_layout_of(kv_type, (uint32_t)n, 0);
        kernels->mla_mix(&one, 1, 1, patterns, &kv, 1, 0, n, y, n);
        snprintf(name, sizeof name, "half read kv=%u", kv_type);
        put_floats(name, y, n);
        for (int offset = -2; offset < 3; offset++) {
            for (size_t i = 0; i < n; i++) {
                uint16_t low = (uint16_t)i;
                uint16_t high = (uint16_t)(i + 1);
                float a = kv_type == L3_KV_BF16 ? l3_f32_from_bf16(low) : l3_f32_from_f16(low);
                float b = kv_type == L3_KV_BF16 ? l3_f32_from_bf16(high) : l3_f32_from_f16(high);
                float middle = 0.5f * a + 0.5f * b;
                uint32_t beside = (uint32_t)((int64_t)l3_bits_from_f32(middle) + (offset - 1));
                /* What arithmetic makes of two NaNs differs between processors. */
                x[i] = offset == -2 || isnan(middle) ? a : l3_f32_from_bits(beside);
            }
            kernels->store_kv(x, &kv, stored);
            snprintf(name, sizeof name, "half write kv=%u offset=%d x", kv_type, offset);
            put_floats(name, x, n);
            name[strlen(name) - 1] = 'h';
            put(name, 'h', n, 2, stored);
        }
    }
    free(patterns);
    free(stored);
    free_floats(x);
    free_floats(y);
}

/* One row of 256 latent values and 8 of the key: what is written and what comes back through a mix with weight 1. */
static void put_byte_row(const l3_kernels *kernels, uint32_t kv_type, const char *label, const float *x) {
    char name[96];
    float one = 1.0f;
    l3_kv_layout kv = l3_kv_layout_of(kv_type, 256, 8);
    uint8_t *row = cache_rows(&kv, 1);
    float *y = results(256);
    kernels->store_kv(x, &kv, row);
    kernels->mla_mix(&one, 1, 1, row, &kv, 1, 0, 256, y, 256);
    snprintf(name, sizeof name, "byte row kv=%u %s x", kv_type, label);
    put_floats(name, x, 264);
    name[strlen(name) - 1] = 'b';
    put(name, 'b', kv.row_bytes, 1, row);
    name[strlen(name) - 1] = 'y';
    put_floats(name, y, 256 + GUARD);
    free_floats(y);
    free(row - 4);
}

/* The number of an E4M3 pattern without its sign, from the definition of the format. */
static float e4m3_value(uint32_t pattern) {
    uint32_t exponent = pattern >> 3;
    float mantissa = (float)(pattern & 7u);
    return exponent == 0 ? ldexpf(mantissa, -9) : ldexpf(8.0f + mantissa, (int)exponent - 10);
}

/* The types of 8 bits: every pattern read; every number, the middle between two and the floats beside it written (the
 * largest number of the type is in the row, so that its scale is 1); magnitudes from end to end of float32; what is not
 * finite. */
static void run_byte_precision(const l3_kernels *kernels) {
    static const struct { const char *label; float value; } spoilers[] = {
        {"zero", 0.0f}, {"tiny", 0x1p-120f},    {"small", 2e-30f},        {"huge", 1e38f},
        {"nan", NAN},   {"infinite", INFINITY}, {"negative", -INFINITY}, {"single", -0.3f}};
    float *x = floats(264);
    for (uint32_t kv_type = L3_KV_FP8; kv_type <= L3_KV_INT8; kv_type++) {
        char label[48];
        float most = kv_type == L3_KV_FP8 ? 448.0f : 127.0f;
        uint32_t patterns = kv_type == L3_KV_FP8 ? 127 : 128; /* without the NaN of E4M3 */
        l3_kv_layout kv = l3_kv_layout_of(kv_type, 256, 0);
        uint8_t *row = cache_rows(&kv, 1);
        float one = 1.0f;
        for (uint32_t i = 0; i < 256; i++) {
            row[i] = (uint8_t)i;
        }
        memcpy(row + 256, &one, sizeof one);
        kernels->mla_mix(&one, 1, 1, row, &kv, 1, 0, 256, x, 256);
        snprintf(label, sizeof label, "byte read kv=%u", kv_type);
        put_floats(label, x, 256);
        free(row - 4);
        for (int offset = -2; offset < 3; offset++) {
            for (uint32_t i = 0; i < 132; i++) {
                uint32_t low = i < patterns ? i : 0;
                uint32_t high = i + 1 < patterns ? i + 1 : low;
                float a = kv_type == L3_KV_FP8 ? e4m3_value(low) : (float)low;
                float b = kv_type == L3_KV_FP8 ? e4m3_value(high) : (float)high;
                float middle = 0.5f * (a + b);
                float beside = nextafterf(middle, offset < 1 ? 0.0f : most);
                x[i] = offset == -2 ? a : (offset == 0 ? middle : beside);
                x[i] = offset == 2 ? -x[i] : x[i];
                x[263 - i] = -x[i];
            }
            x[131] = most;
            snprintf(label, sizeof label, "offset=%d", offset);
            put_byte_row(kernels, kv_type, label, x);
        }
        seed(9000u + kv_type);
        for (int power = -140; power <= 120; power += 20) {
            fill(x, 264, ldexpf(1.0f, power));
            snprintf(label, sizeof label, "power=%d", power);
            put_byte_row(kernels, kv_type, label, x);
        }
        fill_wide(x, 264);
        put_byte_row(kernels, kv_type, "wide", x);
        for (size_t i = 0; i < COUNT_OF(spoilers); i++) {
            bool alone = strcmp(spoilers[i].label, "single") == 0 || spoilers[i].value == 0.0f;
            fill(x, 264, alone ? 0.0f : (fabsf(spoilers[i].value) < 1.0f ? spoilers[i].value : 1.0f));
            x[77] = spoilers[i].value;
            put_byte_row(kernels, kv_type, spoilers[i].label, x);
        }
    }
    free_floats(x);
}

int main(int argc, char **argv) {
    const l3_kernels *kernels = argc == 2 ? l3_kernels_find(argv[1]) : NULL;
    if (kernels == NULL) {
        fprintf(stderr, "usage: kernel_driver SET, one of: %s\n", l3_simd_available());
        return 2;
    }
    run_products(kernels);
    run_quantize(kernels);
    run_vectors(kernels);
    run_exponentials(kernels);
    run_convolutions(kernels);
    run_delta_rule(kernels);
    run_attention(kernels);
    run_half_precision(kernels);
    run_byte_precision(kernels);
    return fflush(stdout) == 0 ? 0 : 1;
}
