/* Looks at an engine from inside, on any machine, so that builds can be compared bit for bit.
 *   model_driver eval PACKAGE SIMD THREADS CHUNK TOKEN...
 *     evaluates the tokens; prints the lines simd NAME, logits HASH, hidden HASH, mtp HASH, state HASH
 *   model_driver rotation PACKAGE POSITION...
 *     prints the bits of cosine and sine of every rotary pair, a line per position
 *   model_driver state PACKAGE
 *     changes one byte of each part of a session's state and prints the part's name and whether the hash was changed */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/sha256.h"
#include "session/session.h"

static void print_hash(const char *name, const uint8_t hash[32]) {
    printf("%s ", name);
    for (int i = 0; i < 32; i++) {
        printf("%02x", hash[i]);
    }
    printf("\n");
}

static void print_sha256(const char *name, const float *values, size_t count) {
    l3_sha256 sha;
    uint8_t hash[32];
    l3_sha256_init(&sha);
    l3_sha256_update(&sha, values, count * sizeof *values);
    l3_sha256_final(&sha, hash);
    print_hash(name, hash);
}

typedef struct subject {
    l3_package *package;
    l3_engine *engine;
    l3_session *session;
    const l3_config *config;
} subject;

static void close_subject(subject *s) {
    l3_session_destroy(s->session);
    l3_engine_destroy(s->engine);
    l3_package_close(s->package);
}

static l3_status open_subject(subject *s, const char *path, const char *simd, uint32_t threads, uint32_t chunk,
                              uint32_t context, l3_error *err) {
    l3_engine_options engine_options = {.mtp = 1, .threads = threads};
    l3_session_options session_options = {.poison = 1, .chunk = chunk, .context = context};
    l3_status status;
    snprintf(engine_options.simd, sizeof engine_options.simd, "%s", simd);
    if ((status = l3_package_open(path, &s->package, err)) != L3_OK ||
        (status = l3_engine_create(s->package, &engine_options, &s->engine, err)) != L3_OK ||
        (status = l3_session_create(s->engine, &session_options, &s->session, err)) != L3_OK) {
        return status;
    }
    s->config = l3_package_config(s->package);
    return L3_OK;
}

static l3_status evaluate(subject *s, char **words, size_t count, l3_error *err) {
    int32_t *ids = malloc(count * sizeof *ids);
    float *logits = malloc(count * s->config->vocab_size * sizeof *logits);
    float *hidden = malloc(count * s->config->hidden_size * sizeof *hidden);
    float *drafts = malloc(count * s->config->vocab_size * sizeof *drafts);
    uint8_t state[32];
    l3_status status = L3_E_MEMORY;
    if (ids == NULL || logits == NULL || hidden == NULL || drafts == NULL) {
        goto done;
    }
    for (size_t i = 0; i < count; i++) {
        ids[i] = atoi(words[i]);
    }
    if ((status = l3_session_eval(s->session, ids, count, L3_LOGITS_ALL, logits, hidden, err)) != L3_OK ||
        (status = l3_session_mtp(s->session, hidden, ids + 1, count - 1, 0, drafts, NULL, err)) != L3_OK ||
        (status = l3_session_state_sha256(s->session, state, err)) != L3_OK) {
        goto done;
    }
    printf("simd %s\n", l3_engine_simd(s->engine));
    print_sha256("logits", logits, count * s->config->vocab_size);
    print_sha256("hidden", hidden, count * s->config->hidden_size);
    print_sha256("mtp", drafts, (count - 1) * s->config->vocab_size);
    print_hash("state", state);
done:
    free(ids);
    free(logits);
    free(hidden);
    free(drafts);
    return status;
}

static void print_rotation(subject *s, uint32_t position) {
    l3_span span = {.session = s->session, .count = 1, .position = position};
    l3_rope_prepare(&span);
    for (uint32_t i = 0; i < s->config->qk_rope_head_dim; i++) {
        printf("%08x%c", (unsigned)l3_bits_from_f32(s->session->b.rotation[i]),
               i + 1 < s->config->qk_rope_head_dim ? ' ' : '\n');
    }
}

static l3_status probe_state(subject *s, l3_error *err) {
    static const int32_t ids[] = {1, 2, 3, 4, 5};
    const l3_buffers *b = &s->session->b;
    float *hidden = malloc(5 * s->config->hidden_size * sizeof *hidden);
    uint8_t *parts[] = {(uint8_t *)b->tokens, (uint8_t *)b->kda_state, (uint8_t *)b->conv_state, b->kv_cache,
                        b->mtp_cache};
    static const char *const names[] = {"tokens", "kda_state", "conv_state", "kv_cache", "mtp_cache"};
    l3_status status = L3_E_MEMORY;
    if (hidden == NULL || (status = l3_session_eval(s->session, ids, 5, L3_LOGITS_NONE, NULL, hidden, err)) != L3_OK ||
        (status = l3_session_mtp(s->session, hidden, ids + 1, 4, 0, NULL, NULL, err)) != L3_OK) {
        goto done;
    }
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        uint8_t before[32];
        uint8_t after[32];
        if ((status = l3_session_state_sha256(s->session, before, err)) != L3_OK) {
            goto done;
        }
        *parts[i] ^= 1u;
        if ((status = l3_session_state_sha256(s->session, after, err)) != L3_OK) {
            goto done;
        }
        printf("%s %s\n", names[i], memcmp(before, after, sizeof before) != 0 ? "seen" : "missed");
    }
done:
    free(hidden);
    return status;
}

int main(int argc, char **argv) {
    subject s = {0};
    l3_error err = {0};
    l3_status status;
    if (argc >= 8 && strcmp(argv[1], "eval") == 0) {
        status = open_subject(&s, argv[2], argv[3], (uint32_t)atoi(argv[4]), (uint32_t)atoi(argv[5]),
                              (uint32_t)argc - 6, &err);
        if (status == L3_OK) {
            status = evaluate(&s, argv + 6, (size_t)argc - 6, &err);
        }
    } else if (argc >= 4 && strcmp(argv[1], "rotation") == 0) {
        status = open_subject(&s, argv[2], "scalar", 1, 1, 1, &err);
        for (int i = 3; status == L3_OK && i < argc; i++) {
            print_rotation(&s, (uint32_t)atoi(argv[i]));
        }
    } else if (argc == 3 && strcmp(argv[1], "state") == 0) {
        status = open_subject(&s, argv[2], "scalar", 1, 1, 8, &err);
        if (status == L3_OK) {
            status = probe_state(&s, &err);
        }
    } else {
        fprintf(stderr, "usage: model_driver eval|rotation|state PACKAGE ...\n");
        return 2;
    }
    if (status != L3_OK) {
        fprintf(stderr, "model_driver: %s: %s\n", l3_status_name((int32_t)status), err.message);
    }
    close_subject(&s);
    return status == L3_OK ? 0 : 1;
}
