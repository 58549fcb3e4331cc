/* Counts what the engine asks the system for: every allocation of the process while counting is on, and mapped bytes.
 *
 *   count_allocations PACKAGE control   allocates once on purpose; prints the count
 *   count_allocations PACKAGE decode    prints the allocations of prefill, decoding, drafting, sampling, checkpoints and exports
 *   count_allocations PACKAGE memory    prints lines "planned reported measured" in bytes, for several sessions
 *   count_allocations PACKAGE guard     lets a kernel allocate, which a debug build answers by aborting
 *
 * Link with -Wl,--wrap=mmap; the C library must be glibc, whose allocator the functions below stand before. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>

#include "base/memory.h"
#include "session/session.h"

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void *__wrap_mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset);
void *__real_mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset);

static _Atomic unsigned long counted;
static _Atomic unsigned long long mapped;
static atomic_bool counting;

static void count(void) { atomic_fetch_add(&counted, atomic_load(&counting) ? 1 : 0); }

void *malloc(size_t size) {
    count();
    return __libc_malloc(size);
}

void *calloc(size_t n, size_t size) {
    count();
    return __libc_calloc(n, size);
}

void *realloc(void *old, size_t size) {
    count();
    return __libc_realloc(old, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
    count();
    return __libc_memalign(alignment, size);
}

int posix_memalign(void **out, size_t alignment, size_t size) {
    count();
    *out = __libc_memalign(alignment, size);
    return *out != NULL ? 0 : ENOMEM;
}

void *__wrap_mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset) {
    count();
    atomic_fetch_add(&mapped, fd < 0 ? length : 0);
    return __real_mmap(address, length, protection, flags, fd, offset);
}

static void require(l3_status status, const l3_error *err) {
    if (status != L3_OK) {
        fprintf(stderr, "%s: %s\n", l3_status_name((int32_t)status), err->message);
        exit(1);
    }
}

static l3_engine *engine_with(const l3_package *package, uint32_t threads, const char *simd) {
    l3_engine_options options = {.threads = threads, .mtp = 1};
    l3_engine *engine = NULL;
    l3_error err;
    snprintf(options.simd, sizeof options.simd, "%s", simd);
    require(l3_engine_create(package, &options, &engine, &err), &err);
    return engine;
}

static l3_session *session_with(l3_engine *engine, const l3_session_options *options) {
    l3_session *session = NULL;
    l3_error err;
    require(l3_session_create(engine, options, &session, &err), &err);
    return session;
}

/* A prompt of several chunks, then tokens one by one, each sampled and drafted after. */
static void speak(const l3_package *package, l3_session *session, float *hidden, float *logits) {
    const l3_sampling sampling = {.temperature = 1.0f, .top_p = 0.9f,  .repetition_penalty = 1.1f,
                                  .top_k = 20,         .frequency_penalty = 0.5f, .presence_penalty = -0.5f};
    const int32_t biased = 3;
    const float bias = 1.0f;
    uint32_t allowed[64];
    int32_t ids[20];
    int32_t best[5];
    float logprobs[5];
    float logprob;
    void *block = malloc(l3_session_allocated(session)); /* an export is smaller */
    l3_sampler *sampler = NULL;
    l3_error err;
    int32_t id = 0;
    for (int32_t i = 0; i < 20; i++) {
        ids[i] = i * 7 % 300;
    }
    memset(allowed, 0x7f, sizeof allowed);
    require(l3_sampler_create(package, &sampling, &sampler, &err), &err);
    require(l3_sampler_bias(sampler, &biased, &bias, 1, &err), &err);
    atomic_store(&counting, true);
    require(l3_session_eval(session, ids, 20, L3_LOGITS_LAST, logits, NULL, &err), &err);
    for (uint32_t i = 0; i < 12; i++) {
        const l3_choice choice = {.logits = l3_session_logits(session),
                                  .history = l3_session_tokens(session),
                                  .history_length = l3_session_position(session),
                                  .reply_length = i,
                                  .allowed = i % 3 > 0 ? allowed : NULL};
        require(l3_sampler_sample(sampler, &choice, &id, &err), &err);
        require(l3_log_probabilities(package, choice.logits, id, &logprob, 5, best, logprobs, &err), &err);
        require(l3_session_eval(session, &id, 1, L3_LOGITS_LAST, logits, hidden, &err), &err);
        require(l3_session_mtp(session, hidden, &id, 1, i, logits, hidden, &err), &err);
        require(l3_session_save(session, i % 2, &err), &err);
    }
    require(l3_session_export(session, block, l3_session_export_bytes(session), &err), &err);
    require(l3_session_import(session, block, l3_session_export_bytes(session), l3_session_position(session), &err),
            &err);
    require(l3_session_restore(session, 0, &err), &err);
    l3_session_reset(session);
    atomic_store(&counting, false);
    l3_sampler_destroy(sampler);
    free(block);
}

static void decode(const l3_package *package) {
    const l3_config *c = l3_package_config(package);
    float *hidden = malloc(c->hidden_size * sizeof *hidden);
    float *logits = malloc(c->vocab_size * sizeof *logits);
    for (uint32_t i = 0; i < 6; i++) {
        const l3_session_options options = {.context = 64, .kv_type = i % 5, .chunk = 8, .checkpoints = 2};
        l3_engine *engine = engine_with(package, 1 + i % 2, i < 3 ? "auto" : "scalar");
        l3_session *session = session_with(engine, &options);
        speak(package, session, hidden, logits);
        l3_session_destroy(session);
        l3_engine_destroy(engine);
    }
    free(hidden);
    free(logits);
    printf("%lu\n", atomic_load(&counted));
}

static void memory(const l3_package *package) {
    for (uint32_t i = 0; i < 12; i++) {
        const l3_session_options options = {.context = 1 + i * i, .kv_type = i % 5,         .chunk = i,
                                            .poison = i % 2,      .checkpoints = i * 7 % 5, .session_cache_bytes = i << 20};
        const l3_engine_options engine_options = {.threads = 1 + i % 4, .mtp = 1};
        l3_engine *engine = engine_with(package, 1 + i % 4, "");
        l3_memory_plan plan;
        l3_session *session;
        l3_error err;
        require(l3_plan(package, &engine_options, &options, &plan, &err), &err);
        atomic_store(&mapped, 0);
        atomic_store(&counted, 0);
        atomic_store(&counting, true);
        session = session_with(engine, &options);
        atomic_store(&counting, false);
        printf("%llu %llu %llu %lu\n", (unsigned long long)plan.allocated_bytes,
               (unsigned long long)l3_session_allocated(session), atomic_load(&mapped), atomic_load(&counted));
        l3_session_destroy(session);
        l3_engine_destroy(engine);
    }
}

static void allocating_add(float *y, const float *x, size_t n) {
    (void)x;
    (void)n;
    l3_free(l3_alloc(1, 8));
    y[0] = 0.0f;
}

static void guard(const l3_package *package) {
    const l3_session_options options = {.context = 8};
    const int32_t id = 1;
    l3_engine *engine = engine_with(package, 1, "");
    l3_session *session = session_with(engine, &options);
    l3_kernels kernels = *session->kernels;
    l3_error err;
    kernels.add = allocating_add;
    session->kernels = &kernels;
    require(l3_session_eval(session, &id, 1, L3_LOGITS_NONE, NULL, NULL, &err), &err);
    printf("the allocation went unnoticed\n");
    l3_session_destroy(session);
    l3_engine_destroy(engine);
}

int main(int argc, char **argv) {
    l3_package *package = NULL;
    l3_error err;
    if (argc != 3) {
        fprintf(stderr, "usage: count_allocations PACKAGE control|decode|memory|guard\n");
        return 2;
    }
    require(l3_package_open(argv[1], &package, &err), &err);
    if (strcmp(argv[2], "control") == 0) {
        atomic_store(&counting, true);
        l3_free(l3_alloc(1, 8));
        l3_pages_free(l3_pages_alloc(4096), 4096);
        atomic_store(&counting, false);
        printf("%lu\n", atomic_load(&counted));
    } else if (strcmp(argv[2], "decode") == 0) {
        decode(package);
    } else if (strcmp(argv[2], "memory") == 0) {
        memory(package);
    } else {
        guard(package);
    }
    l3_package_close(package);
    return 0;
}
