/* Saves and restores sessions of every cache type, preloads, cancels from another thread, and uses two at once.
 *
 *   checkpoint_driver PACKAGE    the package has the MTP layer
 *
 * Prints "ok" and the number of comparisons. It is for sanitizers: AddressSanitizer sees accesses between the buffers of
 * a session, ThreadSanitizer those of two threads at once. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "session/session.h"

#define CONTEXT 48u
#define CHUNK 8u
#define PROMPT 20u
#define REST 17u

static unsigned compared;

static void require(l3_status status, const l3_error *err) {
    if (status != L3_OK) {
        fprintf(stderr, "%s: %s\n", l3_status_name((int32_t)status), err->message);
        exit(1);
    }
}

static void expect(int holds, const char *what) {
    compared++;
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

typedef struct outcome {
    uint8_t state[32];
    float *logits;
} outcome;

/* Evaluates and drafts `count` tokens that follow from the position. */
static void feed(l3_session *s, uint32_t count, float *hidden, float *logits) {
    int32_t ids[CONTEXT];
    uint32_t from = l3_session_position(s);
    l3_error err;
    for (uint32_t i = 0; i < count; i++) {
        ids[i] = (int32_t)((from + i) * 13 % s->config->vocab_size);
    }
    require(l3_session_eval(s, ids, count, L3_LOGITS_LAST, logits, hidden, &err), &err);
    require(l3_session_mtp(s, hidden, ids, count, from, NULL, NULL, &err), &err);
}

/* Goes further, and drafts again from the middle of what was saved or beyond. */
static void wander(l3_session *s, float *hidden) {
    const int32_t id = 1;
    l3_error err;
    for (uint32_t i = 0; i < 5; i++) {
        require(l3_session_eval(s, &id, 1, L3_LOGITS_LAST, NULL, hidden, &err), &err);
    }
    require(l3_session_mtp(s, hidden, &id, 1, l3_session_position(s) / 2, NULL, NULL, &err), &err);
}

static void refuse(l3_session *s, uint32_t slots) {
    l3_error err;
    expect(l3_session_save(NULL, 0, &err) == L3_E_ARG, "save without a session");
    expect(l3_session_restore(NULL, 0, NULL) == L3_E_ARG, "restore without a session");
    expect(l3_session_save(s, slots, &err) == L3_E_ARG, "save beyond the last slot");
    expect(l3_session_save(s, UINT32_MAX, NULL) == L3_E_ARG, "save beyond all slots");
    expect(l3_session_restore(s, slots, &err) == L3_E_ARG, "restore beyond the last slot");
    expect(l3_session_checkpoint(s, slots) == UINT32_MAX, "position beyond the last slot");
    for (uint32_t i = 0; i < slots; i++) {
        expect(l3_session_checkpoint(s, i) == UINT32_MAX, "a fresh slot has a position");
        expect(l3_session_restore(s, i, &err) == L3_E_ARG, "restore from an empty slot");
    }
}

static void returns(l3_engine *engine, const l3_session_options *options, outcome *out) {
    const l3_config *c = l3_package_config(engine->package);
    float *hidden = calloc((size_t)CONTEXT * c->hidden_size, sizeof *hidden);
    float *logits = calloc(c->vocab_size, sizeof *logits);
    uint8_t state[32];
    l3_session *s = NULL;
    l3_error err;
    require(l3_session_create(engine, options, &s, &err), &err);
    refuse(s, options->checkpoints);
    feed(s, PROMPT, hidden, logits);
    for (uint32_t i = options->checkpoints; i-- > 0;) {
        require(l3_session_save(s, i, &err), &err);
    }
    feed(s, REST, hidden, logits);
    memcpy(out->logits, logits, c->vocab_size * sizeof *logits);
    require(l3_session_state_sha256(s, out->state, &err), &err);
    for (uint32_t i = 0; i < options->checkpoints && i < 4; i++) {
        uint32_t slot = options->checkpoints - 1 - i;
        wander(s, hidden);
        require(l3_session_restore(s, slot, &err), &err);
        expect(l3_session_position(s) == PROMPT && l3_session_logits(s) == NULL, "a restored session");
        feed(s, REST, hidden, logits);
        expect(memcmp(out->logits, logits, c->vocab_size * sizeof *logits) == 0, "logits after a return");
        require(l3_session_state_sha256(s, state, &err), &err);
        expect(memcmp(out->state, state, sizeof state) == 0, "the state after a return");
    }
    l3_session_reset(s);
    refuse(s, options->checkpoints);
    l3_session_destroy(s);
    free(hidden);
    free(logits);
}

/* -- a cancel from elsewhere -- */

typedef struct canceller {
    l3_session *session;
    atomic_bool stop;
} canceller;

static void *cancel_often(void *argument) {
    canceller *c = argument;
    while (!atomic_load(&c->stop)) {
        l3_session_cancel(c->session);
    }
    return NULL;
}

static void cancelled(l3_engine *engine, const l3_session_options *options) {
    int32_t ids[CONTEXT] = {0};
    canceller c = {0};
    pthread_t thread;
    l3_error err;
    require(l3_session_create(engine, options, &c.session, &err), &err);
    atomic_init(&c.stop, false);
    expect(pthread_create(&thread, NULL, cancel_often, &c) == 0, "a thread");
    for (uint32_t i = 0; i < 20; i++) {
        l3_status status = l3_session_eval(c.session, ids, CONTEXT, L3_LOGITS_NONE, NULL, NULL, &err);
        expect(status == L3_OK || (status == L3_E_CANCELLED && l3_session_position(c.session) % CHUNK == 0),
               "a cancelled evaluation");
        require(l3_session_save(c.session, 0, &err), &err);
        require(l3_session_restore(c.session, 0, &err), &err);
        l3_session_reset(c.session);
    }
    atomic_store(&c.stop, true);
    expect(pthread_join(thread, NULL) == 0, "the thread's end");
    l3_session_destroy(c.session);
}

/* -- two sessions of one engine at the same time -- */

typedef struct talker {
    l3_engine *engine;
    const l3_session_options *options;
    uint8_t state[32];
} talker;

static void *talk(void *argument) {
    talker *t = argument;
    size_t width = t->engine->package->config.hidden_size;
    float *hidden = calloc(CONTEXT * width, sizeof *hidden);
    l3_session *s = NULL;
    l3_error err;
    require(l3_session_create(t->engine, t->options, &s, &err), &err);
    feed(s, PROMPT, hidden, NULL);
    require(l3_session_save(s, 0, &err), &err);
    wander(s, hidden);
    require(l3_session_restore(s, 0, &err), &err);
    for (int32_t i = 0; i < 5; i++) {
        require(l3_session_eval(s, &i, 1, L3_LOGITS_LAST, NULL, NULL, &err), &err);
    }
    require(l3_session_state_sha256(s, t->state, &err), &err);
    l3_session_destroy(s);
    free(hidden);
    return NULL;
}

static void together(l3_engine *engine, const l3_session_options *options) {
    talker talkers[2] = {{.engine = engine, .options = options}, {.engine = engine, .options = options}};
    pthread_t thread;
    if (pthread_create(&thread, NULL, talk, &talkers[0]) != 0) {
        fprintf(stderr, "no second thread\n");
        exit(1);
    }
    (void)talk(&talkers[1]);
    expect(pthread_join(thread, NULL) == 0, "the thread's end");
    expect(memcmp(talkers[0].state, talkers[1].state, sizeof talkers[0].state) == 0, "two sessions at once");
}

int main(int argc, char **argv) {
    l3_package *package = NULL;
    l3_error err;
    outcome first;
    outcome other;
    if (argc != 2) {
        fprintf(stderr, "usage: checkpoint_driver PACKAGE\n");
        return 2;
    }
    require(l3_package_open(argv[1], &package, &err), &err);
    first.logits = calloc(package->config.vocab_size, sizeof(float));
    other.logits = calloc(package->config.vocab_size, sizeof(float));
    for (uint32_t kind = L3_KV_F32; kind <= L3_KV_INT8; kind++) {
        for (uint32_t threads = 1; threads <= 3; threads += 2) {
            const l3_engine_options engine_options = {.threads = threads, .mtp = 1};
            const l3_session_options options = {.context = CONTEXT,
                                                .kv_type = kind,
                                                .chunk = CHUNK,
                                                .poison = threads > 1,
                                                .checkpoints = threads > 1 ? 1024 : 3};
            l3_engine *engine = NULL;
            require(l3_engine_create(package, &engine_options, &engine, &err), &err);
            require(l3_engine_preload(engine, NULL, NULL, &err), &err);
            returns(engine, &options, threads == 1 ? &first : &other);
            cancelled(engine, &options);
            together(engine, &options);
            l3_engine_destroy(engine);
        }
        expect(memcmp(first.logits, other.logits, package->config.vocab_size * sizeof(float)) == 0, "other threads");
        expect(memcmp(first.state, other.state, sizeof first.state) == 0, "the state with other threads");
    }
    free(first.logits);
    free(other.logits);
    l3_package_close(package);
    printf("ok %u\n", compared);
    return 0;
}
