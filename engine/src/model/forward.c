/* Blocks, trunk, MTP layer and head. */
#include <string.h>

#include "session/session.h"

typedef struct norm_work {
    const l3_session *session;
    const float *x;
    const float *w;
    float *out;
} norm_work;

static void norm_rows(void *context, uint32_t first, uint32_t last, uint32_t thread) {
    const norm_work *work = context;
    const l3_config *c = work->session->config;
    size_t h = c->hidden_size;
    (void)thread;
    for (uint32_t t = first; t < last; t++) {
        work->session->kernels->rms_norm(work->x + t * h, work->w, h, c->rms_eps, work->out + t * h);
    }
}

void l3_norm_tokens(const l3_span *span, const float *x, const float *w, float *out) {
    norm_work work = {.session = span->session, .x = x, .w = w, .out = out};
    l3_pool *pool = span->session->engine->pool;
    l3_pool_run(pool, norm_rows, &work, span->count,
                l3_pool_grain(pool, span->count, 8ull * span->session->config->hidden_size));
}

void l3_trunk(const l3_span *span, const int32_t *ids) {
    l3_session *s = span->session;
    const l3_config *c = s->config;
    size_t layer_cache = (size_t)s->context * s->kv.row_bytes;
    uint32_t kda_index = 0;
    uint32_t mla_index = 0;
    uint32_t moe_index = 0;
    for (uint32_t t = 0; t < span->count; t++) {
        l3_embed(s, ids[t], s->b.x + (size_t)t * c->hidden_size);
    }
    l3_rope_prepare(span);
    for (uint32_t i = 0; i < c->layer_count; i++) {
        const l3_layer *layer = &s->package->weights.layers[i];
        l3_norm_tokens(span, s->b.x, layer->input_norm, s->b.norm);
        if (layer->is_mla) {
            l3_mla(span, layer, s->b.kv_cache + mla_index++ * layer_cache);
        } else {
            l3_kda(span, layer, kda_index++);
        }
        l3_norm_tokens(span, s->b.x, layer->post_norm, s->b.norm);
        l3_feed_forward(span, layer, layer->is_moe ? moe_index++ : 0);
    }
}

void l3_mtp_layer(const l3_span *span, const float *hidden, const int32_t *next_ids) {
    l3_session *s = span->session;
    const l3_config *c = s->config;
    const l3_mtp *mtp = &s->engine->mtp;
    size_t h = c->hidden_size;
    uint32_t n = span->count;
    for (uint32_t t = 0; t < n; t++) { /* [enorm(embedding) | hnorm(hidden)] */
        float *row = s->b.norm + t * 2 * h;
        l3_embed(s, next_ids[t], s->b.wide + t * h);
        s->kernels->rms_norm(s->b.wide + t * h, mtp->enorm, h, c->rms_eps, row);
        s->kernels->rms_norm(hidden + t * h, mtp->hnorm, h, c->rms_eps, row + h);
        l3_operand_set(s, &s->b.operands[t], row, (uint32_t)(2 * h), l3_matrix_is_integer(&mtp->eh), &s->b.act,
                       (uint64_t)t * s->act_stride);
        s->b.operands[t].y = s->b.x + t * h;
    }
    s->b.products[0] = (l3_product){.matrix = &mtp->eh, .operands = s->b.operands, .n = n};
    l3_multiply(s, s->b.products, 1);
    l3_rope_prepare(span);
    l3_norm_tokens(span, s->b.x, mtp->layer.input_norm, s->b.norm);
    l3_mla(span, &mtp->layer, s->b.mtp_cache);
    l3_norm_tokens(span, s->b.x, mtp->layer.post_norm, s->b.norm);
    l3_feed_forward(span, &mtp->layer, UINT32_MAX);
    l3_norm_tokens(span, s->b.x, mtp->norm, s->b.norm);
}

void l3_head(const l3_span *span, const float *rows, uint32_t count, float *logits) {
    l3_session *s = span->session;
    const l3_config *c = s->config;
    const l3_matrix *head = &s->package->weights.head;
    for (uint32_t t = 0; t < count; t++) {
        l3_operand_set(s, &s->b.operands[t], rows + (size_t)t * c->hidden_size, c->hidden_size,
                       l3_matrix_is_integer(head), &s->b.act, (uint64_t)t * s->act_stride);
        s->b.operands[t].y = logits + (size_t)t * c->vocab_size;
    }
    s->b.products[0] = (l3_product){.matrix = head, .operands = s->b.operands, .n = count};
    l3_multiply(s, s->b.products, 1);
}
