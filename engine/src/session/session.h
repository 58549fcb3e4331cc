/* The inside of engine and session: what the forward pass works on. */
#ifndef L3_SESSION_SESSION_H
#define L3_SESSION_SESSION_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/threads.h"
#include "kernels/kernels.h"
#include "ling3.h"
#include "package/package.h"

#define L3_MAX_EXPERTS_PER_TOKEN 64u
#define L3_MAX_CHECKPOINTS 1024u
/* Heads that one prefill task of MLA attends for together. */
#define L3_HEAD_BLOCK 4u

struct l3_engine {
    const l3_package *package;
    const l3_kernels *kernels;
    l3_pool *pool;
    uint32_t threads;
    bool has_mtp;
    void *mtp_map; /* the file from l3_mtp_offset() on */
    uint64_t mtp_map_bytes;
    l3_mtp mtp;
};

/* Activations quantised for the integer kernels, `stride` values apart. */
typedef struct l3_activations {
    int8_t *q;
    float *scale;
    int32_t *sum8;
} l3_activations;

/* One matrix of a stack against n operands: a piece of a parallel product. */
typedef struct l3_product {
    const l3_matrix *matrix;
    uint32_t index;
    const l3_operand *operands;
    uint32_t n;
    uint32_t first_tile; /* in the numbering of the whole parallel product */
} l3_product;

/* One slot of l3_session_save; its states lie in the buffers checkpoint_kda and checkpoint_conv. */
typedef struct l3_checkpoint {
    uint32_t used;
    uint32_t position;
    uint32_t mtp_position;
} l3_checkpoint;

/* Every buffer of a session. C = chunk, k = experts per token, P = heads * head_dim. */
typedef struct l3_buffers {
    /* persistent */
    float *kda_state;    /* [KDA layers][heads][head_dim][head_dim] */
    float *conv_state;   /* [KDA layers][conv_kernel - 1][3 P] */
    uint8_t *kv_cache;   /* [MLA layers][context] rows as l3_kv_layout says */
    uint8_t *mtp_cache;  /* [context] rows */
    int32_t *tokens;     /* [context] */
    float *logits;       /* [vocab] */
    float *rope_inverse; /* [rope / 2] as pairs of float holding one double */
    l3_checkpoint *checkpoints; /* [slots] */
    float *checkpoint_kda;      /* [slots] as kda_state */
    float *checkpoint_conv;     /* [slots] as conv_state */
    /* scratch */
    float *x;                /* [C][H] residual stream */
    float *norm;             /* [C][2 H] */
    float *wide;             /* [C][H]: what a layer adds to the stream */
    float *conv_in;          /* [conv_kernel - 1 + C][3 P]: q, k, v before the convolution */
    float *kda_f, *kda_g;    /* [C][P] */
    float *kda_b;            /* [C][heads] */
    float *kda_work;         /* [threads][4 * head_dim] */
    float *attention_out;    /* [C][max(P, heads * v_head_dim)] */
    float *q_low;            /* [C][q_lora] */
    float *kv;               /* [C][kv_lora + rope] */
    float *q;                /* [C][heads][nope + rope] */
    float *q_latent;         /* [C][heads][kv_lora + rope] */
    float *context_latent;   /* [C][heads][kv_lora] */
    float *head_gate;        /* [C][heads] */
    float *rotation;         /* [C][rope]: cos and sin of each pair */
    float *scores;           /* decode: [heads][context]; prefill: [threads][L3_HEAD_BLOCK][context] */
    float *ff_gate, *ff_up;  /* [C][max(dense, shared)] */
    float *router;           /* [C][experts] */
    int32_t *expert_ids;     /* [C][k] */
    float *expert_weights;   /* [C][k] */
    uint32_t *expert_start;  /* [experts + 1] */
    uint32_t *slots;         /* [C k]: token * k + rank, ordered by expert */
    float *expert_gate;      /* [C k][I] */
    float *expert_up;        /* [C k][I] */
    float *expert_out;       /* [C k][H] */
    l3_activations act;      /* [C][widest K] */
    l3_activations slot_act; /* [C k][I] */
    l3_operand *operands;    /* [C * max(heads, 6)] */
    l3_operand *slot_operands; /* [2 C k] */
    l3_product *products;    /* [max(2 experts + 2, heads, 6)] */
} l3_buffers;

struct l3_session {
    l3_engine *engine;
    const l3_package *package;
    const l3_config *config;
    const l3_kernels *kernels;
    uint64_t bytes; /* of the whole session, this struct included */
    uint32_t context;
    l3_kv_layout kv; /* of a row of the caches */
    uint32_t chunk;
    uint32_t position;     /* tokens consumed */
    uint32_t mtp_position; /* length of the MTP cache */
    uint32_t checkpoint_count;
    bool has_logits;
    atomic_bool cancelled;
    const int32_t *forced; /* [MoE layers of the trunk][forced_tokens][k] or NULL */
    size_t forced_tokens;
    uint32_t act_stride; /* values per token in act */
    l3_buffers b;
};

/* A stretch of tokens on its way through the layers. */
typedef struct l3_span {
    l3_session *session;
    uint32_t count;    /* tokens, at most chunk */
    uint32_t position; /* of the first one */
} l3_span;

/* -- sizes: one computation for the plan and for the allocator (session/plan.c) -- */

/* Where base is NULL only the sizes are computed. Fills *plan; *session (with base) gets its pointers. */
l3_status l3_layout(const l3_package *package, bool mtp, uint32_t threads, const l3_session_options *options,
                    l3_session *session, uint8_t *base, l3_memory_plan *plan, l3_error *err);
uint32_t l3_resolve_threads(uint32_t threads);
/* Layers of the trunk that attend by MLA. */
uint32_t l3_mla_layers(const l3_config *config);
/* Floats of all recurrent states of the trunk, and of all its convolution windows. */
uint64_t l3_kda_floats(const l3_config *config);
uint64_t l3_conv_floats(const l3_config *config);

/* -- the forward pass (model/) -- */

/* Sets up operand i with x and, where q is wanted, its quantised form at act + i * stride. */
void l3_operand_set(const l3_session *s, l3_operand *operand, const float *x, uint32_t k, bool integer,
                    const l3_activations *act, uint64_t at);
bool l3_matrix_is_integer(const l3_matrix *m);
/* Computes all products in one parallel loop. Sets first_tile. */
void l3_multiply(const l3_session *s, l3_product *products, uint32_t count);
void l3_embed(const l3_session *s, int32_t id, float *out);

void l3_kda(const l3_span *span, const l3_layer *layer, uint32_t kda_index);
/* cache: this layer's rows. */
void l3_mla(const l3_span *span, const l3_layer *layer, uint8_t *cache);
/* moe_index: number of the MoE layer within the trunk; UINT32_MAX for the MTP layer. */
void l3_feed_forward(const l3_span *span, const l3_layer *layer, uint32_t moe_index);
/* norm = rms_norm(x, w) for every token of the span, stride H. */
void l3_norm_tokens(const l3_span *span, const float *x, const float *w, float *out);
void l3_rope_prepare(const l3_span *span);

/* Embeds ids and runs all layers of the trunk; the result is left in b.x. */
void l3_trunk(const l3_span *span, const int32_t *ids);
/* The MTP layer: hidden [count][H], next ids; the result (after final_layernorm) is left in b.norm, stride H. */
void l3_mtp_layer(const l3_span *span, const float *hidden, const int32_t *next_ids);
/* logits[count][vocab] of rows [count][H]. */
void l3_head(const l3_span *span, const float *rows, uint32_t count, float *logits);

#endif
