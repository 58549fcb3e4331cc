/* An open package: the mapping, its directory and its tensors bound to their places in the model. */
#ifndef L3_PACKAGE_PACKAGE_H
#define L3_PACKAGE_PACKAGE_H

#include <stdbool.h>

#include "ling3.h"

#define L3_TILE_ROWS 8u
#define L3_GROUP 32u       /* values along K that share one scale */
#define L3_Q8_BLOCK 272u   /* bytes of one tile and group: 8 float16 scales, 256 int8 */
#define L3_Q4_BLOCK 144u   /* bytes of one tile and group: 8 float16 scales, 128 bytes of nibbles */
#define L3_ALIGNMENT 65536u

/* `count` matrices [rows, k] one after the other, in tiles. */
typedef struct l3_matrix {
    const uint8_t *data; /* NULL: absent */
    uint32_t dtype;
    uint32_t count;
    uint32_t rows;
    uint32_t k;
    uint64_t tile_bytes;
    uint64_t matrix_bytes;
} l3_matrix;

typedef struct l3_layer {
    bool is_mla;
    bool is_moe;
    const float *input_norm; /* [H] */
    const float *post_norm;  /* [H] */

    /* KDA */
    l3_matrix q, k, v, f, g; /* [P, H] */
    l3_matrix b;             /* [heads, H] */
    l3_matrix o;             /* [H, P] */
    const float *conv;       /* [conv_kernel, 3 P] */
    const float *a_log;      /* [heads] */
    const float *dt_bias;    /* [P] */
    const float *o_norm;     /* [head_dim] */

    /* MLA */
    l3_matrix q_a;           /* [q_lora, H], absent where q_lora is 0 */
    l3_matrix q_b;           /* [heads * (nope + rope), q_lora or H] */
    l3_matrix kv_a;          /* [kv_lora + rope, H] */
    l3_matrix k_b;           /* heads x [kv_lora, nope] */
    l3_matrix v_b;           /* heads x [v_head_dim, kv_lora] */
    l3_matrix head_gate;     /* [heads, H] */
    l3_matrix dense;         /* [H, heads * v_head_dim] */
    const float *q_a_norm;   /* [q_lora] */
    const float *kv_a_norm;  /* [kv_lora] */

    /* feed-forward; of a MoE layer: the shared experts */
    l3_matrix gate, up; /* [I, H] */
    l3_matrix down;     /* [H, I] */
    l3_matrix router;   /* [experts, H] */
    const float *expert_bias;
    l3_matrix expert_gate, expert_up; /* experts x [I, H] */
    l3_matrix expert_down;            /* experts x [H, I] */
} l3_layer;

typedef struct l3_weights {
    l3_matrix embedding; /* [vocab, H] */
    l3_matrix head;      /* [vocab, H] */
    const float *norm;   /* [H] */
    l3_layer *layers;    /* [layer_count] */
    bool has_mtp;
} l3_weights;

/* The MTP layer. The package does not map it; whoever asks for it maps it. */
typedef struct l3_mtp {
    l3_layer layer;
    const float *enorm, *hnorm, *norm; /* [H] */
    l3_matrix eh;                      /* [H, 2 H] */
} l3_mtp;

typedef struct l3_section {
    uint32_t kind;
    uint64_t offset;
    uint64_t length;
    uint8_t sha256[32];
} l3_section;

struct l3_package {
    int fd;
    uint64_t start;      /* where the package begins in the file; all other offsets count from there */
    const uint8_t *base; /* the package up to mapped, that is without the MTP extents */
    uint64_t mapped;
    uint64_t size;
    l3_config config;
    l3_section *sections;
    uint32_t section_count;
    l3_tensor_info *tensors;
    uint32_t tensor_count;
    uint64_t directory_end;
    uint64_t trunk_end;
    l3_weights weights;
};

/* Exact length in bytes of a tensor; false on overflow or where dtype and shape do not go together. */
bool l3_tensor_length(uint32_t dtype, uint32_t rank, const uint64_t shape[4], uint64_t *length);
const char *l3_dtype_name(uint32_t dtype);
/* Row `lane` (0 to 7) of one tile as k floats. */
void l3_read_tiled_row(uint32_t dtype, const uint8_t *tile, uint32_t lane, uint64_t k, float *out);

l3_status l3_config_validate(const l3_config *config, l3_error *err);
l3_status l3_features_check(const char *text, size_t length, l3_error *err);
/* Whether layer i of the trunk (or the MTP layer, i == layer_count) attends by MLA. */
bool l3_layer_is_mla(const l3_config *config, uint32_t i);

/* Finds every tensor that the config asks for, checks its shape and type, and refuses any other tensor. */
l3_status l3_weights_bind(l3_package *package, l3_error *err);
/* base: a mapping of the package from l3_mtp_offset() on. With NULL only names, shapes and types are checked. */
l3_status l3_mtp_bind(const l3_package *package, const uint8_t *base, l3_mtp *out, l3_error *err);
/* Where the MTP extents start in the package. */
uint64_t l3_mtp_offset(const l3_package *package);

#endif
