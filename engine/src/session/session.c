/* One timeline of tokens. */
#include "session/session.h"

#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/sha256.h"

static size_t kda_floats(const l3_session *s) { return (size_t)l3_kda_floats(s->config); }

static size_t conv_floats(const l3_session *s) { return (size_t)l3_conv_floats(s->config); }

/* theta^(-2j/rope) in double, kept as the bytes of a double. */
static void prepare_rope(l3_session *s) {
    uint32_t rope = s->config->qk_rope_head_dim;
    for (uint32_t j = 0; j < rope / 2; j++) {
        double inverse = pow((double)s->config->rope_theta, -2.0 * (double)j / (double)rope);
        memcpy(s->b.rope_inverse + 2 * (size_t)j, &inverse, sizeof inverse);
    }
}

l3_status l3_session_create(l3_engine *engine, const l3_session_options *options, l3_session **out, l3_error *err) {
    l3_memory_plan plan;
    l3_session *s;
    uint8_t *base;
    l3_status status;
    if (out != NULL) {
        *out = NULL;
    }
    if (engine == NULL || options == NULL || out == NULL) {
        return l3_fail(err, L3_E_ARG, "l3_session_create: NULL argument");
    }
    l3_error_clear(err);
    status = l3_layout(engine->package, engine->has_mtp, engine->threads, options, NULL, NULL, &plan, err);
    if (status != L3_OK) {
        return status;
    }
    base = l3_pages_alloc(plan.allocated_bytes);
    if (base == NULL) {
        return l3_fail(err, L3_E_MEMORY, "no memory for a session of %llu bytes (context %u)",
                       (unsigned long long)plan.allocated_bytes, options->context);
    }
    if (options->poison) {
        memset(base, 0xff, (size_t)plan.allocated_bytes);
    }
    s = (l3_session *)(void *)base;
    memset(s, 0, sizeof *s);
    status = l3_layout(engine->package, engine->has_mtp, engine->threads, options, s, base, &plan, err);
    if (status != L3_OK) {
        l3_pages_free(base, plan.allocated_bytes);
        return status;
    }
    s->engine = engine;
    s->package = engine->package;
    s->config = &engine->package->config;
    s->kernels = engine->kernels;
    atomic_init(&s->cancelled, false);
    prepare_rope(s);
    if (options->poison) { /* otherwise the pages are zero already, and stay unused until touched */
        l3_session_reset(s);
    }
    *out = s;
    return L3_OK;
}

void l3_session_destroy(l3_session *session) {
    if (session != NULL) {
        l3_pages_free(session, session->bytes);
    }
}

static void empty_checkpoints(l3_session *s) {
    for (uint32_t i = 0; i < s->checkpoint_count; i++) {
        s->b.checkpoints[i].used = 0;
    }
}

void l3_session_reset(l3_session *session) {
    memset(session->b.kda_state, 0, kda_floats(session) * sizeof(float));
    memset(session->b.conv_state, 0, conv_floats(session) * sizeof(float));
    session->position = 0;
    session->mtp_position = 0;
    session->has_logits = false;
    session->forced = NULL;
    atomic_store(&session->cancelled, false);
    empty_checkpoints(session);
}

uint32_t l3_session_position(const l3_session *session) { return session->position; }
const int32_t *l3_session_tokens(const l3_session *session) { return session->b.tokens; }
uint64_t l3_session_allocated(const l3_session *session) { return session->bytes; }
const float *l3_session_logits(const l3_session *session) { return session->has_logits ? session->b.logits : NULL; }
void l3_session_cancel(l3_session *session) { atomic_store(&session->cancelled, true); }

/* -- checkpoints -- */

static l3_status check_slot(const l3_session *s, uint32_t slot, l3_error *err) {
    if (s == NULL) {
        return l3_fail(err, L3_E_ARG, "checkpoints: session is NULL");
    }
    if (slot >= s->checkpoint_count) {
        return l3_fail(err, L3_E_ARG, "checkpoint %u; the session was created with %u", slot, s->checkpoint_count);
    }
    return L3_OK;
}

l3_status l3_session_save(l3_session *session, uint32_t slot, l3_error *err) {
    l3_status status = check_slot(session, slot, err);
    size_t kda;
    size_t conv;
    if (status != L3_OK) {
        return status;
    }
    kda = kda_floats(session);
    conv = conv_floats(session);
    memcpy(session->b.checkpoint_kda + slot * kda, session->b.kda_state, kda * sizeof(float));
    memcpy(session->b.checkpoint_conv + slot * conv, session->b.conv_state, conv * sizeof(float));
    session->b.checkpoints[slot] =
        (l3_checkpoint){.used = 1, .position = session->position, .mtp_position = session->mtp_position};
    return L3_OK;
}

l3_status l3_session_restore(l3_session *session, uint32_t slot, l3_error *err) {
    l3_status status = check_slot(session, slot, err);
    const l3_checkpoint *from;
    size_t kda;
    size_t conv;
    if (status != L3_OK) {
        return status;
    }
    from = &session->b.checkpoints[slot];
    if (!from->used) {
        return l3_fail(err, L3_E_ARG, "checkpoint %u is empty", slot);
    }
    kda = kda_floats(session);
    conv = conv_floats(session);
    memcpy(session->b.kda_state, session->b.checkpoint_kda + slot * kda, kda * sizeof(float));
    memcpy(session->b.conv_state, session->b.checkpoint_conv + slot * conv, conv * sizeof(float));
    session->position = from->position;
    session->mtp_position = from->mtp_position;
    session->has_logits = false;
    for (uint32_t i = 0; i < session->checkpoint_count; i++) {
        session->b.checkpoints[i].used &= session->b.checkpoints[i].position <= session->position;
    }
    return L3_OK;
}

uint32_t l3_session_checkpoint(const l3_session *session, uint32_t slot) {
    if (session == NULL || slot >= session->checkpoint_count || !session->b.checkpoints[slot].used) {
        return UINT32_MAX;
    }
    return session->b.checkpoints[slot].position;
}

/* Rows of the MTP cache from `position` on are written again: no checkpoint may return to them. */
static void shorten_mtp_checkpoints(l3_session *s, uint32_t position) {
    for (uint32_t i = 0; i < s->checkpoint_count; i++) {
        if (s->b.checkpoints[i].mtp_position > position) {
            s->b.checkpoints[i].mtp_position = position;
        }
    }
}

static l3_status check_ids(const l3_session *s, const int32_t *ids, size_t count, l3_error *err) {
    for (size_t i = 0; i < count; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= s->config->vocab_size) {
            return l3_fail(err, L3_E_ARG, "token %zu is %d; ids are 0 to %u", i, ids[i], s->config->vocab_size - 1);
        }
    }
    return L3_OK;
}

/* One chunk. Logits: for all tokens where `all` is set, for the last where `last` is. */
static void eval_chunk(l3_session *s, const int32_t *ids, uint32_t n, float *all, bool last, float *hidden) {
    l3_span span = {.session = s, .count = n, .position = s->position};
    size_t h = s->config->hidden_size;
    size_t vocab = s->config->vocab_size;
    l3_trunk(&span, ids);
    memcpy(s->b.tokens + s->position, ids, n * sizeof *ids);
    s->position += n;
    if (all == NULL && !last && hidden == NULL) {
        return;
    }
    l3_norm_tokens(&span, s->b.x, s->package->weights.norm, s->b.norm);
    if (hidden != NULL) {
        memcpy(hidden, s->b.norm, n * h * sizeof *hidden);
    }
    if (all != NULL) {
        l3_head(&span, s->b.norm, n, all);
    }
    if (last) {
        if (all != NULL) {
            memcpy(s->b.logits, all + (n - 1) * vocab, vocab * sizeof(float));
        } else {
            l3_head(&span, s->b.norm + (n - 1) * h, 1, s->b.logits);
        }
        s->has_logits = true;
    }
}

l3_status l3_session_eval(l3_session *session, const int32_t *ids, size_t count, uint32_t logits_mode, float *logits,
                          float *hidden, l3_error *err) {
    size_t done = 0;
    l3_status status;
    if (session == NULL || ids == NULL || count == 0 || logits_mode > L3_LOGITS_ALL ||
        (logits_mode == L3_LOGITS_ALL && logits == NULL)) {
        return l3_fail(err, L3_E_ARG, "l3_session_eval: no tokens, or logits asked for without a place for them");
    }
    if (count > session->context - session->position) {
        return l3_fail(err, L3_E_CONTEXT, "%zu more tokens do not fit: %u of %u are used", count, session->position,
                       session->context);
    }
    if ((status = check_ids(session, ids, count, err)) != L3_OK) {
        return status;
    }
    session->has_logits = false;
    l3_memory_freeze();
    while (done < count) {
        uint32_t n = count - done < session->chunk ? (uint32_t)(count - done) : session->chunk;
        float *all = logits_mode == L3_LOGITS_ALL ? logits + done * session->config->vocab_size : NULL;
        if (atomic_exchange(&session->cancelled, false)) {
            l3_memory_thaw();
            return l3_fail(err, L3_E_CANCELLED, "cancelled after %zu of %zu tokens", done, count);
        }
        eval_chunk(session, ids + done, n, all, done + n == count && logits_mode != L3_LOGITS_NONE,
                   hidden != NULL ? hidden + done * session->config->hidden_size : NULL);
        done += n;
    }
    l3_memory_thaw();
    if (logits_mode == L3_LOGITS_LAST && logits != NULL) {
        memcpy(logits, session->b.logits, session->config->vocab_size * sizeof *logits);
    }
    return L3_OK;
}

l3_status l3_session_mtp(l3_session *session, const float *hidden, const int32_t *next_ids, size_t count,
                         uint32_t position, float *logits, float *hidden_out, l3_error *err) {
    size_t h;
    l3_status status;
    if (session == NULL || hidden == NULL || next_ids == NULL || count == 0) {
        return l3_fail(err, L3_E_ARG, "l3_session_mtp: NULL or empty argument");
    }
    if (!session->engine->has_mtp) {
        return l3_fail(err, L3_E_ARG, "l3_session_mtp: the engine was created without the MTP layer");
    }
    if (position > session->mtp_position) {
        return l3_fail(err, L3_E_ARG, "position %u leaves a gap: the MTP cache holds %u tokens", position,
                       session->mtp_position);
    }
    if (count > session->context - position) {
        return l3_fail(err, L3_E_CONTEXT, "%zu more tokens do not fit: %u of %u are used", count, position,
                       session->context);
    }
    if ((status = check_ids(session, next_ids, count, err)) != L3_OK) {
        return status;
    }
    h = session->config->hidden_size;
    shorten_mtp_checkpoints(session, position);
    l3_memory_freeze();
    for (size_t done = 0; done < count;) {
        uint32_t n = count - done < session->chunk ? (uint32_t)(count - done) : session->chunk;
        l3_span span = {.session = session, .count = n, .position = position + (uint32_t)done};
        l3_mtp_layer(&span, hidden + done * h, next_ids + done);
        if (hidden_out != NULL) {
            memcpy(hidden_out + done * h, session->b.norm, n * h * sizeof *hidden_out);
        }
        if (logits != NULL) {
            l3_head(&span, session->b.norm, n, logits + done * session->config->vocab_size);
        }
        done += n;
    }
    l3_memory_thaw();
    session->mtp_position = position + (uint32_t)count;
    return L3_OK;
}

l3_status l3_session_force_routing(l3_session *session, const int32_t *experts, size_t tokens, l3_error *err) {
    const l3_config *c;
    size_t layers;
    if (session == NULL) {
        return l3_fail(err, L3_E_ARG, "l3_session_force_routing: session is NULL");
    }
    c = session->config;
    layers = c->layer_count - c->dense_layer_count;
    for (size_t i = 0; experts != NULL && i < layers * tokens * c->experts_per_token; i++) {
        if (experts[i] < 0 || (uint32_t)experts[i] >= c->expert_count) {
            return l3_fail(err, L3_E_ARG, "forced expert %d; there are %u", experts[i], c->expert_count);
        }
    }
    session->forced = experts;
    session->forced_tokens = tokens;
    return L3_OK;
}

l3_status l3_session_state_sha256(const l3_session *session, uint8_t out[32], l3_error *err) {
    l3_sha256 hash;
    size_t row;
    uint32_t layers;
    if (session == NULL || out == NULL) {
        return l3_fail(err, L3_E_ARG, "l3_session_state_sha256: NULL argument");
    }
    row = session->kv.row_bytes;
    layers = l3_mla_layers(session->config);
    l3_sha256_init(&hash);
    l3_sha256_update(&hash, &session->position, sizeof session->position);
    l3_sha256_update(&hash, &session->mtp_position, sizeof session->mtp_position);
    l3_sha256_update(&hash, session->b.tokens, session->position * sizeof(int32_t));
    l3_sha256_update(&hash, session->b.kda_state, kda_floats(session) * sizeof(float));
    l3_sha256_update(&hash, session->b.conv_state, conv_floats(session) * sizeof(float));
    for (uint32_t i = 0; i < layers; i++) {
        l3_sha256_update(&hash, session->b.kv_cache + (size_t)i * session->context * row, session->position * row);
    }
    if (session->b.mtp_cache != NULL) {
        l3_sha256_update(&hash, session->b.mtp_cache, session->mtp_position * row);
    }
    l3_sha256_final(&hash, out);
    return L3_OK;
}
