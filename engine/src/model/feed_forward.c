/* Dense feed-forward, and the mixture of experts with group-limited routing and shared experts. */
#include <math.h>
#include <string.h>

#include "session/session.h"

/* -- routing of one token -- */

/* Sum of the two largest; with a single value, that value. */
static float group_score(const float *r, uint32_t n) {
    float first = -INFINITY;
    float second = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        if (r[i] > first) {
            second = first;
            first = r[i];
        } else if (r[i] > second) {
            second = r[i];
        }
    }
    return n > 1 ? first + second : first;
}

/* Index of the largest of n values that is not yet taken; the lowest index wins a tie. n when all are taken. A NaN is
 * picked only where it comes first among those that are left. */
static uint32_t pick(const float *values, const uint8_t *taken, uint32_t n) {
    uint32_t best = n;
    for (uint32_t i = 0; i < n; i++) {
        if (!taken[i] && (best == n || values[i] > values[best])) {
            best = i;
        }
    }
    return best;
}

/* scores: sigmoid of the router's output. ids and weights are [k], in falling order of the biased score. */
static void route(const l3_config *c, const float *scores, const float *bias, int32_t *ids) {
    uint32_t group_size = c->expert_count / c->expert_group_count;
    float biased[4096];
    float groups[4096];
    uint8_t group_taken[4096] = {0};
    uint8_t taken[4096];
    memset(taken, 1, c->expert_count);
    for (uint32_t e = 0; e < c->expert_count; e++) {
        biased[e] = scores[e] + bias[e];
    }
    for (uint32_t g = 0; g < c->expert_group_count; g++) {
        groups[g] = group_score(biased + g * group_size, group_size);
    }
    for (uint32_t i = 0; i < c->expert_group_top; i++) {
        uint32_t g = pick(groups, group_taken, c->expert_group_count);
        group_taken[g] = 1;
        memset(taken + g * group_size, 0, group_size);
    }
    for (uint32_t i = 0; i < c->experts_per_token; i++) {
        uint32_t e = pick(biased, taken, c->expert_count);
        taken[e] = 1;
        ids[i] = (int32_t)e;
    }
}

static void weigh(const l3_config *c, const float *scores, const int32_t *ids, float *weights) {
    float sum = 0.0f;
    for (uint32_t i = 0; i < c->experts_per_token; i++) {
        weights[i] = scores[ids[i]];
        sum += weights[i];
    }
    for (uint32_t i = 0; i < c->experts_per_token; i++) {
        float w = c->norm_topk_prob ? weights[i] / (sum + 1e-20f) : weights[i];
        weights[i] = w * c->routed_scaling;
    }
}

typedef struct ff_work {
    const l3_span *span;
    const l3_layer *layer;
    uint32_t moe_index;
} ff_work;

static void route_tokens(void *context, uint32_t first, uint32_t last, uint32_t thread) {
    const ff_work *w = context;
    l3_session *s = w->span->session;
    const l3_config *c = s->config;
    (void)thread;
    for (uint32_t t = first; t < last; t++) {
        float *scores = s->b.router + (size_t)t * c->expert_count;
        int32_t *ids = s->b.expert_ids + (size_t)t * c->experts_per_token;
        size_t position = (size_t)w->span->position + t;
        s->kernels->sigmoid(scores, c->expert_count, scores);
        if (s->forced != NULL && w->moe_index != UINT32_MAX && position < s->forced_tokens) {
            const int32_t *forced = s->forced + (w->moe_index * s->forced_tokens + position) * c->experts_per_token;
            memcpy(ids, forced, c->experts_per_token * sizeof *ids);
        } else {
            route(c, scores, w->layer->expert_bias, ids);
        }
        weigh(c, scores, ids, s->b.expert_weights + (size_t)t * c->experts_per_token);
    }
}

/* slots: (token, rank) pairs ordered by expert, then by token. */
static void sort_slots(l3_session *s, uint32_t n) {
    const l3_config *c = s->config;
    uint32_t *start = s->b.expert_start;
    uint32_t slots = n * c->experts_per_token;
    uint32_t sum = 0;
    memset(start, 0, ((size_t)c->expert_count + 1) * sizeof *start);
    for (uint32_t i = 0; i < slots; i++) {
        start[s->b.expert_ids[i]]++;
    }
    for (uint32_t e = 0; e <= c->expert_count; e++) {
        uint32_t count = start[e];
        start[e] = sum;
        sum += count;
    }
    for (uint32_t i = 0; i < slots; i++) {
        s->b.slots[start[s->b.expert_ids[i]]++] = i;
    }
    for (uint32_t e = c->expert_count; e > 0; e--) { /* back to where each expert starts */
        start[e] = start[e - 1];
    }
    start[0] = 0;
}

/* One loop over tokens or slots, each of which reads and writes about `values` floats. */
static void run(ff_work *w, l3_task_fn task, uint32_t count, uint64_t values) {
    l3_pool *pool = w->span->session->engine->pool;
    l3_pool_run(pool, task, w, count, l3_pool_grain(pool, count, 4 * values));
}

/* -- dense or shared: gate and up, then down -- */

static void activate_dense(void *context, uint32_t first, uint32_t last, uint32_t thread) {
    const ff_work *w = context;
    l3_session *s = w->span->session;
    uint32_t inner = w->layer->gate.rows;
    (void)thread;
    for (uint32_t t = first; t < last; t++) {
        float *gate = s->b.ff_gate + (size_t)t * inner;
        l3_operand *operand = &s->b.operands[t];
        s->kernels->silu_mul(gate, s->b.ff_up + (size_t)t * inner, inner, gate);
        l3_operand_set(s, operand, gate, inner, l3_matrix_is_integer(&w->layer->down), &s->b.act,
                       (uint64_t)t * s->act_stride);
        operand->y = s->b.wide + (size_t)t * s->config->hidden_size;
    }
}

/* Sets operands[t] to the normed input. */
static void set_inputs(const ff_work *w, bool integer) {
    l3_session *s = w->span->session;
    uint32_t h = s->config->hidden_size;
    for (uint32_t t = 0; t < w->span->count; t++) {
        l3_operand_set(s, &s->b.operands[t], s->b.norm + (size_t)t * h, h, integer, &s->b.act,
                       (uint64_t)t * s->act_stride);
    }
}

static void point_results(l3_operand *out, const l3_operand *in, uint32_t n, float *y, size_t stride) {
    for (uint32_t t = 0; t < n; t++) {
        out[t] = in[t];
        out[t].y = y + t * stride;
    }
}

static void dense(ff_work *w) {
    l3_session *s = w->span->session;
    const l3_layer *layer = w->layer;
    uint32_t n = w->span->count;
    set_inputs(w, l3_matrix_is_integer(&layer->gate) || l3_matrix_is_integer(&layer->up));
    point_results(s->b.operands + n, s->b.operands, n, s->b.ff_up, layer->up.rows);
    point_results(s->b.operands, s->b.operands, n, s->b.ff_gate, layer->gate.rows);
    s->b.products[0] = (l3_product){.matrix = &layer->gate, .operands = s->b.operands, .n = n};
    s->b.products[1] = (l3_product){.matrix = &layer->up, .operands = s->b.operands + n, .n = n};
    l3_multiply(s, s->b.products, 2);
    run(w, activate_dense, n, 3ull * layer->gate.rows);
    s->b.products[0] = (l3_product){.matrix = &layer->down, .operands = s->b.operands, .n = n};
    l3_multiply(s, s->b.products, 1);
    s->kernels->add(s->b.x, s->b.wide, (size_t)n * s->config->hidden_size);
}

/* -- experts -- */

static void activate_slots(void *context, uint32_t first, uint32_t last, uint32_t thread) {
    const ff_work *w = context;
    l3_session *s = w->span->session;
    uint32_t inner = s->config->moe_intermediate_size;
    (void)thread;
    for (uint32_t i = first; i < last; i++) {
        float *gate = s->b.expert_gate + (size_t)i * inner;
        l3_operand *operand = &s->b.slot_operands[i];
        s->kernels->silu_mul(gate, s->b.expert_up + (size_t)i * inner, inner, gate);
        l3_operand_set(s, operand, gate, inner, l3_matrix_is_integer(&w->layer->expert_down), &s->b.slot_act,
                       (uint64_t)i * inner);
        /* by (token, rank), so that the sum below runs in rank order */
        operand->y = s->b.expert_out + (size_t)s->b.slots[i] * s->config->hidden_size;
    }
}

/* Weighted experts in rank order, then the shared ones, then the residual. */
static void combine(void *context, uint32_t first, uint32_t last, uint32_t thread) {
    const ff_work *w = context;
    l3_session *s = w->span->session;
    const l3_config *c = s->config;
    size_t h = c->hidden_size;
    (void)thread;
    for (uint32_t t = first; t < last; t++) {
        float *sum = s->b.norm + t * h; /* the normed input is no longer needed */
        memset(sum, 0, h * sizeof *sum);
        for (uint32_t rank = 0; rank < c->experts_per_token; rank++) {
            size_t slot = (size_t)t * c->experts_per_token + rank;
            s->kernels->axpy(sum, s->b.expert_weights[slot], s->b.expert_out + slot * h, h);
        }
        s->kernels->add(sum, s->b.wide + t * h, h);
        s->kernels->add(s->b.x + t * h, sum, h);
    }
}

static uint32_t expert_products(l3_session *s, const l3_matrix *stack, const l3_operand *operands, l3_product *out) {
    uint32_t count = 0;
    for (uint32_t e = 0; e < s->config->expert_count; e++) {
        uint32_t from = s->b.expert_start[e];
        uint32_t to = s->b.expert_start[e + 1];
        if (to > from) {
            out[count++] =
                (l3_product){.matrix = stack, .index = e, .operands = operands + from, .n = to - from};
        }
    }
    return count;
}

static void mixture(ff_work *w) {
    l3_session *s = w->span->session;
    const l3_config *c = s->config;
    const l3_layer *layer = w->layer;
    uint32_t n = w->span->count;
    uint32_t slots = n * c->experts_per_token;
    uint32_t inner = c->moe_intermediate_size;
    l3_operand *up = s->b.slot_operands + slots;
    l3_operand *shared = s->b.operands + n;
    uint32_t count;
    bool integer = l3_matrix_is_integer(&layer->expert_gate) || l3_matrix_is_integer(&layer->expert_up) ||
                   l3_matrix_is_integer(&layer->gate) || l3_matrix_is_integer(&layer->up);
    set_inputs(w, integer);
    point_results(shared, s->b.operands, n, s->b.router, c->expert_count);
    s->b.products[0] = (l3_product){.matrix = &layer->router, .operands = shared, .n = n};
    l3_multiply(s, s->b.products, 1);
    run(w, route_tokens, n, 8ull * c->expert_count);
    sort_slots(s, n);

    for (uint32_t i = 0; i < slots; i++) {
        s->b.slot_operands[i] = s->b.operands[s->b.slots[i] / c->experts_per_token];
        up[i] = s->b.slot_operands[i];
        s->b.slot_operands[i].y = s->b.expert_gate + (size_t)i * inner;
        up[i].y = s->b.expert_up + (size_t)i * inner;
    }
    count = expert_products(s, &layer->expert_gate, s->b.slot_operands, s->b.products);
    count += expert_products(s, &layer->expert_up, up, s->b.products + count);
    point_results(shared, s->b.operands, n, s->b.ff_gate, layer->gate.rows);
    point_results(shared + n, s->b.operands, n, s->b.ff_up, layer->up.rows);
    s->b.products[count++] = (l3_product){.matrix = &layer->gate, .operands = shared, .n = n};
    s->b.products[count++] = (l3_product){.matrix = &layer->up, .operands = shared + n, .n = n};
    l3_multiply(s, s->b.products, count);

    run(w, activate_slots, slots, 3ull * inner);
    run(w, activate_dense, n, 3ull * layer->gate.rows);
    count = expert_products(s, &layer->expert_down, s->b.slot_operands, s->b.products);
    s->b.products[count++] = (l3_product){.matrix = &layer->down, .operands = s->b.operands, .n = n};
    l3_multiply(s, s->b.products, count);
    run(w, combine, n, (2ull * c->experts_per_token + 4) * c->hidden_size);
}

void l3_feed_forward(const l3_span *span, const l3_layer *layer, uint32_t moe_index) {
    ff_work w = {.span = span, .layer = layer, .moe_index = moe_index};
    if (layer->is_moe) {
        mixture(&w);
    } else {
        dense(&w);
    }
}
