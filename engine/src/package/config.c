/* What this engine implements, and within which bounds. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "package/package.h"

static const char *const known_features[] = {
    "bailing-v3",        "kda-full-rank",          "kda-safe-gate",         "mla-head-wise-gate",
    "rope-interleaved",  "router-sigmoid-noaux-tc", "tokenizer-bpe-bailing",
};

bool l3_layer_is_mla(const l3_config *config, uint32_t i) {
    uint32_t group = config->layer_group_size;
    return (i + 1) % group == 0 || i >= config->layer_count / group * group;
}

typedef struct bound {
    const char *name;
    uint32_t value;
    uint32_t low;
    uint32_t high;
} bound;

static l3_status check_bounds(const bound *bounds, size_t count, l3_error *err) {
    for (size_t i = 0; i < count; i++) {
        if (bounds[i].value < bounds[i].low || bounds[i].value > bounds[i].high) {
            return l3_fail(err, L3_E_FORMAT, "config: %s is %u; %u to %u is possible", bounds[i].name,
                           bounds[i].value, bounds[i].low, bounds[i].high);
        }
    }
    return L3_OK;
}

static l3_status check_dimensions(const l3_config *c, l3_error *err) {
    const bound bounds[] = {
        {"vocab_size", c->vocab_size, 1, 1u << 20},
        {"token_count", c->token_count, 1, c->vocab_size},
        {"hidden_size", c->hidden_size, 8, 1u << 14},
        {"intermediate_size", c->intermediate_size, 1, 1u << 16},
        {"layer_count", c->layer_count, 1, 512},
        {"layer_group_size", c->layer_group_size, 1, 512},
        {"head_count", c->head_count, 1, 256},
        {"head_dim", c->head_dim, 8, 512},
        {"q_lora_rank", c->q_lora_rank, 0, 1u << 14},
        {"kv_lora_rank", c->kv_lora_rank, 8, 4096},
        {"qk_nope_head_dim", c->qk_nope_head_dim, 8, 1024},
        {"qk_rope_head_dim", c->qk_rope_head_dim, 8, 1024},
        {"v_head_dim", c->v_head_dim, 8, 1024},
        {"conv_kernel", c->conv_kernel, 1, 16},
        {"dense_layer_count", c->dense_layer_count, 0, c->layer_count},
        {"norm_topk_prob", c->norm_topk_prob, 0, 1},
        {"mtp_layer_count", c->mtp_layer_count, 0, 1},
        {"max_position", c->max_position, 1, 1u << 24},
        {"max_context", c->max_context, 1, 1u << 24},
        {"stop_count", c->stop_count, 1, L3_MAX_STOP_IDS},
    };
    return check_bounds(bounds, sizeof bounds / sizeof bounds[0], err);
}

/* Without MoE layers the fields may be 0, but the sizes of buffers still come from them. */
static l3_status check_experts(const l3_config *c, l3_error *err) {
    bool used = c->dense_layer_count < c->layer_count || c->mtp_layer_count > 0;
    uint32_t low = used ? 1 : 0;
    const bound bounds[] = {
        {"expert_count", c->expert_count, low, 4096},
        {"experts_per_token", c->experts_per_token, low, 64},
        {"expert_group_count", c->expert_group_count, low, c->expert_count},
        {"expert_group_top", c->expert_group_top, low, c->expert_group_count},
        {"moe_intermediate_size", c->moe_intermediate_size, low, 1u << 16},
        {"shared_intermediate_size", c->shared_intermediate_size, low, 1u << 22},
    };
    uint32_t group_size;
    l3_status status = check_bounds(bounds, sizeof bounds / sizeof bounds[0], err);
    if (status != L3_OK || !used) {
        return status;
    }
    group_size = c->expert_count / c->expert_group_count;
    if (c->expert_count % c->expert_group_count != 0 || (c->expert_group_count > 1 && group_size < 2)) {
        return l3_fail(err, L3_E_FORMAT, "config: %u experts do not form %u equal groups of 2 or more",
                       c->expert_count, c->expert_group_count);
    }
    if (c->experts_per_token > c->expert_group_top * group_size) {
        return l3_fail(err, L3_E_FORMAT, "config: %u experts per token, but %u groups of %u hold fewer",
                       c->experts_per_token, c->expert_group_top, group_size);
    }
    return L3_OK;
}

static l3_status check_ids(const l3_config *c, l3_error *err) {
    for (uint32_t i = 0; i < c->stop_count; i++) {
        if (c->stop_ids[i] < 0 || (uint32_t)c->stop_ids[i] >= c->token_count) {
            return l3_fail(err, L3_E_FORMAT, "config: stop id %d is no token; ids are below %u", c->stop_ids[i],
                           c->token_count);
        }
    }
    const int32_t ids[] = {c->bos_id, c->eos_id, c->pad_id};
    for (size_t i = 0; i < 3; i++) {
        if (ids[i] != L3_NO_TOKEN && (ids[i] < 0 || (uint32_t)ids[i] >= c->token_count)) {
            return l3_fail(err, L3_E_FORMAT, "config: special id %d is no token; ids are below %u", ids[i],
                           c->token_count);
        }
    }
    return L3_OK;
}

l3_status l3_config_validate(const l3_config *c, l3_error *err) {
    l3_status status = check_dimensions(c, err);
    if (status != L3_OK || (status = check_experts(c, err)) != L3_OK) {
        return status;
    }
    if (c->hidden_size % 8 != 0 || c->head_dim % 8 != 0 || c->kv_lora_rank % 8 != 0 || c->qk_rope_head_dim % 8 != 0) {
        return l3_fail(err, L3_E_UNSUPPORTED,
                       "config: hidden_size %u, head_dim %u, kv_lora_rank %u and qk_rope_head_dim %u must be "
                       "multiples of 8",
                       c->hidden_size, c->head_dim, c->kv_lora_rank, c->qk_rope_head_dim);
    }
    if (!(c->rms_eps > 0.0f && c->rms_eps < 1.0f)) {
        return l3_fail(err, L3_E_FORMAT, "config: rms_eps is %g; a small positive number is expected",
                       (double)c->rms_eps);
    }
    if (!(c->rope_theta > 1.0f && isfinite(c->rope_theta))) {
        return l3_fail(err, L3_E_FORMAT, "config: rope_theta is %g; more than 1 is expected", (double)c->rope_theta);
    }
    if (!isfinite(c->routed_scaling)) {
        return l3_fail(err, L3_E_FORMAT, "config: routed_scaling is not finite");
    }
    if (!(c->kda_lower_bound < 0.0f && c->kda_lower_bound >= -80.0f)) {
        return l3_fail(err, L3_E_FORMAT, "config: kda_lower_bound is %g; -80 up to but not 0 is expected",
                       (double)c->kda_lower_bound);
    }
    for (size_t i = 0; i < sizeof c->reserved / sizeof c->reserved[0]; i++) {
        if (c->reserved[i] != 0) {
            return l3_fail(err, L3_E_UNSUPPORTED, "config: reserved field %zu is set; a newer engine is needed", i);
        }
    }
    return check_ids(c, err);
}

l3_status l3_features_check(const char *text, size_t length, l3_error *err) {
    size_t start = 0;
    while (start < length) {
        const char *line = text + start;
        const char *end = memchr(line, '\n', length - start);
        size_t n = end != NULL ? (size_t)(end - line) : length - start;
        bool known = n == 0;
        for (size_t i = 0; i < sizeof known_features / sizeof known_features[0]; i++) {
            known = known || (strlen(known_features[i]) == n && memcmp(known_features[i], line, n) == 0);
        }
        if (!known) {
            return l3_fail(err, L3_E_UNSUPPORTED, "the package needs '%.*s', which this engine does not implement",
                           (int)(n < 80 ? n : 80), line);
        }
        start += n + 1;
    }
    return L3_OK;
}
