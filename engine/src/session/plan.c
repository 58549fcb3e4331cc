/* What a session costs. The same walk over the same list gives the plan its bytes and the session its pointers, so the
 * two cannot differ. */
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cpu.h"
#include "base/error.h"
#include "base/memory.h"
#include "session/session.h"

#define ALIGNMENT 64u
#define DEFAULT_CHUNK 64u
#define MAX_CHUNK 4096u
#define MAX_SESSION_CACHE (1ull << 50)

typedef struct layout {
    uint8_t *base; /* NULL: count only */
    uint64_t used;
    bool overflow;
    bool resident; /* whoever creates the session writes to what is taken now */
    l3_memory_plan *plan;
} layout;

static void add_term(l3_memory_plan *plan, const char *name, uint64_t bytes, uint64_t idle, uint64_t full) {
    l3_plan_term *term = NULL;
    for (uint32_t i = 0; i < plan->term_count && term == NULL; i++) {
        term = strcmp(plan->terms[i].name, name) == 0 ? &plan->terms[i] : NULL;
    }
    if (term == NULL) {
        term = &plan->terms[plan->term_count++];
        snprintf(term->name, sizeof term->name, "%s", name);
    }
    term->bytes += bytes;
    term->idle += idle;
    term->full += full;
    plan->idle_bytes += idle;
    plan->full_bytes += full;
}

/* count x each x size bytes under the name of a term. */
static void *take(layout *l, const char *term, uint64_t count, uint64_t each, size_t size) {
    uint64_t at = l->used;
    uint64_t bytes;
    uint64_t end;
    if (!l3_mul_u64(count, each, &bytes) || !l3_mul_u64(bytes, size, &bytes) || bytes > UINT64_MAX / 4 ||
        !l3_add_u64(at, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + L3_REDZONE, &end) || end > UINT64_MAX / 4) {
        l->overflow = true;
        return NULL;
    }
    add_term(l->plan, term, end - at, l->resident ? end - at : 0, end - at);
    l->used = end;
    if (l->base != NULL) {
        l3_memory_forbid(l->base + at + bytes, (size_t)(end - at - bytes));
    }
    return l->base != NULL ? l->base + at : NULL;
}

static uint64_t widest(const uint64_t *values, size_t n) {
    uint64_t best = 0;
    for (size_t i = 0; i < n; i++) {
        best = values[i] > best ? values[i] : best;
    }
    return best;
}

#define WIDEST(...)                                                                                                    \
    widest((const uint64_t[]){__VA_ARGS__}, sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))

uint32_t l3_mla_layers(const l3_config *config) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < config->layer_count; i++) {
        count += l3_layer_is_mla(config, i) ? 1 : 0;
    }
    return count;
}

static void take_activations(layout *l, const char *term, uint64_t count, uint64_t stride, l3_activations *out) {
    out->q = take(l, term, count, stride, 1);
    out->scale = take(l, term, count, stride / L3_GROUP, sizeof(float));
    out->sum8 = take(l, term, count, stride / L3_GROUP, sizeof(int32_t));
}

static uint64_t kda_layers(const l3_config *c) { return c->layer_count - l3_mla_layers(c); }

uint64_t l3_kda_floats(const l3_config *c) { return kda_layers(c) * c->head_count * c->head_dim * c->head_dim; }

uint64_t l3_conv_floats(const l3_config *c) {
    return kda_layers(c) * (c->conv_kernel - 1) * 3 * c->head_count * c->head_dim;
}

/* What l3_session_create writes to. */
static void take_initialised(layout *l, const l3_config *c, const l3_session_options *o, l3_buffers *b) {
    l->resident = true;
    (void)take(l, "session", 1, 1, sizeof(l3_session)); /* the struct itself lies at the start */
    b->rope_inverse = take(l, "rope", c->qk_rope_head_dim / 2, 1, sizeof(double));
    l->resident = o->poison != 0;
}

static void take_state(layout *l, const l3_config *c, bool mtp, const l3_session_options *o, l3_buffers *b) {
    uint64_t mla = l3_mla_layers(c);
    uint64_t row = l3_kv_layout_of(o->kv_type, c->kv_lora_rank, c->qk_rope_head_dim).row_bytes;
    b->kda_state = take(l, "recurrent_state", l3_kda_floats(c), 1, sizeof(float));
    b->conv_state = take(l, "conv_state", l3_conv_floats(c), 1, sizeof(float));
    b->kv_cache = take(l, "kv_cache", mla * o->context, row, 1);
    if (mtp) {
        b->mtp_cache = take(l, "mtp_kv_cache", o->context, row, 1);
    }
    b->tokens = take(l, "timeline", o->context, 1, sizeof(int32_t));
    b->logits = take(l, "logits", c->vocab_size, 1, sizeof(float));
}

static void take_checkpoints(layout *l, const l3_config *c, const l3_session_options *o, l3_buffers *b) {
    const char *term = "prefix_checkpoints";
    b->checkpoints = take(l, term, o->checkpoints, 1, sizeof(l3_checkpoint));
    b->checkpoint_kda = take(l, term, o->checkpoints, l3_kda_floats(c), sizeof(float));
    b->checkpoint_conv = take(l, term, o->checkpoints, l3_conv_floats(c), sizeof(float));
}

static void take_attention(layout *l, const l3_config *c, uint32_t threads, const l3_session_options *o,
                           l3_buffers *b) {
    uint64_t n = o->chunk;
    uint64_t p = (uint64_t)c->head_count * c->head_dim;
    uint64_t width = c->kv_lora_rank + c->qk_rope_head_dim;
    uint64_t head = c->qk_nope_head_dim + c->qk_rope_head_dim;
    uint64_t rows = WIDEST((uint64_t)c->head_count, (uint64_t)threads * L3_HEAD_BLOCK);
    const char *term = "scratch_attention";
    b->conv_in = take(l, term, n + c->conv_kernel - 1, 3 * p, sizeof(float));
    b->kda_f = take(l, term, n, p, sizeof(float));
    b->kda_g = take(l, term, n, p, sizeof(float));
    b->kda_b = take(l, term, n, c->head_count, sizeof(float));
    b->kda_work = take(l, term, threads, 4ull * c->head_dim, sizeof(float));
    b->attention_out = take(l, term, n, WIDEST(p, (uint64_t)c->head_count * c->v_head_dim), sizeof(float));
    b->q_low = take(l, term, n, c->q_lora_rank, sizeof(float));
    b->kv = take(l, term, n, width, sizeof(float));
    b->q = take(l, term, n * c->head_count, head, sizeof(float));
    b->q_latent = take(l, term, n * c->head_count, width, sizeof(float));
    b->context_latent = take(l, term, n * c->head_count, c->kv_lora_rank, sizeof(float));
    b->head_gate = take(l, term, n, c->head_count, sizeof(float));
    b->rotation = take(l, term, n, c->qk_rope_head_dim, sizeof(float));
    b->scores = take(l, "scratch_scores", rows, o->context, sizeof(float));
}

static void take_feed_forward(layout *l, const l3_config *c, const l3_session_options *o, l3_buffers *b) {
    uint64_t n = o->chunk;
    uint64_t slots = n * c->experts_per_token;
    uint64_t inner = WIDEST((uint64_t)c->intermediate_size, (uint64_t)c->shared_intermediate_size);
    const char *term = "scratch_experts";
    b->ff_gate = take(l, term, n, inner, sizeof(float));
    b->ff_up = take(l, term, n, inner, sizeof(float));
    b->router = take(l, term, n, c->expert_count, sizeof(float));
    b->expert_ids = take(l, term, slots, 1, sizeof(int32_t));
    b->expert_weights = take(l, term, slots, 1, sizeof(float));
    b->expert_start = take(l, term, (uint64_t)c->expert_count + 1, 1, sizeof(uint32_t));
    b->slots = take(l, term, slots, 1, sizeof(uint32_t));
    b->expert_gate = take(l, term, slots, c->moe_intermediate_size, sizeof(float));
    b->expert_up = take(l, term, slots, c->moe_intermediate_size, sizeof(float));
    b->expert_out = take(l, term, slots, c->hidden_size, sizeof(float));
    take_activations(l, term, slots, c->moe_intermediate_size, &b->slot_act);
    b->slot_operands = take(l, term, 2 * slots, 1, sizeof(l3_operand));
}

/* Values of K that one token may need quantised at the same time, in whole groups. */
static uint64_t activation_stride(const l3_config *c) {
    uint64_t k = WIDEST(2ull * c->hidden_size, (uint64_t)c->head_count * c->head_dim,
                        (uint64_t)c->head_count * c->v_head_dim, (uint64_t)c->head_count * c->kv_lora_rank,
                        (uint64_t)c->head_count * c->qk_nope_head_dim, (uint64_t)c->intermediate_size,
                        (uint64_t)c->shared_intermediate_size, (uint64_t)c->q_lora_rank);
    return (k + L3_GROUP - 1) / L3_GROUP * L3_GROUP;
}

static void take_stream(layout *l, const l3_config *c, const l3_session_options *o, l3_buffers *b) {
    uint64_t n = o->chunk;
    const char *term = "scratch_activations";
    b->x = take(l, term, n, c->hidden_size, sizeof(float));
    b->norm = take(l, term, n, 2ull * c->hidden_size, sizeof(float));
    b->wide = take(l, term, n, c->hidden_size, sizeof(float));
    take_activations(l, term, n, activation_stride(c), &b->act);
    b->operands = take(l, term, n, WIDEST((uint64_t)c->head_count, 6), sizeof(l3_operand));
    b->products =
        take(l, term, WIDEST(2ull * c->expert_count + 2, (uint64_t)c->head_count, 6), 1, sizeof(l3_product));
}

/* -- weights -- */

static uint64_t matrices_bytes(const l3_matrix *const *matrices, size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += matrices[i]->matrix_bytes * matrices[i]->count;
    }
    return sum;
}

/* Weight bytes that one decoded token reads in this layer. */
static uint64_t layer_bytes_per_token(const l3_config *c, const l3_layer *y) {
    const l3_matrix *const all[] = {&y->q,   &y->k,   &y->v,   &y->f,         &y->g,     &y->b,    &y->o,  &y->q_a,
                                    &y->q_b, &y->kv_a, &y->k_b, &y->v_b,      &y->head_gate, &y->dense, &y->gate,
                                    &y->up,  &y->down, &y->router};
    uint64_t expert = y->expert_gate.matrix_bytes + y->expert_up.matrix_bytes + y->expert_down.matrix_bytes;
    return matrices_bytes(all, sizeof all / sizeof all[0]) + (y->is_moe ? c->experts_per_token * expert : 0);
}

static void add_mapped(l3_memory_plan *plan, const char *name, uint64_t bytes) {
    add_term(plan, name, bytes, bytes, bytes);
    plan->mapped_bytes += bytes;
}

static void count_weights(const l3_package *package, bool mtp, l3_memory_plan *plan) {
    const l3_config *c = &package->config;
    uint64_t sums[2] = {0};
    uint64_t mapped = package->mapped;
    for (uint32_t i = 0; i < package->tensor_count; i++) {
        sums[package->tensors[i].group != 0] += package->tensors[i].length;
    }
    add_mapped(plan, "weights", sums[0]);
    if (mtp) {
        add_mapped(plan, "mtp_weights", sums[1]);
        mapped += package->size - l3_mtp_offset(package);
    }
    add_mapped(plan, "package_tables", mapped - plan->mapped_bytes);
    plan->bytes_per_token = package->weights.head.matrix_bytes + package->weights.embedding.tile_bytes;
    for (uint32_t i = 0; i < c->layer_count; i++) {
        plan->bytes_per_token += layer_bytes_per_token(c, &package->weights.layers[i]);
    }
}

static l3_status check_options(const l3_package *package, const l3_session_options *options, l3_session_options *out,
                               l3_error *err) {
    *out = *options;
    if (out->context == 0 || out->context > package->config.max_context) {
        return l3_fail(err, L3_E_ARG, "context %u; 1 to %u tokens are possible with this package", out->context,
                       package->config.max_context);
    }
    if (out->kv_type > L3_KV_INT8) {
        return l3_fail(err, L3_E_ARG, "cache type %u is unknown", out->kv_type);
    }
    if (out->chunk > MAX_CHUNK) {
        return l3_fail(err, L3_E_ARG, "chunk %u; at most %u tokens are possible", out->chunk, MAX_CHUNK);
    }
    if (out->checkpoints > L3_MAX_CHECKPOINTS) {
        return l3_fail(err, L3_E_ARG, "%u checkpoints; at most %u are possible", out->checkpoints, L3_MAX_CHECKPOINTS);
    }
    if (out->session_cache_bytes > MAX_SESSION_CACHE) {
        return l3_fail(err, L3_E_ARG, "a session cache of %llu bytes; at most %llu are possible",
                       (unsigned long long)out->session_cache_bytes, MAX_SESSION_CACHE);
    }
    out->chunk = out->chunk > 0 ? out->chunk : DEFAULT_CHUNK;
    out->chunk = out->chunk < out->context ? out->chunk : out->context;
    return L3_OK;
}

l3_status l3_layout(const l3_package *package, bool mtp, uint32_t threads, const l3_session_options *options,
                    l3_session *session, uint8_t *base, l3_memory_plan *plan, l3_error *err) {
    const l3_config *c = &package->config;
    l3_session_options o;
    l3_buffers buffers = {0};
    layout l = {.base = base, .plan = plan};
    l3_status status = check_options(package, options, &o, err);
    if (status != L3_OK) {
        return status;
    }
    memset(plan, 0, sizeof *plan);
    count_weights(package, mtp, plan);
    take_initialised(&l, c, &o, &buffers);
    take_state(&l, c, mtp, &o, &buffers);
    take_stream(&l, c, &o, &buffers);
    take_attention(&l, c, threads, &o, &buffers);
    take_feed_forward(&l, c, &o, &buffers);
    take_checkpoints(&l, c, &o, &buffers);
    add_term(plan, "session_cache", o.session_cache_bytes, 0, o.session_cache_bytes);
    add_term(plan, "npu_staging", 0, 0, 0);
    if (l.overflow) {
        return l3_fail(err, L3_E_MEMORY, "a context of %u tokens does not fit an address space", o.context);
    }
    plan->allocated_bytes = l.used;
    if (session != NULL) {
        session->b = buffers;
        session->bytes = l.used;
        session->context = o.context;
        session->kv = l3_kv_layout_of(o.kv_type, c->kv_lora_rank, c->qk_rope_head_dim);
        session->chunk = o.chunk;
        session->checkpoint_count = o.checkpoints;
        session->act_stride = (uint32_t)activation_stride(c);
    }
    return L3_OK;
}

uint32_t l3_resolve_threads(uint32_t threads) {
    int cores[L3_MAX_CPUS];
    return threads > 0 ? threads : l3_cpu_big_cores(cores);
}

l3_status l3_plan(const l3_package *package, const l3_engine_options *engine_options,
                  const l3_session_options *session_options, l3_memory_plan *out, l3_error *err) {
    if (package == NULL || engine_options == NULL || session_options == NULL || out == NULL) {
        return l3_fail(err, L3_E_ARG, "l3_plan: NULL argument");
    }
    if (engine_options->mtp && !package->weights.has_mtp) {
        return l3_fail(err, L3_E_UNSUPPORTED, "MTP is asked for, but the package holds no MTP layer");
    }
    if (engine_options->threads > L3_MAX_THREADS) {
        return l3_fail(err, L3_E_ARG, "%u threads asked for; 1 to %u are possible", engine_options->threads,
                       L3_MAX_THREADS);
    }
    return l3_layout(package, engine_options->mtp != 0, l3_resolve_threads(engine_options->threads), session_options,
                     NULL, NULL, out, err);
}
