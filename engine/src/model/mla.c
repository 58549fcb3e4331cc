/* Multi-head latent attention, attended in latent space: the cache holds [latent | rotary key] per token and the heads
 * are never expanded. */
#include <math.h>
#include <string.h>

#include "session/session.h"

typedef struct mla_work {
    const l3_span *span;
    const l3_layer *layer;
    uint8_t *cache;
    size_t width; /* kv_lora + rope */
    float scale;
} mla_work;

/* Angles in double: at position 262143 a float angle is off by 1e-2. */
void l3_rope_prepare(const l3_span *span) {
    l3_session *s = span->session;
    uint32_t rope = s->config->qk_rope_head_dim;
    for (uint32_t t = 0; t < span->count; t++) {
        for (uint32_t j = 0; j < rope / 2; j++) {
            double inverse;
            double angle;
            memcpy(&inverse, s->b.rope_inverse + 2 * (size_t)j, sizeof inverse);
            angle = (double)(span->position + t) * inverse;
            s->b.rotation[(size_t)t * rope + 2 * j] = (float)cos(angle);
            s->b.rotation[(size_t)t * rope + 2 * j + 1] = (float)sin(angle);
        }
    }
}

/* Pairs (2j, 2j+1); rotation holds cos and sin of each. */
static void rotate(const float *x, const float *rotation, size_t n, float *out) {
    for (size_t i = 0; i < n; i += 2) {
        float even = x[i];
        float odd = x[i + 1];
        out[i] = even * rotation[i] - odd * rotation[i + 1];
        out[i + 1] = even * rotation[i + 1] + odd * rotation[i];
    }
}

/* -- attention over the cache -- */

static uint32_t visible(const l3_span *span, uint32_t t) { return span->position + t + 1; }

/* Prefill: one task is one token and a block of heads, from scores to mixed latents. */
static void attend_blocks(void *context, uint32_t first, uint32_t last, uint32_t thread) {
    const mla_work *w = context;
    l3_session *s = w->span->session;
    const l3_config *c = s->config;
    uint32_t blocks = (c->head_count + L3_HEAD_BLOCK - 1) / L3_HEAD_BLOCK;
    float *scores = s->b.scores + (size_t)thread * L3_HEAD_BLOCK * s->context;
    for (uint32_t i = first; i < last; i++) {
        uint32_t t = i / blocks;
        uint32_t head = i % blocks * L3_HEAD_BLOCK;
        uint32_t heads = c->head_count - head < L3_HEAD_BLOCK ? c->head_count - head : L3_HEAD_BLOCK;
        uint32_t n = visible(w->span, t);
        size_t row = (size_t)t * c->head_count + head;
        s->kernels->mla_scores(s->b.q_latent + row * w->width, heads, w->cache, &s->kv, n, w->scale, scores,
                               s->context);
        for (uint32_t h = 0; h < heads; h++) {
            s->kernels->softmax(scores + (size_t)h * s->context, n);
        }
        s->kernels->mla_mix(scores, heads, s->context, w->cache, &s->kv, n, 0, c->kv_lora_rank,
                            s->b.context_latent + row * c->kv_lora_rank, c->kv_lora_rank);
    }
}

/* Decode: three loops over positions, heads and columns, so that the cache is read twice whatever the thread count. */
static void score_positions(void *context, uint32_t first, uint32_t last, uint32_t thread) {
    const mla_work *w = context;
    l3_session *s = w->span->session;
    (void)thread;
    s->kernels->mla_scores(s->b.q_latent, s->config->head_count, w->cache + (size_t)first * s->kv.row_bytes, &s->kv,
                           last - first, w->scale, s->b.scores + first, s->context);
}

static void soften_heads(void *context, uint32_t first, uint32_t last, uint32_t thread) {
    const mla_work *w = context;
    l3_session *s = w->span->session;
    (void)thread;
    for (uint32_t h = first; h < last; h++) {
        s->kernels->softmax(s->b.scores + (size_t)h * s->context, visible(w->span, 0));
    }
}

static void mix_columns(void *context, uint32_t first, uint32_t last, uint32_t thread) {
    const mla_work *w = context;
    l3_session *s = w->span->session;
    const l3_config *c = s->config;
    (void)thread;
    s->kernels->mla_mix(s->b.scores, c->head_count, s->context, w->cache, &s->kv, visible(w->span, 0),
                        8 * (size_t)first, 8 * (size_t)last, s->b.context_latent, c->kv_lora_rank);
}

static void attend(mla_work *w) {
    l3_session *s = w->span->session;
    const l3_config *c = s->config;
    l3_pool *pool = s->engine->pool;
    if (w->span->count == 1) {
        uint32_t n = visible(w->span, 0);
        uint32_t columns = c->kv_lora_rank / 8;
        l3_pool_run(pool, score_positions, w, n, l3_pool_grain(pool, n, (uint64_t)s->kv.row_bytes * c->head_count / 4));
        l3_pool_run(pool, soften_heads, w, c->head_count, l3_pool_grain(pool, c->head_count, 8ull * n));
        l3_pool_run(pool, mix_columns, w, columns, l3_pool_grain(pool, columns, 8ull * n * c->head_count));
    } else {
        uint32_t blocks = (c->head_count + L3_HEAD_BLOCK - 1) / L3_HEAD_BLOCK;
        uint32_t tasks = w->span->count * blocks;
        l3_pool_run(pool, attend_blocks, w, tasks, l3_pool_grain(pool, tasks, (uint64_t)s->kv.row_bytes * visible(w->span, 0)));
    }
}

/* -- the projections around it -- */

static void project_down(const mla_work *w) {
    l3_session *s = w->span->session;
    const l3_config *c = s->config;
    const l3_layer *layer = w->layer;
    const l3_matrix *q = c->q_lora_rank > 0 ? &layer->q_a : &layer->q_b;
    const l3_matrix *matrices[3] = {q, &layer->kv_a, &layer->head_gate};
    uint32_t n = w->span->count;
    bool integer = l3_matrix_is_integer(q) || l3_matrix_is_integer(&layer->kv_a) ||
                   l3_matrix_is_integer(&layer->head_gate);
    for (uint32_t t = 0; t < n; t++) {
        size_t q_width = q->rows;
        float *results[3] = {(c->q_lora_rank > 0 ? s->b.q_low : s->b.q) + t * q_width, s->b.kv + t * w->width,
                             s->b.head_gate + (size_t)t * c->head_count};
        l3_operand base = {0};
        l3_operand_set(s, &base, s->b.norm + (size_t)t * c->hidden_size, c->hidden_size, integer, &s->b.act,
                       (uint64_t)t * s->act_stride);
        for (uint32_t m = 0; m < 3; m++) {
            s->b.operands[m * n + t] = base;
            s->b.operands[m * n + t].y = results[m];
        }
    }
    for (uint32_t m = 0; m < 3; m++) {
        s->b.products[m] = (l3_product){.matrix = matrices[m], .operands = s->b.operands + m * n, .n = n};
    }
    l3_multiply(s, s->b.products, 3);
}

/* q_b after its norm, where the query is low-rank. */
static void project_query(const mla_work *w) {
    l3_session *s = w->span->session;
    const l3_config *c = s->config;
    uint32_t n = w->span->count;
    for (uint32_t t = 0; t < n; t++) {
        float *low = s->b.q_low + (size_t)t * c->q_lora_rank;
        s->kernels->rms_norm(low, w->layer->q_a_norm, c->q_lora_rank, c->rms_eps, low);
        l3_operand_set(s, &s->b.operands[t], low, c->q_lora_rank, l3_matrix_is_integer(&w->layer->q_b), &s->b.act,
                       (uint64_t)t * s->act_stride);
        s->b.operands[t].y = s->b.q + (size_t)t * w->layer->q_b.rows;
    }
    s->b.products[0] = (l3_product){.matrix = &w->layer->q_b, .operands = s->b.operands, .n = n};
    l3_multiply(s, s->b.products, 1);
}

/* Normed latent and rotated key of every token of the span go into the cache. */
static void fill_cache(const mla_work *w) {
    l3_session *s = w->span->session;
    const l3_config *c = s->config;
    for (uint32_t t = 0; t < w->span->count; t++) {
        float *kv = s->b.kv + t * w->width;
        float *key = kv + c->kv_lora_rank;
        s->kernels->rms_norm(kv, w->layer->kv_a_norm, c->kv_lora_rank, c->rms_eps, kv);
        rotate(key, s->b.rotation + (size_t)t * c->qk_rope_head_dim, c->qk_rope_head_dim, key);
        s->kernels->store_kv(kv, &s->kv, w->cache + (size_t)(w->span->position + t) * s->kv.row_bytes);
    }
}

/* A product per head: matrix h of `stack` on rows[t][head][...]. */
static void multiply_heads(const mla_work *w, const l3_matrix *stack, const float *rows, size_t row_stride,
                           size_t head_stride, float *out, size_t out_row_stride, size_t out_head_stride) {
    l3_session *s = w->span->session;
    uint32_t n = w->span->count;
    bool integer = l3_matrix_is_integer(stack);
    for (uint32_t h = 0; h < s->config->head_count; h++) {
        for (uint32_t t = 0; t < n; t++) {
            l3_operand *operand = &s->b.operands[h * n + t];
            l3_operand_set(s, operand, rows + t * row_stride + h * head_stride, stack->k, integer, &s->b.act,
                           (uint64_t)t * s->act_stride + (uint64_t)h * stack->k);
            operand->y = out + t * out_row_stride + h * out_head_stride;
        }
        s->b.products[h] =
            (l3_product){.matrix = stack, .index = h, .operands = s->b.operands + (size_t)h * n, .n = n};
    }
    l3_multiply(s, s->b.products, s->config->head_count);
}

static void absorb_queries(const mla_work *w) {
    l3_session *s = w->span->session;
    const l3_config *c = s->config;
    size_t head = c->qk_nope_head_dim + c->qk_rope_head_dim;
    multiply_heads(w, &w->layer->k_b, s->b.q, head * c->head_count, head, s->b.q_latent, w->width * c->head_count,
                   w->width);
    for (uint32_t t = 0; t < w->span->count; t++) {
        for (uint32_t h = 0; h < c->head_count; h++) {
            size_t row = (size_t)t * c->head_count + h;
            rotate(s->b.q + row * head + c->qk_nope_head_dim, s->b.rotation + (size_t)t * c->qk_rope_head_dim,
                   c->qk_rope_head_dim, s->b.q_latent + row * w->width + c->kv_lora_rank);
        }
    }
}

static void project_out(const mla_work *w) {
    l3_session *s = w->span->session;
    const l3_config *c = s->config;
    uint32_t n = w->span->count;
    size_t row = (size_t)c->head_count * c->v_head_dim;
    multiply_heads(w, &w->layer->v_b, s->b.context_latent, (size_t)c->head_count * c->kv_lora_rank, c->kv_lora_rank,
                   s->b.attention_out, row, c->v_head_dim);
    for (uint32_t t = 0; t < n; t++) {
        float *gate = s->b.head_gate + (size_t)t * c->head_count;
        s->kernels->sigmoid(gate, c->head_count, gate);
        for (uint32_t h = 0; h < c->head_count; h++) {
            s->kernels->scale(s->b.attention_out + t * row + (size_t)h * c->v_head_dim, gate[h], c->v_head_dim);
        }
        l3_operand_set(s, &s->b.operands[t], s->b.attention_out + t * row, (uint32_t)row,
                       l3_matrix_is_integer(&w->layer->dense), &s->b.act, (uint64_t)t * s->act_stride);
        s->b.operands[t].y = s->b.wide + (size_t)t * c->hidden_size;
    }
    s->b.products[0] = (l3_product){.matrix = &w->layer->dense, .operands = s->b.operands, .n = n};
    l3_multiply(s, s->b.products, 1);
    s->kernels->add(s->b.x, s->b.wide, (size_t)n * c->hidden_size);
}

/* b.norm holds the normed input; the result is added to b.x. */
void l3_mla(const l3_span *span, const l3_layer *layer, uint8_t *cache) {
    const l3_config *c = span->session->config;
    mla_work w = {.span = span, .layer = layer, .cache = cache, .width = c->kv_lora_rank + c->qk_rope_head_dim};
    w.scale = 1.0f / __builtin_sqrtf((float)(c->qk_nope_head_dim + c->qk_rope_head_dim));
    project_down(&w);
    if (c->q_lora_rank > 0) {
        project_query(&w);
    }
    fill_cache(&w);
    absorb_queries(&w);
    attend(&w);
    project_out(&w);
}
