/* Kimi delta attention: three short convolutions, a decay per channel, the delta rule (docs/architecture.md, 2.1 of the
 * model's description). No position enters. */
#include <string.h>

#include "session/session.h"

#define L2_EPS 1e-6f /* on the sum of squares, not on the mean */

typedef struct kda_work {
    const l3_span *span;
    const l3_layer *layer;
    float *state; /* [heads][d][d] */
} kda_work;

/* One head over all tokens of the span, in order. */
static void run_head(const kda_work *w, uint32_t head, float *work) {
    l3_session *s = w->span->session;
    const l3_config *c = s->config;
    const l3_kernels *kernels = s->kernels;
    size_t d = c->head_dim;
    size_t p = (size_t)c->head_count * d;
    size_t width = 3 * p;
    size_t at = head * d;
    float *q = work;
    float *k = work + d;
    float *v = work + 2 * d;
    float *decay = work + 3 * d;
    float *state = w->state + (size_t)head * d * d;
    for (uint32_t t = 0; t < w->span->count; t++) {
        const float *taps[16];
        float *out = s->b.attention_out + (size_t)t * p + at;
        float beta;
        for (size_t part = 0; part < 3; part++) {
            size_t channel = part * p + at;
            for (size_t j = 0; j < c->conv_kernel; j++) {
                taps[j] = s->b.conv_in + (t + j) * width + channel;
            }
            kernels->conv_silu(taps, w->layer->conv + channel, width, c->conv_kernel, d, work + part * d);
        }
        kernels->l2_norm(q, d, L2_EPS, 1.0f / __builtin_sqrtf((float)d), q);
        kernels->l2_norm(k, d, L2_EPS, 1.0f, k);
        kernels->kda_decay(s->b.kda_f + (size_t)t * p + at, w->layer->dt_bias + at, w->layer->a_log[head],
                           c->kda_lower_bound, d, decay);
        kernels->sigmoid(s->b.kda_b + (size_t)t * c->head_count + head, 1, &beta);
        kernels->kda_step(state, d, d, q, k, v, decay, beta, out);
        kernels->rms_norm(out, w->layer->o_norm, d, c->rms_eps, out);
        kernels->sigmoid_mul(out, s->b.kda_g + (size_t)t * p + at, d);
    }
}

static void run_heads(void *context, uint32_t first, uint32_t last, uint32_t thread) {
    const kda_work *w = context;
    l3_session *s = w->span->session;
    for (uint32_t head = first; head < last; head++) {
        run_head(w, head, s->b.kda_work + (size_t)thread * 4 * s->config->head_dim);
    }
}

/* b.norm holds the normed input; the result is added to b.x. */
void l3_kda(const l3_span *span, const l3_layer *layer, uint32_t kda_index) {
    l3_session *s = span->session;
    const l3_config *c = s->config;
    const l3_matrix *matrices[6] = {&layer->q, &layer->k, &layer->v, &layer->f, &layer->g, &layer->b};
    uint32_t n = span->count;
    size_t h = c->hidden_size;
    size_t p = (size_t)c->head_count * c->head_dim;
    size_t history = c->conv_kernel - 1;
    float *conv_state = s->b.conv_state + kda_index * history * 3 * p;
    kda_work work = {.span = span, .layer = layer};
    bool integer = false;
    for (size_t m = 0; m < 6; m++) {
        integer = integer || l3_matrix_is_integer(matrices[m]);
    }
    memcpy(s->b.conv_in, conv_state, history * 3 * p * sizeof(float));
    for (uint32_t t = 0; t < n; t++) {
        float *z = s->b.conv_in + (history + t) * 3 * p;
        float *results[6] = {z, z + p, z + 2 * p, s->b.kda_f + t * p, s->b.kda_g + t * p,
                             s->b.kda_b + (size_t)t * c->head_count};
        l3_operand base = {0};
        l3_operand_set(s, &base, s->b.norm + t * h, c->hidden_size, integer, &s->b.act, (uint64_t)t * s->act_stride);
        for (uint32_t m = 0; m < 6; m++) {
            s->b.operands[m * n + t] = base;
            s->b.operands[m * n + t].y = results[m];
        }
    }
    for (uint32_t m = 0; m < 6; m++) {
        s->b.products[m] = (l3_product){.matrix = matrices[m], .operands = s->b.operands + m * n, .n = n};
    }
    l3_multiply(s, s->b.products, 6);
    work.state = s->b.kda_state + (size_t)kda_index * c->head_count * c->head_dim * c->head_dim;
    /* A head goes over its state for every token. */
    l3_pool_run(s->engine->pool, run_heads, &work, c->head_count,
                l3_pool_grain(s->engine->pool, c->head_count, 4ull * n * c->head_dim * c->head_dim));
    memcpy(conv_state, s->b.conv_in + n * 3 * p, history * 3 * p * sizeof(float));

    for (uint32_t t = 0; t < n; t++) {
        l3_operand_set(s, &s->b.operands[t], s->b.attention_out + t * p, (uint32_t)p, l3_matrix_is_integer(&layer->o),
                       &s->b.act, (uint64_t)t * s->act_stride);
        s->b.operands[t].y = s->b.wide + t * h;
    }
    s->b.products[0] = (l3_product){.matrix = &layer->o, .operands = s->b.operands, .n = n};
    l3_multiply(s, s->b.products, 1);
    s->kernels->add(s->b.x, s->b.wide, n * h);
}
