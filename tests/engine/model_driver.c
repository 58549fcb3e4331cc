/* Evaluates a package and prints what came out, so that builds for different machines can be compared bit for bit:
 *   model_driver PACKAGE SIMD THREADS CHUNK TOKEN...
 * Lines: simd NAME, logits SHA-256, hidden SHA-256, mtp SHA-256, state SHA-256. */
#include <stdio.h>
#include <stdlib.h>

#include "base/sha256.h"
#include "ling3.h"

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

int main(int argc, char **argv) {
    l3_engine_options engine_options = {.mtp = 1};
    l3_session_options session_options = {.poison = 1};
    l3_package *package = NULL;
    l3_engine *engine = NULL;
    l3_session *session = NULL;
    l3_error err = {0};
    const l3_config *config;
    int32_t *ids = NULL;
    float *logits = NULL;
    float *hidden = NULL;
    float *drafts = NULL;
    uint8_t state[32];
    size_t count;
    int code = 1;
    if (argc < 7) {
        fprintf(stderr, "usage: model_driver PACKAGE SIMD THREADS CHUNK TOKEN TOKEN...\n");
        return 2;
    }
    count = (size_t)argc - 5;
    snprintf(engine_options.simd, sizeof engine_options.simd, "%s", argv[2]);
    engine_options.threads = (uint32_t)atoi(argv[3]);
    session_options.chunk = (uint32_t)atoi(argv[4]);
    session_options.context = (uint32_t)count;
    if (l3_package_open(argv[1], &package, &err) != L3_OK ||
        l3_engine_create(package, &engine_options, &engine, &err) != L3_OK ||
        l3_session_create(engine, &session_options, &session, &err) != L3_OK) {
        goto done;
    }
    config = l3_package_config(package);
    ids = malloc(count * sizeof *ids);
    logits = malloc(count * config->vocab_size * sizeof *logits);
    hidden = malloc(count * config->hidden_size * sizeof *hidden);
    drafts = malloc(count * config->vocab_size * sizeof *drafts);
    if (ids == NULL || logits == NULL || hidden == NULL || drafts == NULL) {
        goto done;
    }
    for (size_t i = 0; i < count; i++) {
        ids[i] = atoi(argv[5 + i]);
    }
    if (l3_session_eval(session, ids, count, L3_LOGITS_ALL, logits, hidden, &err) != L3_OK ||
        l3_session_mtp(session, hidden, ids + 1, count - 1, 0, drafts, NULL, &err) != L3_OK ||
        l3_session_state_sha256(session, state, &err) != L3_OK) {
        goto done;
    }
    printf("simd %s\n", l3_engine_simd(engine));
    print_sha256("logits", logits, count * config->vocab_size);
    print_sha256("hidden", hidden, count * config->hidden_size);
    print_sha256("mtp", drafts, (count - 1) * config->vocab_size);
    print_hash("state", state);
    code = 0;
done:
    if (code != 0) {
        fprintf(stderr, "model_driver: %s: %s\n", l3_status_name(err.status), err.message);
    }
    free(ids);
    free(logits);
    free(hidden);
    free(drafts);
    l3_session_destroy(session);
    l3_engine_destroy(engine);
    l3_package_close(package);
    return code;
}
