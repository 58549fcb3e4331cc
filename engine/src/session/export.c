/* A session as one block of bytes, and back:
 *
 *   header, table of the used checkpoints, int32 ids [position],
 *   rows of every MLA layer [layers][position], rows of the MTP cache [mtp_rows],
 *   recurrent states and convolution windows: the present ones, then those of each checkpoint in the order of the table
 *
 * One part follows the other without a gap, so a header and its table have one valid length. Nothing in the block is
 * believed before it is checked, and nothing is read through a pointer that its alignment would have to fit. */
#include <string.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/sha256.h"
#include "session/session.h"

#define FORMAT_VERSION 1u

static const uint8_t magic[8] = {0x89, 'L', '3', 'S', '\r', '\n', 0x1a, '\n'};

/* Fixed, stored as it is. */
typedef struct header {
    uint8_t magic[8];
    uint32_t version;
    uint32_t header_bytes;
    uint64_t total_bytes;
    uint32_t position;
    uint32_t mtp_position;
    uint32_t mtp_rows; /* the most that the session or one of its checkpoints has use for */
    uint32_t checkpoint_count;
    uint32_t kv_type;
    uint32_t row_bytes; /* of one token in one cache */
    uint32_t mla_layers;
    uint32_t mtp; /* 0 or 1 */
    uint64_t kda_floats;
    uint64_t conv_floats;
    uint8_t identity[32];
    char engine[56];    /* l3_version(), filled up with zeros */
    uint8_t sha256[32]; /* of the header before this and of the table */
} header;

typedef struct entry {
    uint32_t slot; /* ascending */
    uint32_t position;
    uint32_t mtp_position;
    uint32_t reserved; /* zero */
} entry;

_Static_assert(sizeof(header) == 192 && offsetof(header, sha256) == 160 && sizeof(entry) == 16, "no padding");

/* Where the parts begin. */
typedef struct places {
    uint64_t tokens;
    uint64_t rows;
    uint64_t mtp_rows;
    uint64_t states;
    uint64_t state_bytes; /* recurrent states and convolution windows once */
    uint64_t end;
} places;

/* false where a block that large is not possible. */
static bool find_places(const header *h, places *out) {
    uint64_t layer;
    uint64_t bytes;
    uint64_t floats;
    out->tokens = sizeof *h + (uint64_t)h->checkpoint_count * sizeof(entry);
    out->rows = out->tokens + (uint64_t)h->position * sizeof(int32_t);
    layer = (uint64_t)h->position * h->row_bytes;
    if (!l3_mul_u64(layer, h->mla_layers, &bytes) || !l3_add_u64(out->rows, bytes, &out->mtp_rows) ||
        !l3_add_u64(out->mtp_rows, (uint64_t)h->mtp_rows * h->row_bytes, &out->states) ||
        !l3_add_u64(h->kda_floats, h->conv_floats, &floats) ||
        !l3_mul_u64(floats, sizeof(float), &out->state_bytes) ||
        !l3_mul_u64(out->state_bytes, (uint64_t)h->checkpoint_count + 1, &bytes)) {
        return false;
    }
    return l3_add_u64(out->states, bytes, &out->end) && out->end <= SIZE_MAX;
}

static void digest(const header *h, const uint8_t *table, uint8_t out[32]) {
    l3_sha256 hash;
    l3_sha256_init(&hash);
    l3_sha256_update(&hash, h, offsetof(header, sha256));
    l3_sha256_update(&hash, table, h->checkpoint_count * sizeof(entry));
    l3_sha256_final(&hash, out);
}

static uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* -- writing -- */

/* Everything but the digest, which needs the table. */
static void describe(const l3_session *s, header *h, places *p) {
    memset(h, 0, sizeof *h);
    memcpy(h->magic, magic, sizeof magic);
    h->version = FORMAT_VERSION;
    h->header_bytes = sizeof *h;
    h->position = s->position;
    h->mtp_position = s->mtp_position;
    h->mtp_rows = s->mtp_position;
    for (uint32_t i = 0; i < s->checkpoint_count; i++) {
        const l3_checkpoint *c = &s->b.checkpoints[i];
        if (c->used) {
            h->checkpoint_count++;
            h->mtp_rows = larger(h->mtp_rows, c->mtp_position);
        }
    }
    h->kv_type = s->kv.type;
    h->row_bytes = (uint32_t)s->kv.row_bytes;
    h->mla_layers = l3_mla_layers(s->config);
    h->mtp = s->b.mtp_cache != NULL;
    h->kda_floats = l3_kda_floats(s->config);
    h->conv_floats = l3_conv_floats(s->config);
    memcpy(h->engine, l3_version(), strlen(l3_version()));
    (void)find_places(h, p); /* it holds less than the session, which has a place in memory */
    h->total_bytes = p->end;
}

uint64_t l3_session_export_bytes(const l3_session *session) {
    header h;
    places p;
    if (session == NULL) {
        return 0;
    }
    describe(session, &h, &p);
    return p.end;
}

static void write_states(const header *h, const float *kda, const float *conv, uint8_t *out) {
    memcpy(out, kda, h->kda_floats * sizeof(float));
    memcpy(out + h->kda_floats * sizeof(float), conv, h->conv_floats * sizeof(float));
}

static void write_checkpoints(const l3_session *s, const header *h, const places *p, uint8_t *out) {
    uint8_t *table = out + sizeof *h;
    uint8_t *states = out + p->states + p->state_bytes;
    for (uint32_t i = 0; i < s->checkpoint_count; i++) {
        const l3_checkpoint *c = &s->b.checkpoints[i];
        const entry e = {.slot = i, .position = c->position, .mtp_position = c->mtp_position};
        if (!c->used) {
            continue;
        }
        memcpy(table, &e, sizeof e);
        write_states(h, s->b.checkpoint_kda + i * h->kda_floats, s->b.checkpoint_conv + i * h->conv_floats, states);
        table += sizeof e;
        states += p->state_bytes;
    }
}

l3_status l3_session_export(const l3_session *session, void *buffer, uint64_t length, l3_error *err) {
    uint8_t *out = buffer;
    header h;
    places p;
    uint64_t layer;
    if (session == NULL || buffer == NULL) {
        return l3_fail(err, L3_E_ARG, "l3_session_export: NULL argument");
    }
    describe(session, &h, &p);
    if (length != p.end) {
        return l3_fail(err, L3_E_ARG, "a buffer of %llu bytes for an export of %llu", (unsigned long long)length,
                       (unsigned long long)p.end);
    }
    l3_memory_freeze();
    (void)l3_package_identity(session->package, h.identity, NULL);
    write_checkpoints(session, &h, &p, out);
    digest(&h, out + sizeof h, h.sha256);
    memcpy(out, &h, sizeof h);
    memcpy(out + p.tokens, session->b.tokens, h.position * sizeof(int32_t));
    layer = (uint64_t)h.position * h.row_bytes;
    for (uint32_t i = 0; i < h.mla_layers; i++) {
        memcpy(out + p.rows + i * layer, session->b.kv_cache + (size_t)i * session->context * h.row_bytes, layer);
    }
    if (h.mtp_rows > 0) {
        memcpy(out + p.mtp_rows, session->b.mtp_cache, (size_t)h.mtp_rows * h.row_bytes);
    }
    write_states(&h, session->b.kda_state, session->b.conv_state, out + p.states);
    l3_memory_thaw();
    return L3_OK;
}

/* -- reading -- */

/* An export whose structure is sound. */
typedef struct export {
    const uint8_t *bytes;
    header h;
    places p;
} export;

static entry entry_at(const export *x, uint32_t i) {
    entry e;
    memcpy(&e, x->bytes + sizeof x->h + i * sizeof e, sizeof e);
    return e;
}

/* What has to hold before the table may be read. */
static l3_status check_front(const header *h, uint64_t length, l3_error *err) {
    if (memcmp(h->magic, magic, sizeof magic) != 0) {
        return l3_fail(err, L3_E_FORMAT, "not an exported session: the first 8 bytes are not its magic");
    }
    if (h->version != FORMAT_VERSION) {
        return l3_fail(err, L3_E_UNSUPPORTED, "an exported session of version %u; this engine reads version %u",
                       h->version, FORMAT_VERSION);
    }
    if (h->header_bytes != sizeof *h) {
        return l3_fail(err, L3_E_FORMAT, "exported session: header length is %u; %zu is expected", h->header_bytes,
                       sizeof *h);
    }
    if (h->total_bytes != length) {
        return l3_fail(err, L3_E_FORMAT, "the exported session has %llu bytes; its header says %llu (%s)",
                       (unsigned long long)length, (unsigned long long)h->total_bytes,
                       length < h->total_bytes ? "truncated" : "something was appended");
    }
    if (h->checkpoint_count > L3_MAX_CHECKPOINTS || (length - sizeof *h) / sizeof(entry) < h->checkpoint_count) {
        return l3_fail(err, L3_E_FORMAT, "exported session: %u checkpoints are not possible in %llu bytes",
                       h->checkpoint_count, (unsigned long long)length);
    }
    return L3_OK;
}

static l3_status check_header(export *x, uint64_t length, l3_error *err) {
    const header *h = &x->h;
    uint8_t expected[32];
    digest(h, x->bytes + sizeof *h, expected);
    if (memcmp(expected, h->sha256, sizeof expected) != 0) {
        return l3_fail(err, L3_E_FORMAT, "the exported session's header is damaged: its SHA-256 does not match");
    }
    if (h->kv_type > L3_KV_INT8 || h->mtp > 1 || h->engine[sizeof h->engine - 1] != 0) {
        return l3_fail(err, L3_E_FORMAT, "exported session: cache type %u, MTP %u or the engine's name is not possible",
                       h->kv_type, h->mtp);
    }
    if (h->mtp_rows > 0 && h->mtp == 0) {
        return l3_fail(err, L3_E_FORMAT, "exported session: %u rows of an MTP cache that it does not have",
                       h->mtp_rows);
    }
    if (!find_places(h, &x->p) || x->p.end != length) {
        return l3_fail(err, L3_E_FORMAT, "exported session: its parts do not make %llu bytes",
                       (unsigned long long)length);
    }
    return L3_OK;
}

static l3_status check_table(const export *x, l3_error *err) {
    uint32_t rows = x->h.mtp_position;
    uint32_t free_slot = 0; /* the first that the next entry may have */
    for (uint32_t i = 0; i < x->h.checkpoint_count; i++) {
        entry e = entry_at(x, i);
        if (e.slot < free_slot || e.slot >= L3_MAX_CHECKPOINTS || e.position > x->h.position || e.reserved != 0) {
            return l3_fail(err, L3_E_FORMAT, "exported session: checkpoint %u at position %u is not possible", e.slot,
                           e.position);
        }
        free_slot = e.slot + 1;
        rows = larger(rows, e.mtp_position);
    }
    if (rows != x->h.mtp_rows) {
        return l3_fail(err, L3_E_FORMAT, "exported session: %u rows of the MTP cache are there, %u are needed",
                       x->h.mtp_rows, rows);
    }
    return L3_OK;
}

static l3_status open_export(const void *buffer, uint64_t length, export *x, l3_error *err) {
    l3_status status;
    if (buffer == NULL) {
        return l3_fail(err, L3_E_ARG, "an exported session: NULL argument");
    }
    if (length < sizeof x->h) {
        return l3_fail(err, L3_E_FORMAT, "not an exported session: %llu bytes, where the header alone has %zu",
                       (unsigned long long)length, sizeof x->h);
    }
    x->bytes = buffer;
    memcpy(&x->h, buffer, sizeof x->h);
    if ((status = check_front(&x->h, length, err)) != L3_OK || (status = check_header(x, length, err)) != L3_OK) {
        return status;
    }
    return check_table(x, err);
}

l3_status l3_export_read(const void *buffer, uint64_t length, l3_export_info *out, l3_error *err) {
    export x;
    l3_status status;
    if (out == NULL) {
        return l3_fail(err, L3_E_ARG, "l3_export_read: NULL argument");
    }
    memset(out, 0, sizeof *out);
    if ((status = open_export(buffer, length, &x, err)) != L3_OK) {
        return status;
    }
    out->position = x.h.position;
    out->checkpoint_count = x.h.checkpoint_count;
    out->kv_type = x.h.kv_type;
    out->mtp = x.h.mtp;
    out->tokens_offset = x.p.tokens;
    memcpy(out->identity, x.h.identity, sizeof out->identity);
    return L3_OK;
}

uint32_t l3_export_checkpoint(const void *buffer, uint64_t length, uint32_t slot) {
    export x;
    if (open_export(buffer, length, &x, NULL) != L3_OK) {
        return UINT32_MAX;
    }
    for (uint32_t i = 0; i < x.h.checkpoint_count; i++) {
        entry e = entry_at(&x, i);
        if (e.slot == slot) {
            return e.position;
        }
    }
    return UINT32_MAX;
}

/* -- importing -- */

/* Where a session shall stand, and whose states it takes: 0 the present ones, i + 1 those of entry i. */
typedef struct target {
    uint32_t position;
    uint32_t mtp_position;
    uint32_t mtp_rows; /* of the session and of the checkpoints that it keeps */
    uint32_t states;
} target;

static const char *kv_name(uint32_t type) {
    static const char *const names[] = {"f32", "bf16", "fp16", "fp8", "int8"};
    return names[type];
}

/* First four bytes of an identity: enough for a message. */
static uint32_t shortened(const uint8_t identity[32]) {
    return (uint32_t)identity[0] << 24 | (uint32_t)identity[1] << 16 | (uint32_t)identity[2] << 8 | identity[3];
}

static l3_status check_origin(const l3_session *s, const header *h, l3_error *err) {
    uint8_t identity[32];
    header ours;
    places p;
    l3_status status = l3_package_identity(s->package, identity, err);
    if (status != L3_OK) {
        return status;
    }
    if (memcmp(identity, h->identity, sizeof identity) != 0) {
        return l3_fail(err, L3_E_ARG, "the exported session is of another package (%08x...) than this one (%08x...)",
                       shortened(h->identity), shortened(identity));
    }
    describe(s, &ours, &p);
    if (memcmp(ours.engine, h->engine, sizeof ours.engine) != 0) {
        return l3_fail(err, L3_E_UNSUPPORTED, "the exported session is of engine '%s'; this is '%s'", h->engine,
                       ours.engine);
    }
    if (ours.kv_type != h->kv_type) {
        return l3_fail(err, L3_E_ARG, "the exported session has a cache in %s; this session has one in %s",
                       kv_name(h->kv_type), kv_name(ours.kv_type));
    }
    if (ours.mtp != h->mtp) {
        return l3_fail(err, L3_E_ARG, "the exported session has %s MTP cache; this session has %s",
                       h->mtp ? "an" : "no", ours.mtp ? "one" : "none");
    }
    if (ours.row_bytes != h->row_bytes || ours.mla_layers != h->mla_layers || ours.kda_floats != h->kda_floats ||
        ours.conv_floats != h->conv_floats) {
        return l3_fail(err, L3_E_FORMAT, "exported session: its dimensions are not those of its package");
    }
    return L3_OK;
}

static bool is_kept(const l3_session *s, const entry *e, uint32_t position) {
    return e->position <= position && e->slot < s->checkpoint_count;
}

static l3_status choose_target(const l3_session *s, const export *x, uint32_t position, target *t, l3_error *err) {
    bool found = position == x->h.position;
    *t = (target){.position = position, .mtp_position = x->h.mtp_position};
    for (uint32_t i = 0; i < x->h.checkpoint_count && !found; i++) {
        entry e = entry_at(x, i);
        if (e.position == position) {
            t->mtp_position = e.mtp_position;
            t->states = i + 1;
            found = true;
        }
    }
    if (!found) {
        return l3_fail(err, L3_E_ARG, "position %u is neither the exported session's own (%u) nor that of a checkpoint",
                       position, x->h.position);
    }
    t->mtp_rows = t->mtp_position;
    for (uint32_t i = 0; i < x->h.checkpoint_count; i++) {
        entry e = entry_at(x, i);
        if (is_kept(s, &e, position)) {
            t->mtp_rows = larger(t->mtp_rows, e.mtp_position);
        }
    }
    if (larger(t->position, t->mtp_rows) > s->context) {
        return l3_fail(err, L3_E_CONTEXT, "an exported session of %u tokens does not fit a context of %u",
                       larger(t->position, t->mtp_rows), s->context);
    }
    return L3_OK;
}

static l3_status check_tokens(const l3_session *s, const export *x, l3_error *err) {
    for (uint32_t i = 0; i < x->h.position; i++) {
        uint32_t id = l3_load_u32(x->bytes + x->p.tokens + (size_t)i * sizeof id);
        if (id >= s->config->vocab_size) {
            return l3_fail(err, L3_E_FORMAT, "exported session: token %u is %d; ids are 0 to %u", i, (int32_t)id,
                           s->config->vocab_size - 1);
        }
    }
    return L3_OK;
}

static void read_states(const export *x, uint32_t index, float *kda, float *conv) {
    const uint8_t *from = x->bytes + x->p.states + index * x->p.state_bytes;
    memcpy(kda, from, x->h.kda_floats * sizeof(float));
    memcpy(conv, from + x->h.kda_floats * sizeof(float), x->h.conv_floats * sizeof(float));
}

static void take_checkpoints(l3_session *s, const export *x, uint32_t position) {
    for (uint32_t i = 0; i < s->checkpoint_count; i++) {
        s->b.checkpoints[i].used = 0;
    }
    for (uint32_t i = 0; i < x->h.checkpoint_count; i++) {
        entry e = entry_at(x, i);
        if (is_kept(s, &e, position)) {
            read_states(x, i + 1, s->b.checkpoint_kda + e.slot * x->h.kda_floats,
                        s->b.checkpoint_conv + e.slot * x->h.conv_floats);
            s->b.checkpoints[e.slot] =
                (l3_checkpoint){.used = 1, .position = e.position, .mtp_position = e.mtp_position};
        }
    }
}

static void take(l3_session *s, const export *x, const target *t) {
    uint64_t row = x->h.row_bytes;
    memcpy(s->b.tokens, x->bytes + x->p.tokens, t->position * sizeof(int32_t));
    for (uint32_t i = 0; i < x->h.mla_layers; i++) {
        memcpy(s->b.kv_cache + i * (s->context * row), x->bytes + x->p.rows + i * (x->h.position * row),
               t->position * row);
    }
    if (t->mtp_rows > 0) {
        memcpy(s->b.mtp_cache, x->bytes + x->p.mtp_rows, t->mtp_rows * row);
    }
    read_states(x, t->states, s->b.kda_state, s->b.conv_state);
    take_checkpoints(s, x, t->position);
    s->position = t->position;
    s->mtp_position = t->mtp_position;
    s->has_logits = false;
    s->forced = NULL;
}

l3_status l3_session_import(l3_session *session, const void *buffer, uint64_t length, uint32_t position,
                            l3_error *err) {
    export x;
    target t;
    l3_status status;
    if (session == NULL) {
        return l3_fail(err, L3_E_ARG, "l3_session_import: session is NULL");
    }
    l3_memory_freeze();
    if ((status = open_export(buffer, length, &x, err)) == L3_OK &&
        (status = check_origin(session, &x.h, err)) == L3_OK &&
        (status = choose_target(session, &x, position, &t, err)) == L3_OK &&
        (status = check_tokens(session, &x, err)) == L3_OK) {
        take(session, &x, &t);
    }
    l3_memory_thaw();
    return status;
}
