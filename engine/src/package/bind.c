/* The closed world of tensors: each expected one once, no other. docs/l3r-format.md lists them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "package/package.h"

typedef struct binder {
    const l3_package *package;
    const uint8_t *base; /* mapping of the file from base_offset on; NULL: check only */
    uint64_t base_offset;
    uint8_t *used; /* [tensor_count] or NULL */
    l3_error *err;
    l3_status status;
    uint32_t group;
    char prefix[48];
} binder;

static const l3_tensor_info *find(binder *b, const char *suffix) {
    char name[128];
    if (b->status != L3_OK) {
        return NULL;
    }
    snprintf(name, sizeof name, "%s%s", b->prefix, suffix);
    for (uint32_t i = 0; i < b->package->tensor_count; i++) {
        const l3_tensor_info *t = &b->package->tensors[i];
        if (strcmp(t->name, name) != 0) {
            continue;
        }
        if (t->group != b->group) {
            b->status = l3_fail(b->err, L3_E_FORMAT, "tensor %s is in group %u; group %u is expected", name, t->group,
                                b->group);
            return NULL;
        }
        if (b->used != NULL) {
            b->used[i] = 1;
        }
        return t;
    }
    b->status = l3_fail(b->err, L3_E_FORMAT, "tensor %s is missing", name);
    return NULL;
}

static const uint8_t *extent(const binder *b, const l3_tensor_info *t) {
    return b->base != NULL ? b->base + (t->offset - b->base_offset) : NULL;
}

static bool check_shape(binder *b, const l3_tensor_info *t, uint32_t rank, const uint64_t shape[3]) {
    if (t->rank == rank && memcmp(t->shape, shape, rank * sizeof shape[0]) == 0) {
        return true;
    }
    b->status = l3_fail(b->err, L3_E_FORMAT,
                        "tensor %s has shape [%llu, %llu, %llu] of rank %u; the config asks for [%llu, %llu, %llu] "
                        "of rank %u",
                        t->name, (unsigned long long)t->shape[0], (unsigned long long)t->shape[1],
                        (unsigned long long)t->shape[2], t->rank, (unsigned long long)shape[0],
                        (unsigned long long)shape[1], (unsigned long long)shape[2], rank);
    return false;
}

static void bind_f32(binder *b, const char *suffix, uint64_t rows, uint64_t columns, const float **out) {
    const l3_tensor_info *t = find(b, suffix);
    const uint64_t shape[3] = {rows, columns, 0};
    if (t == NULL || !check_shape(b, t, columns > 0 ? 2 : 1, shape)) {
        return;
    }
    if (t->dtype != L3_F32) {
        b->status = l3_fail(b->err, L3_E_FORMAT, "tensor %s is %s; F32 is expected", t->name, l3_dtype_name(t->dtype));
        return;
    }
    *out = (const float *)(const void *)extent(b, t);
}

/* count 0: one matrix of rank 2. */
static void bind_matrix(binder *b, const char *suffix, uint32_t count, uint32_t rows, uint32_t k, l3_matrix *out) {
    const l3_tensor_info *t = find(b, suffix);
    const uint64_t stacked[3] = {count, rows, k};
    const uint64_t single[3] = {rows, k, 0};
    uint64_t tiles = (rows + L3_TILE_ROWS - 1) / L3_TILE_ROWS;
    if (t == NULL || !check_shape(b, t, count > 0 ? 3 : 2, count > 0 ? stacked : single)) {
        return;
    }
    if (t->dtype == L3_F32) {
        b->status = l3_fail(b->err, L3_E_FORMAT, "tensor %s is F32; a tiled matrix type is expected", t->name);
        return;
    }
    out->data = extent(b, t);
    out->dtype = t->dtype;
    out->count = count > 0 ? count : 1;
    out->rows = rows;
    out->k = k;
    out->matrix_bytes = t->length / out->count;
    out->tile_bytes = out->matrix_bytes / tiles;
}

static void bind_kda(binder *b, const l3_config *c, l3_layer *layer) {
    uint32_t h = c->hidden_size;
    uint32_t p = c->head_count * c->head_dim;
    bind_matrix(b, ".attention.q_proj.weight", 0, p, h, &layer->q);
    bind_matrix(b, ".attention.k_proj.weight", 0, p, h, &layer->k);
    bind_matrix(b, ".attention.v_proj.weight", 0, p, h, &layer->v);
    bind_matrix(b, ".attention.f_proj.weight", 0, p, h, &layer->f);
    bind_matrix(b, ".attention.g_proj.weight", 0, p, h, &layer->g);
    bind_matrix(b, ".attention.b_proj.weight", 0, c->head_count, h, &layer->b);
    bind_matrix(b, ".attention.o_proj.weight", 0, h, p, &layer->o);
    bind_f32(b, ".attention.conv1d.weight", c->conv_kernel, 3ull * p, &layer->conv);
    bind_f32(b, ".attention.A_log", c->head_count, 0, &layer->a_log);
    bind_f32(b, ".attention.dt_bias", p, 0, &layer->dt_bias);
    bind_f32(b, ".attention.o_norm.weight", c->head_dim, 0, &layer->o_norm);
}

static void bind_mla(binder *b, const l3_config *c, l3_layer *layer) {
    uint32_t h = c->hidden_size;
    uint32_t q_rows = c->head_count * (c->qk_nope_head_dim + c->qk_rope_head_dim);
    if (c->q_lora_rank > 0) {
        bind_matrix(b, ".attention.q_a_proj.weight", 0, c->q_lora_rank, h, &layer->q_a);
        bind_f32(b, ".attention.q_a_layernorm.weight", c->q_lora_rank, 0, &layer->q_a_norm);
        bind_matrix(b, ".attention.q_b_proj.weight", 0, q_rows, c->q_lora_rank, &layer->q_b);
    } else {
        bind_matrix(b, ".attention.q_proj.weight", 0, q_rows, h, &layer->q_b);
    }
    bind_matrix(b, ".attention.kv_a_proj_with_mqa.weight", 0, c->kv_lora_rank + c->qk_rope_head_dim, h, &layer->kv_a);
    bind_f32(b, ".attention.kv_a_layernorm.weight", c->kv_lora_rank, 0, &layer->kv_a_norm);
    bind_matrix(b, ".attention.k_b_proj.weight", c->head_count, c->kv_lora_rank, c->qk_nope_head_dim, &layer->k_b);
    bind_matrix(b, ".attention.v_b_proj.weight", c->head_count, c->v_head_dim, c->kv_lora_rank, &layer->v_b);
    bind_matrix(b, ".attention.g_proj.weight", 0, c->head_count, h, &layer->head_gate);
    bind_matrix(b, ".attention.dense.weight", 0, h, c->head_count * c->v_head_dim, &layer->dense);
}

static void bind_moe(binder *b, const l3_config *c, l3_layer *layer) {
    uint32_t h = c->hidden_size;
    bind_matrix(b, ".mlp.gate.weight", 0, c->expert_count, h, &layer->router);
    if (b->status == L3_OK && layer->router.dtype != L3_F32X8) {
        b->status = l3_fail(b->err, L3_E_FORMAT, "tensor %s.mlp.gate.weight is %s; the router is F32X8", b->prefix,
                            l3_dtype_name(layer->router.dtype));
    }
    bind_f32(b, ".mlp.gate.expert_bias", c->expert_count, 0, &layer->expert_bias);
    bind_matrix(b, ".mlp.experts.gate_proj.weight", c->expert_count, c->moe_intermediate_size, h, &layer->expert_gate);
    bind_matrix(b, ".mlp.experts.up_proj.weight", c->expert_count, c->moe_intermediate_size, h, &layer->expert_up);
    bind_matrix(b, ".mlp.experts.down_proj.weight", c->expert_count, h, c->moe_intermediate_size, &layer->expert_down);
    bind_matrix(b, ".mlp.shared_experts.gate_proj.weight", 0, c->shared_intermediate_size, h, &layer->gate);
    bind_matrix(b, ".mlp.shared_experts.up_proj.weight", 0, c->shared_intermediate_size, h, &layer->up);
    bind_matrix(b, ".mlp.shared_experts.down_proj.weight", 0, h, c->shared_intermediate_size, &layer->down);
}

static void bind_layer(binder *b, const l3_config *c, uint32_t i, l3_layer *layer) {
    snprintf(b->prefix, sizeof b->prefix, "model.layers.%u", i);
    layer->is_mla = i >= c->layer_count || l3_layer_is_mla(c, i);
    layer->is_moe = i >= c->dense_layer_count;
    bind_f32(b, ".input_layernorm.weight", c->hidden_size, 0, &layer->input_norm);
    bind_f32(b, ".post_attention_layernorm.weight", c->hidden_size, 0, &layer->post_norm);
    if (layer->is_mla) {
        bind_mla(b, c, layer);
    } else {
        bind_kda(b, c, layer);
    }
    if (layer->is_moe) {
        bind_moe(b, c, layer);
    } else {
        bind_matrix(b, ".mlp.gate_proj.weight", 0, c->intermediate_size, c->hidden_size, &layer->gate);
        bind_matrix(b, ".mlp.up_proj.weight", 0, c->intermediate_size, c->hidden_size, &layer->up);
        bind_matrix(b, ".mlp.down_proj.weight", 0, c->hidden_size, c->intermediate_size, &layer->down);
    }
}

static void bind_mtp(binder *b, const l3_config *c, l3_mtp *mtp) {
    b->group = 1;
    bind_layer(b, c, c->layer_count, &mtp->layer);
    bind_f32(b, ".enorm.weight", c->hidden_size, 0, &mtp->enorm);
    bind_f32(b, ".hnorm.weight", c->hidden_size, 0, &mtp->hnorm);
    bind_matrix(b, ".eh_proj.weight", 0, c->hidden_size, 2 * c->hidden_size, &mtp->eh);
    bind_f32(b, ".final_layernorm.weight", c->hidden_size, 0, &mtp->norm);
}

uint64_t l3_mtp_offset(const l3_package *package) {
    return (package->trunk_end + L3_ALIGNMENT - 1) / L3_ALIGNMENT * L3_ALIGNMENT;
}

l3_status l3_mtp_bind(const l3_package *package, const uint8_t *base, l3_mtp *out, l3_error *err) {
    binder b = {.package = package, .base = base, .base_offset = l3_mtp_offset(package), .err = err, .status = L3_OK};
    memset(out, 0, sizeof *out);
    bind_mtp(&b, &package->config, out);
    return b.status;
}

/* A tensor that nothing asked for: a second one of a name that is taken, or a stranger. */
static l3_status refuse_unused(const binder *b, uint32_t index) {
    const l3_tensor_info *t = &b->package->tensors[index];
    for (uint32_t i = 0; i < b->package->tensor_count; i++) {
        if (b->used[i] && strcmp(b->package->tensors[i].name, t->name) == 0) {
            return l3_fail(b->err, L3_E_FORMAT, "tensor %s occurs twice", t->name);
        }
    }
    return l3_fail(b->err, L3_E_FORMAT, "tensor %s has no place in this model", t->name);
}

l3_status l3_weights_bind(l3_package *package, l3_error *err) {
    const l3_config *c = &package->config;
    l3_weights *w = &package->weights;
    binder b = {.package = package, .base = package->base, .err = err, .status = L3_OK};
    l3_mtp mtp = {0};
    b.used = l3_alloc(package->tensor_count > 0 ? package->tensor_count : 1, 1);
    w->layers = l3_alloc(c->layer_count, sizeof *w->layers);
    if (b.used == NULL || w->layers == NULL) {
        l3_free(b.used);
        return l3_fail(err, L3_E_MEMORY, "no memory for the tensor table");
    }
    bind_matrix(&b, "model.word_embeddings.weight", 0, c->vocab_size, c->hidden_size, &w->embedding);
    bind_f32(&b, "model.norm.weight", c->hidden_size, 0, &w->norm);
    bind_matrix(&b, "lm_head.weight", 0, c->vocab_size, c->hidden_size, &w->head);
    for (uint32_t i = 0; i < c->layer_count; i++) {
        bind_layer(&b, c, i, &w->layers[i]);
    }
    /* Presence is read from the tensors, not from the config: a chat checkpoint may name a layer it does not ship. */
    for (uint32_t i = 0; i < package->tensor_count; i++) {
        w->has_mtp = w->has_mtp || package->tensors[i].group == 1;
    }
    if (w->has_mtp && b.status == L3_OK) {
        if (c->mtp_layer_count == 0) {
            b.status = l3_fail(err, L3_E_FORMAT, "the package holds MTP tensors, but its config names no MTP layer");
        } else {
            b.base = NULL;
            b.prefix[0] = '\0';
            bind_mtp(&b, c, &mtp);
        }
    }
    for (uint32_t i = 0; i < package->tensor_count && b.status == L3_OK; i++) {
        if (!b.used[i]) {
            b.status = refuse_unused(&b, i);
        }
    }
    l3_free(b.used);
    return b.status;
}
