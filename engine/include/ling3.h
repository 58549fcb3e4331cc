/* ling3.h - the public interface of the Ling-3.0 inference engine.
 *
 * Three opaque nouns:
 *   l3_package  an open, validated, memory-mapped .l3r file; read-only, shareable between threads
 *   l3_engine   package + kernels + thread pool; read-only after creation; sessions of several threads take turns
 *   l3_session  one mutable timeline of tokens; used by one thread at a time
 *
 * Every call that can fail returns an l3_status and fills a caller-owned l3_error (which may be NULL).
 * Out-parameters that receive an object are NULL on failure. Destroying NULL is fine.
 * The library never prints, never exits and installs no signal handler.
 */
#ifndef LING3_H
#define LING3_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define L3_API __attribute__((visibility("default")))
#else
#define L3_API
#endif

/* Raised whenever a struct or a function below changes its meaning. */
#define L3_ABI_VERSION 3u

typedef enum l3_status {
    L3_OK = 0,
    L3_E_ARG = 1,         /* the caller broke the contract of this header */
    L3_E_IO = 2,          /* a file could not be opened, read or mapped; os_errno says why */
    L3_E_FORMAT = 3,      /* the package is damaged, truncated or not a package */
    L3_E_UNSUPPORTED = 4, /* well-formed, but asks for something this engine does not implement */
    L3_E_MEMORY = 5,      /* an allocation failed */
    L3_E_CONTEXT = 6,     /* the session's context is full */
    L3_E_CANCELLED = 7,   /* l3_session_cancel was called; what was consumed before stays consumed */
    L3_E_INTERNAL = 8     /* a bug in the engine */
} l3_status;

typedef struct l3_error {
    int32_t status;   /* an l3_status */
    int32_t os_errno; /* errno of the failing system call, or 0 */
    char message[504];
} l3_error;

L3_API uint32_t l3_abi_version(void);
/* Name and version of the engine, e.g. "ling3 0.1.0". */
L3_API const char *l3_version(void);
/* Stable lower-case name of a status, e.g. "format". */
L3_API const char *l3_status_name(int32_t status);

/* ---- package ------------------------------------------------------------------------------- */

typedef struct l3_package l3_package;

/* How the bytes of a tensor are laid out; docs/l3r-format.md has the details. */
typedef enum l3_dtype {
    L3_F32 = 0,    /* row-major float32: vectors, convolutions */
    L3_F32X8 = 1,  /* float32 matrix in tiles of 8 rows */
    L3_BF16X8 = 2, /* bfloat16 matrix in tiles of 8 rows */
    L3_Q8X8 = 3,   /* int8 in groups of 32 along K, one float16 scale each, tiles of 8 rows */
    L3_Q4X8 = 4    /* int4 in groups of 32 along K, one float16 scale each, tiles of 8 rows */
} l3_dtype;

typedef enum l3_section_kind {
    L3_SECTION_CONFIG = 1,
    L3_SECTION_FEATURES = 2,      /* UTF-8 lines: what an engine must implement to run the package */
    L3_SECTION_TOKENIZER = 3,     /* binary tables */
    L3_SECTION_CHAT_TEMPLATE = 4, /* UTF-8 jinja source */
    L3_SECTION_METADATA = 5       /* UTF-8 JSON: provenance, quantisation, licence, generation defaults */
} l3_section_kind;

#define L3_MAX_STOP_IDS 8u
#define L3_NO_TOKEN (-1)

/* The model's dimensions. Fixed 256 bytes, stored as they are (little-endian) in the config section. */
typedef struct l3_config {
    uint32_t vocab_size;          /* rows of embedding and head, padding included */
    uint32_t token_count;         /* ids below this exist in the tokenizer; the rest is padding */
    uint32_t hidden_size;         /* H */
    uint32_t intermediate_size;   /* dense feed-forward */
    uint32_t layer_count;         /* trunk layers; an MTP layer is one more */
    uint32_t layer_group_size;    /* layer i is MLA iff (i+1) % g == 0 or i >= layer_count / g * g */
    uint32_t head_count;          /* KDA and MLA alike */
    uint32_t head_dim;            /* KDA key and value width */
    uint32_t q_lora_rank;         /* 0: q_proj is one matrix */
    uint32_t kv_lora_rank;
    uint32_t qk_nope_head_dim;
    uint32_t qk_rope_head_dim;
    uint32_t v_head_dim;
    uint32_t conv_kernel;
    uint32_t expert_count;
    uint32_t experts_per_token;
    uint32_t expert_group_count;
    uint32_t expert_group_top;
    uint32_t moe_intermediate_size;
    uint32_t shared_intermediate_size; /* of all shared experts together */
    uint32_t dense_layer_count;        /* layers below this use the dense feed-forward */
    uint32_t norm_topk_prob;           /* 0 or 1 */
    uint32_t mtp_layer_count;          /* 0 or 1; whether the package holds them is another question */
    uint32_t max_position;             /* native context of the model, tokens */
    uint32_t max_context;              /* largest context this package may be opened with, tokens */
    uint32_t stop_count;
    int32_t stop_ids[L3_MAX_STOP_IDS]; /* generation ends at any of these */
    int32_t bos_id;                    /* L3_NO_TOKEN where there is none; never added on its own */
    int32_t eos_id;
    int32_t pad_id;
    float rms_eps;
    float rope_theta;
    float routed_scaling;
    float kda_lower_bound;
    uint32_t reserved[23]; /* zero */
} l3_config;

typedef struct l3_tensor_info {
    const char *name; /* lives as long as the package */
    uint32_t dtype;   /* l3_dtype */
    uint32_t rank;
    uint64_t shape[4]; /* unused places are 0 */
    uint64_t offset;   /* from the start of the file, bytes */
    uint64_t length;   /* bytes */
    uint32_t group;    /* 0 trunk, 1 MTP */
    uint8_t sha256[32];
} l3_tensor_info;

/* Called now and then during long work with bytes done and bytes in all; non-zero cancels. */
typedef int (*l3_progress_fn)(void *user, uint64_t done, uint64_t total);

/* Opens and validates header, directory, config and features; touches no tensor and no tokenizer table. */
L3_API l3_status l3_package_open(const char *path, l3_package **out, l3_error *err);
/* The same for a package that lies inside another file: exactly `length` bytes from `offset` on, a multiple of 65536.
 * Nothing outside that window is read. */
L3_API l3_status l3_package_open_at(const char *path, uint64_t offset, uint64_t length, l3_package **out,
                                    l3_error *err);
L3_API void l3_package_close(l3_package *package);
L3_API const l3_config *l3_package_config(const l3_package *package);
/* *data is NULL and *length 0 where the package has no such section; that is no error. */
L3_API l3_status l3_package_section(const l3_package *package, uint32_t kind, const void **data, size_t *length,
                                    l3_error *err);
L3_API size_t l3_package_tensor_count(const l3_package *package);
L3_API l3_status l3_package_tensor(const l3_package *package, size_t index, l3_tensor_info *out, l3_error *err);
/* Whether every tensor of the MTP layer is present. */
L3_API int l3_package_has_mtp(const l3_package *package);
/* SHA-256 over config and the directory of tensors with their digests: equal for packages that compute the same. */
L3_API l3_status l3_package_identity(const l3_package *package, uint8_t out[32], l3_error *err);
/* Hashes every section and tensor against the directory and looks for zeros in between (reads the whole file). */
L3_API l3_status l3_package_verify(const l3_package *package, l3_progress_fn progress, void *user, l3_error *err);
/* Dequantises rows [first, first+count) of a tensor seen as [product of leading shape, K]; out[count][K]. */
L3_API l3_status l3_package_read_rows(const l3_package *package, size_t index, uint64_t first, uint64_t count,
                                      float *out, l3_error *err);

/* ---- hashing ------------------------------------------------------------------------------- */

/* SHA-256 of everything in an open file from offset 0 to its end; the file's own offset stays where it is.
 * `progress` (or NULL) gets the bytes done and the size that the file had at the start.
 * *length receives the bytes hashed. A file that ends before the size that it had at the start is L3_E_IO. */
L3_API l3_status l3_sha256_fd(int fd, l3_progress_fn progress, void *user, uint8_t out[32], uint64_t *length,
                              l3_error *err);
/* Name of the implementation in use: "sha-ni", "armv8" or "scalar". */
L3_API const char *l3_sha256_implementation(void);

/* ---- text ---------------------------------------------------------------------------------- */

#define L3_TOKENIZE_SPECIAL 1u /* recognise added tokens in the text; without it they are plain text */

/* Byte-level BPE of UTF-8 text. *count receives the number of ids even when capacity is too small (then L3_E_ARG is
 * returned and ids[0..capacity) is valid). Invalid UTF-8 is refused with L3_E_ARG and its offset. */
L3_API l3_status l3_tokenize(const l3_package *package, const char *text, size_t length, uint32_t flags, int32_t *ids,
                             size_t capacity, size_t *count, l3_error *err);
/* The raw bytes of one token (not necessarily valid UTF-8); lives as long as the package. */
L3_API l3_status l3_token_bytes(const l3_package *package, int32_t id, const uint8_t **bytes, size_t *length,
                                l3_error *err);
/* Id of the token with exactly these bytes (added tokens first), or L3_NO_TOKEN. */
L3_API int32_t l3_token_find(const l3_package *package, const char *bytes, size_t length);
/* 1 for an added token marked special, else 0. */
L3_API int l3_token_is_special(const l3_package *package, int32_t id);

/* Joins token bytes to valid UTF-8: holds back an unfinished code point, replaces what can never become one by U+FFFD
 * (one per maximal ill-formed subpart, as Unicode recommends). Zero-initialise. */
typedef struct l3_utf8_stream {
    uint8_t pending[4];
    uint32_t pending_length;
} l3_utf8_stream;

/* Room for 3 * (length + 4) bytes at out always suffices. Returns the number of bytes written. */
L3_API size_t l3_utf8_push(l3_utf8_stream *stream, const uint8_t *bytes, size_t length, char *out);
/* Flushes what is held back as U+FFFD (at most 12 bytes at out) and resets the stream. */
L3_API size_t l3_utf8_finish(l3_utf8_stream *stream, char *out);

/* ---- engine -------------------------------------------------------------------------------- */

typedef struct l3_engine l3_engine;

typedef struct l3_engine_options {
    uint32_t threads; /* 0: one per big core that this process may use */
    uint32_t mtp;     /* 1: load the MTP layer; refused where the package has none */
    char simd[16];    /* "" or "auto": the best available; else scalar, avx2, neon */
} l3_engine_options;

L3_API l3_status l3_engine_create(const l3_package *package, const l3_engine_options *options, l3_engine **out,
                                  l3_error *err);
L3_API void l3_engine_destroy(l3_engine *engine);
L3_API const char *l3_engine_simd(const l3_engine *engine);
L3_API uint32_t l3_engine_threads(const l3_engine *engine);
/* Space-separated names of the kernel sets this build has and this CPU can run, best first. */
L3_API const char *l3_simd_available(void);
/* Measured sequential read bandwidth of the engine's threads over `bytes` of memory, bytes per second. */
L3_API l3_status l3_engine_read_bandwidth(l3_engine *engine, uint64_t bytes, double *bytes_per_second, l3_error *err);
/* Makes every page of the package that the engine uses resident: header, tables and trunk, and the MTP layer where the
 * engine has it. Bytes that cannot be read (a truncated file, a bad disk) are L3_E_IO here, where later they would be a
 * signal in the middle of an evaluation. Evaluating works without it, each page is then read when it is first needed. */
L3_API l3_status l3_engine_preload(const l3_engine *engine, l3_progress_fn progress, void *user, l3_error *err);
/* Lets go of every resident page of the package; NULL is fine. Everything stays valid and may be in use in other threads:
 * a page that is needed is read again, and l3_engine_preload makes them all resident. The system may keep the file in its
 * cache and takes that memory when it needs it. Memory that somebody locked stays. */
L3_API void l3_engine_unload(const l3_engine *engine);

/* ---- plan and session ---------------------------------------------------------------------- */

/* How the MLA cache keeps a token: its latent and its rotary key. The last two types round the latent to 8 bits, with one
 * float32 scale per row that maps its largest magnitude to the largest number of the type, and keep the key in bfloat16.
 */
typedef enum l3_kv_type {
    L3_KV_F32 = 0,
    L3_KV_BF16 = 1,
    L3_KV_F16 = 2,
    L3_KV_FP8 = 3, /* E4M3: 4 bits of exponent, 3 of mantissa, up to 448 */
    L3_KV_INT8 = 4 /* -127 to 127 */
} l3_kv_type;

typedef struct l3_session_options {
    uint32_t context;     /* tokens the session can hold */
    uint32_t kv_type;     /* l3_kv_type of the MLA latent cache */
    uint32_t chunk;       /* tokens per prefill step; 0: 64 */
    uint32_t poison;      /* 1: fill fresh memory with NaN patterns first (tests) */
    uint32_t checkpoints; /* slots of l3_session_save, at most 1024 */
    uint32_t reserved;    /* zero */
    uint64_t session_cache_bytes; /* budget of a cache of whole sessions; the plan counts it, the session ignores it */
} l3_session_options;

#define L3_PLAN_MAX_TERMS 24u

/* One named part of what a process needs for a session, in bytes.
 *   bytes  reserved: allocated, mapped or budgeted
 *   idle   resident after l3_engine_preload and l3_session_create, before the first token
 *   full   resident when the context is full and everything has been used
 * Fresh memory is zero pages of the kernel, which are not resident until they are written to; so `idle` counts only
 * what l3_session_create itself writes. Both are sums of buffers, not of pages: what is really resident can be more by
 * one page for each end of a buffer (by one huge page, where the kernel hands those out unasked). */
typedef struct l3_plan_term {
    char name[32];
    uint64_t bytes;
    uint64_t idle;
    uint64_t full;
} l3_plan_term;

/* Every byte that a session needs, by name. The names are stable:
 *   mapped, file-backed and shared between processes:
 *     weights             tensors of the trunk
 *     mtp_weights         tensors of the MTP layer, only where it is asked for
 *     package_tables      the rest of the package: header, directory, tokenizer, template, gaps between tensors
 *   allocated when the session is created:
 *     session, recurrent_state, conv_state, kv_cache, mtp_kv_cache (with MTP), timeline, logits, rope,
 *     scratch_activations, scratch_attention, scratch_scores, scratch_experts,
 *     prefix_checkpoints  the slots of l3_session_save
 *   neither:
 *     session_cache       l3_session_options.session_cache_bytes, a budget for the caller to keep
 *     npu_staging         buffers shared with an NPU: 0, this engine computes on the CPU */
typedef struct l3_memory_plan {
    uint32_t term_count;
    uint32_t reserved;
    l3_plan_term terms[L3_PLAN_MAX_TERMS];
    uint64_t allocated_bytes; /* sum of `bytes` over what is allocated */
    uint64_t mapped_bytes;    /* sum of `bytes` over what is mapped */
    uint64_t idle_bytes;      /* sum of `idle` over all terms */
    uint64_t full_bytes;      /* sum of `full` over all terms */
    uint64_t bytes_per_token; /* weight bytes read per decoded token (routed experts only) */
} l3_memory_plan;

/* The one function that says what a session costs; l3_session_create takes its memory from the same computation. */
L3_API l3_status l3_plan(const l3_package *package, const l3_engine_options *engine_options,
                         const l3_session_options *session_options, l3_memory_plan *out, l3_error *err);

typedef struct l3_session l3_session;

L3_API l3_status l3_session_create(l3_engine *engine, const l3_session_options *options, l3_session **out,
                                   l3_error *err);
L3_API void l3_session_destroy(l3_session *session);
/* Forgets the timeline and empties every checkpoint; keeps the memory. */
L3_API void l3_session_reset(l3_session *session);
/* Tokens consumed so far. */
L3_API uint32_t l3_session_position(const l3_session *session);
/* The ids consumed so far, l3_session_position() of them. */
L3_API const int32_t *l3_session_tokens(const l3_session *session);
/* Bytes this session holds; equals the plan's allocated_bytes. */
L3_API uint64_t l3_session_allocated(const l3_session *session);

typedef enum l3_logits_mode { L3_LOGITS_NONE = 0, L3_LOGITS_LAST = 1, L3_LOGITS_ALL = 2 } l3_logits_mode;

/* Appends ids[0..count) to the timeline.
 *   logits: NULL, or [1][vocab_size] (LAST), or [count][vocab_size] (ALL)
 *   hidden: NULL, or [count][H]: the trunk's output after the final norm
 * Results are bit for bit the same however the ids are split over calls, and for any chunk, thread count and kernel set.
 * A cancel is honoured between chunks: l3_session_position() then says how many ids were consumed. */
L3_API l3_status l3_session_eval(l3_session *session, const int32_t *ids, size_t count, uint32_t logits_mode,
                                 float *logits, float *hidden, l3_error *err);
/* Logits [vocab_size] of the last token that was evaluated with LAST or ALL; NULL before. Valid until the next call. */
L3_API const float *l3_session_logits(const l3_session *session);
/* The MTP layer over positions [position, position+count):
 *   hidden [count][H] trunk output at these positions, next_ids[count] the token that follows each,
 *   logits NULL or [count][vocab_size] for the token after that, hidden_out NULL or [count][H] (after final_layernorm).
 * `position` is at most the length of the MTP cache; a smaller one rewinds the cache. */
L3_API l3_status l3_session_mtp(l3_session *session, const float *hidden, const int32_t *next_ids, size_t count,
                                uint32_t position, float *logits, float *hidden_out, l3_error *err);
/* Forces the routing of every following evaluation (tests): experts[layer][token][experts_per_token] for the trunk's
 * MoE layers in order, for `tokens` positions from 0; NULL ends it. The memory stays the caller's. */
L3_API l3_status l3_session_force_routing(l3_session *session, const int32_t *experts, size_t tokens, l3_error *err);
/* Stops a running or the next l3_session_eval; callable from another thread or a signal handler. */
L3_API void l3_session_cancel(l3_session *session);
/* -- checkpoints --
 * The recurrent state cannot be computed backwards, so whoever wants to return to a position keeps the state there: a
 * slot holds recurrent states and convolution windows. The caches are shared with the timeline, whose rows below a
 * position stay as they are while the session goes on. None of these calls allocates. */

/* Keeps the present position in a slot, whatever the slot held before. */
L3_API l3_status l3_session_save(l3_session *session, uint32_t slot, l3_error *err);
/* Returns to the position of a slot; there are no logits then. Slots beyond it become empty, since the rows of the
 * caches that they need are about to be overwritten. Everything evaluated afterwards is bit for bit what a session gives
 * that never went further. The MTP cache returns to its length at the time of the save, or to the first of its rows
 * that was written again since, where that is less. A pending cancel and a forced routing stay in force. */
L3_API l3_status l3_session_restore(l3_session *session, uint32_t slot, l3_error *err);
/* Position of a slot, or UINT32_MAX where it is empty or does not exist. */
L3_API uint32_t l3_session_checkpoint(const l3_session *session, uint32_t slot);
/* -- moving a session --
 * An export is one block of bytes that holds everything up to the present position: ids, caches, states and every
 * checkpoint that is used. It depends on the machine's byte order but on no address. Its header carries a digest and every
 * length is checked, but that ids and numbers are those that were written is not: whoever keeps it where something may
 * happen to it keeps a digest with it. */

/* Bytes that l3_session_export writes now. */
L3_API uint64_t l3_session_export_bytes(const l3_session *session);
/* Writes exactly `length` bytes, which must be l3_session_export_bytes(). The session stays as it is. */
L3_API l3_status l3_session_export(const l3_session *session, void *buffer, uint64_t length, l3_error *err);

/* What an export says of itself. */
typedef struct l3_export_info {
    uint32_t position;         /* tokens */
    uint32_t checkpoint_count; /* used slots */
    uint32_t kv_type;          /* l3_kv_type */
    uint32_t mtp;              /* 1: it holds the MTP cache */
    uint64_t tokens_offset;    /* of the int32 ids [position], from the start of the block */
    uint8_t identity[32];      /* l3_package_identity() of the package it was made with */
} l3_export_info;

/* Checks the whole structure of an export against its length, and nothing against a session. */
L3_API l3_status l3_export_read(const void *buffer, uint64_t length, l3_export_info *out, l3_error *err);
/* Position of a slot in an export, or UINT32_MAX where that slot is empty or does not exist. */
L3_API uint32_t l3_export_checkpoint(const void *buffer, uint64_t length, uint32_t slot);
/* Takes an export's place: `position` is its own position or that of one of its checkpoints, in the lowest such slot.
 * Slots beyond `position`, and those that this session does not have, are dropped; the others keep their numbers.
 * Everything is checked first (package, engine version, type of the cache, MTP, context, ids): on failure the session is
 * as it was. Then it is bit for bit the session that was exported, as after l3_session_restore where `position` is a
 * checkpoint's. There are no logits. A forced routing ends; a pending cancel stays. */
L3_API l3_status l3_session_import(l3_session *session, const void *buffer, uint64_t length, uint32_t position,
                                   l3_error *err);
/* SHA-256 over timeline, recurrent states, convolution windows and the used part of every cache. */
L3_API l3_status l3_session_state_sha256(const l3_session *session, uint8_t out[32], l3_error *err);

/* ---- sampling ------------------------------------------------------------------------------ */

typedef struct l3_sampling {
    float temperature;        /* 0: greedy */
    float top_p;              /* 1: off */
    float min_p;              /* 0: off */
    float repetition_penalty; /* 1: off; over the whole history that is passed */
    uint32_t top_k;           /* 0: off */
    float frequency_penalty;  /* 0: off; -2 to 2, subtracted from a logit for each time the id occurs in the reply */
    float presence_penalty;   /* 0: off; -2 to 2, subtracted once where the id occurs in the reply */
    uint32_t reserved;        /* zero */
    uint64_t seed;
} l3_sampling;

typedef struct l3_sampler l3_sampler;

L3_API l3_status l3_sampler_create(const l3_package *package, const l3_sampling *sampling, l3_sampler **out,
                                   l3_error *err);
L3_API void l3_sampler_destroy(l3_sampler *sampler);
/* From now on biases[i] is added to the logit of ids[i]; replaces what was set before, count 0 ends it. Biases are finite;
 * an id that no token has is refused. May allocate. */
L3_API l3_status l3_sampler_bias(l3_sampler *sampler, const int32_t *ids, const float *biases, size_t count,
                                 l3_error *err);

/* What one pick looks at. */
typedef struct l3_choice {
    const float *logits;     /* [vocab_size] */
    const int32_t *history;  /* [history_length] ids so far, or NULL with 0 */
    size_t history_length;
    size_t reply_length;     /* how many of its last ids are the reply, for frequency and presence */
    const uint32_t *allowed; /* NULL, or bit i % 32 of word i / 32 set where id i may be picked; (vocab_size + 31) / 32 */
} l3_choice;

/* Picks a token: never a padding row, never an id that no token has. Order: repetition penalty, frequency and presence,
 * bias, allowed ids, top-k, temperature, top-p, min-p. Equal seeds and logits give equal ids on every machine.
 * Non-finite logits of real tokens are L3_E_INTERNAL; no allowed id is L3_E_ARG. */
L3_API l3_status l3_sampler_sample(l3_sampler *sampler, const l3_choice *choice, int32_t *id, l3_error *err);
/* Natural log-probabilities of the softmax over the logits [vocab_size] of all ids that a token has: *logprob that of `id`,
 * and the `top` likeliest ones, likeliest first, smaller id first among equals, in top_ids[top] and top_logprobs[top].
 * Sums in double in order of the ids; `top` is at most 64. */
L3_API l3_status l3_log_probabilities(const l3_package *package, const float *logits, int32_t id, float *logprob,
                                      uint32_t top, int32_t *top_ids, float *top_logprobs, l3_error *err);

#ifdef __cplusplus
}
#endif

#endif
