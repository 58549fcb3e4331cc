/* Opens packages and uses everything that can be asked of them; run under sanitizers.
 *
 * Reads lines "DEPTH PATH" or "DEPTH #OFFSET+LENGTH PATH", for a package inside a file, from stdin, where DEPTH is
 *   open  only opens
 *   hash  also verifies
 *   text  also reads sections and tensor table, tokenises and finds tokens
 *   walk  also verifies, reads every row of every tensor and evaluates, with each kernel set, with and without MTP
 *   eval  as walk without verifying
 * Answers each with one line "STATUS<tab>STAGE<tab>MESSAGE": "ok" when all went well, or the first failure. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "guarded_mapping.h"

typedef struct outcome {
    const char *stage;
    l3_status status;
    l3_error err;
} outcome;

/* Keeps the compiler from leaving out the reading of bytes. */
static volatile uint64_t seen;

static bool good(outcome *o, const char *stage, l3_status status) {
    o->stage = stage;
    o->status = status;
    return status == L3_OK;
}

static void *room(size_t bytes) {
    void *p = malloc(bytes > 0 ? bytes : 1);
    if (p == NULL) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        exit(2);
    }
    return p;
}

static void look(const void *data, size_t length) {
    const uint8_t *p = data;
    uint64_t sum = 0;
    for (size_t i = 0; i < length; i++) {
        sum += p[i];
    }
    seen = sum;
}

static bool read_tables(const l3_package *package, outcome *o) {
    for (uint32_t kind = 0; kind < 8; kind++) {
        const void *data = NULL;
        size_t length = 0;
        if (!good(o, "section", l3_package_section(package, kind, &data, &length, &o->err))) {
            return false;
        }
        look(data, length);
    }
    for (size_t i = 0; i < l3_package_tensor_count(package); i++) {
        l3_tensor_info info;
        if (!good(o, "tensor", l3_package_tensor(package, i, &info, &o->err))) {
            return false;
        }
        look(info.name, strlen(info.name));
    }
    return l3_package_tensor(package, l3_package_tensor_count(package), &(l3_tensor_info){0}, NULL) == L3_E_ARG;
}

static bool read_text(const l3_package *package, outcome *o) {
    static const char text[] = "Hello, hello the world! 123 <|role_end|>\n  a\u4e16\u754c \U0001f600";
    uint32_t tokens = l3_package_config(package)->token_count;
    int32_t ids[sizeof text];
    size_t count = 0;
    for (uint32_t flags = 0; flags < 2; flags++) {
        if (!good(o, "tokenize",
                  l3_tokenize(package, text, sizeof text - 1, flags, ids, sizeof ids / sizeof ids[0], &count, &o->err))) {
            return false;
        }
        if (count == 0 || count >= sizeof text) {
            return good(o, "token count", L3_E_INTERNAL);
        }
    }
    for (uint32_t i = 0; i < tokens; i++) {
        const uint8_t *bytes = NULL;
        size_t length = 0;
        if (!good(o, "token bytes", l3_token_bytes(package, (int32_t)i, &bytes, &length, &o->err))) {
            return false;
        }
        look(bytes, length);
        seen = (uint64_t)l3_token_find(package, (const char *)bytes, length) + (uint64_t)l3_token_is_special(package, (int32_t)i);
    }
    return true;
}

static bool read_rows(const l3_package *package, outcome *o) {
    for (size_t i = 0; i < l3_package_tensor_count(package); i++) {
        l3_tensor_info info;
        uint64_t rows = 1;
        size_t bytes;
        float *out;
        bool fine;
        if (!good(o, "tensor", l3_package_tensor(package, i, &info, &o->err))) {
            return false;
        }
        for (uint32_t d = 0; d + 1 < info.rank; d++) {
            rows *= info.shape[d];
        }
        bytes = (size_t)(rows * info.shape[info.rank - 1]) * sizeof(float);
        out = room(bytes);
        fine = good(o, "rows", l3_package_read_rows(package, i, 0, rows, out, &o->err));
        look(out, fine ? bytes : 0);
        fine = fine && l3_package_read_rows(package, i, rows, 1, out, NULL) == L3_E_ARG;
        fine = fine && l3_package_read_rows(package, i, 1, UINT64_MAX, out, NULL) == L3_E_ARG;
        free(out);
        if (!fine) {
            return false;
        }
    }
    return true;
}

static bool sample(const l3_package *package, const float *logits, outcome *o) {
    const l3_sampling sampling = {.temperature = 1.0f, .top_p = 0.9f, .repetition_penalty = 1.1f, .top_k = 20,
                                  .frequency_penalty = 0.5f};
    const int32_t history[] = {1, 2, 2};
    const l3_choice choice = {.logits = logits, .history = history, .history_length = 3, .reply_length = 2};
    l3_sampler *sampler = NULL;
    float logprob;
    float likeliest;
    int32_t best;
    int32_t id = -1;
    bool fine = good(o, "sampler", l3_sampler_create(package, &sampling, &sampler, &o->err)) &&
                good(o, "sample", l3_sampler_sample(sampler, &choice, &id, &o->err)) &&
                good(o, "sample",
                     l3_log_probabilities(package, logits, id, &logprob, 1, &best, &likeliest, &o->err));
    l3_sampler_destroy(sampler);
    return fine;
}

/* Three tokens together, one alone, one through the MTP layer. */
static bool run_session(const l3_package *package, l3_engine *engine, uint32_t kv_type, bool mtp, outcome *o) {
    const l3_config *c = l3_package_config(package);
    const l3_session_options options = {.context = 6, .kv_type = kv_type, .chunk = 2, .poison = 1};
    const int32_t ids[4] = {0, (int32_t)c->vocab_size - 1, (int32_t)c->token_count / 2, 1};
    float *hidden = room(3 * (size_t)c->hidden_size * sizeof(float));
    float *logits = room(3 * (size_t)c->vocab_size * sizeof(float));
    l3_session *session = NULL;
    uint8_t digest[32];
    bool fine = good(o, "session", l3_session_create(engine, &options, &session, &o->err)) &&
                good(o, "eval", l3_session_eval(session, ids, 3, L3_LOGITS_ALL, logits, hidden, &o->err)) &&
                good(o, "eval", l3_session_eval(session, ids + 3, 1, L3_LOGITS_LAST, logits, NULL, &o->err)) &&
                (!mtp || good(o, "mtp", l3_session_mtp(session, hidden, ids + 1, 3, 0, logits, hidden, &o->err))) &&
                good(o, "state", l3_session_state_sha256(session, digest, &o->err)) &&
                sample(package, l3_session_logits(session), o);
    l3_session_destroy(session);
    free(logits);
    free(hidden);
    return fine;
}

static bool run_engines(const l3_package *package, outcome *o) {
    static const char *const sets[] = {"scalar", "auto", "auto"};
    for (uint32_t i = 0; i < 5; i++) {
        l3_engine_options options = {.threads = 1 + i / 2, .mtp = i % 2 != 0 && l3_package_has_mtp(package)};
        const l3_session_options session = {.context = 6, .kv_type = i % 5, .chunk = 2};
        l3_memory_plan plan;
        l3_engine *engine = NULL;
        bool fine;
        snprintf(options.simd, sizeof options.simd, "%s", sets[i / 2]);
        fine = good(o, "plan", l3_plan(package, &options, &session, &plan, &o->err)) &&
               good(o, "engine", l3_engine_create(package, &options, &engine, &o->err));
        if (fine) {
            poison_mtp_gaps(engine);
            fine = run_session(package, engine, i % 5, options.mtp != 0, o);
        }
        l3_engine_destroy(engine);
        if (!fine) {
            return false;
        }
    }
    return true;
}

static l3_status open_place(const char *place, l3_package **package, l3_error *err) {
    unsigned long long offset;
    unsigned long long length;
    int path = 0;
    if (sscanf(place, "#%llu+%llu %n", &offset, &length, &path) == 2 && path > 0) {
        return l3_package_open_at(place + path, offset, length, package, err);
    }
    return l3_package_open(place, package, err);
}

static outcome use(const char *depth, const char *path) {
    outcome o = {.stage = "open"};
    l3_package *package = NULL;
    bool evaluates = strcmp(depth, "walk") == 0 || strcmp(depth, "eval") == 0;
    bool verifies = strcmp(depth, "walk") == 0 || strcmp(depth, "hash") == 0;
    bool reads = evaluates || strcmp(depth, "text") == 0;
    if (!good(&o, "open", open_place(path, &package, &o.err))) {
        if (package != NULL) {
            o.stage = "a package in spite of the error";
        }
        return o;
    }
    poison_gaps(package);
    (void)((!reads || (read_tables(package, &o) && read_text(package, &o))) &&
           (!verifies || good(&o, "verify", l3_package_verify(package, NULL, NULL, &o.err))) &&
           (!evaluates || (read_rows(package, &o) && run_engines(package, &o))));
    l3_package_close(package);
    return o;
}

int main(void) {
    static char line[8192];
    while (fgets(line, sizeof line, stdin) != NULL) {
        char *path;
        outcome o;
        line[strcspn(line, "\n")] = 0;
        path = strchr(line, ' ');
        if (path == NULL) {
            fprintf(stderr, "expected: DEPTH PATH\n");
            return 2;
        }
        *path++ = 0;
        o = use(line, path);
        for (char *p = o.err.message; *p != 0; p++) {
            *p = *p == '\n' || *p == '\t' ? ' ' : *p;
        }
        printf("%s\t%s\t%s\n", l3_status_name((int32_t)o.status), o.stage, o.status == L3_OK ? "" : o.err.message);
        fflush(stdout);
    }
    return 0;
}
