/* Exports sessions of every cache type and imports them again: sound, cut, with every bit of header and table changed, with
 * numbers changed behind a digest that fits, garbage, and sound ones whose caches and states hold any numbers. Before that
 * it asks for as many log-probabilities as there are.
 *
 *   export_driver PACKAGE    the package has the MTP layer
 *
 * Prints per cache type how many imports were refused, how many accepted, and how often a token could and could not be picked
 * after numbers that no model makes. It is for sanitizers: each block ends where
 * its memory ends and starts at an odd address. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"
#include "session/session.h"

#define CONTEXT 40u
#define HEADER 192u
#define DIGEST 160u
#define ENTRY 16u
#define SLOTS 3u

static unsigned refused;
static unsigned accepted;
static unsigned picked;
static unsigned unpicked;

static void require(l3_status status, const l3_error *err) {
    if (status != L3_OK) {
        fprintf(stderr, "%s: %s\n", l3_status_name((int32_t)status), err->message);
        exit(1);
    }
}

static void expect(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

/* SplitMix64 */
static uint64_t next_random(void) {
    static uint64_t state = 1;
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

typedef struct block {
    uint8_t *memory;
    uint8_t *bytes; /* odd */
    size_t length;
} block;

static block block_of(const uint8_t *from, size_t length) {
    block b = {.memory = malloc(length + 1), .length = length};
    expect(b.memory != NULL, "memory for a block");
    b.bytes = b.memory + 1;
    if (from != NULL) {
        memcpy(b.bytes, from, length);
    }
    return b;
}

/* Makes the digest fit again, where there is a header. */
static void seal(const block *b) {
    uint32_t count;
    size_t table;
    l3_sha256 hash;
    if (b->length < HEADER) {
        return;
    }
    memcpy(&count, b->bytes + 36, sizeof count);
    table = count <= (b->length - HEADER) / ENTRY ? count * ENTRY : 0;
    l3_sha256_init(&hash);
    l3_sha256_update(&hash, b->bytes, DIGEST);
    l3_sha256_update(&hash, b->bytes + HEADER, table);
    l3_sha256_final(&hash, b->bytes + DIGEST);
}

typedef struct bench {
    l3_session *session;
    block sound;
    float *hidden;
} bench;

static void state_of(const l3_session *s, uint8_t out[32]) {
    l3_error err;
    require(l3_session_state_sha256(s, out, &err), &err);
}

static void feed(l3_session *s, uint32_t count, float *hidden) {
    int32_t ids[CONTEXT];
    uint32_t from = l3_session_position(s);
    l3_error err;
    for (uint32_t i = 0; i < count; i++) {
        ids[i] = (int32_t)((from + i) * 13 % s->config->token_count);
    }
    require(l3_session_eval(s, ids, count, L3_LOGITS_LAST, NULL, hidden, &err), &err);
    require(l3_session_mtp(s, hidden, ids, count, from < s->mtp_position ? from : s->mtp_position, NULL, NULL, &err),
            &err);
}

/* Goes on from every place that an accepted import offers. */
static void use(const bench *t) {
    l3_session *s = t->session;
    l3_error err;
    for (uint32_t i = 0; i <= SLOTS; i++) {
        if (l3_session_position(s) < CONTEXT) {
            feed(s, 1, t->hidden);
        }
        if (i < SLOTS && l3_session_checkpoint(s, SLOTS - 1 - i) != UINT32_MAX) {
            require(l3_session_restore(s, SLOTS - 1 - i, &err), &err);
        }
    }
}

static void back_to_start(const bench *t) {
    l3_error err;
    uint32_t position;
    memcpy(&position, t->sound.bytes + 24, sizeof position);
    require(l3_session_import(t->session, t->sound.bytes, t->sound.length, position, &err), &err);
}

/* Reads and imports a block that may be anything; a refusal leaves everything as it was. */
static void offer(const bench *t, const block *b, uint32_t position) {
    uint8_t before[32];
    uint8_t after[32];
    l3_export_info info;
    l3_error err;
    uint32_t slots[SLOTS];
    l3_status read = l3_export_read(b->bytes, b->length, &info, &err);
    for (uint32_t i = 0; i < SLOTS; i++) {
        slots[i] = l3_session_checkpoint(t->session, i);
        (void)l3_export_checkpoint(b->bytes, b->length, i);
    }
    if (read == L3_OK) {
        volatile uint8_t byte = 0;
        for (uint64_t i = 0; i < 4ull * info.position; i++) {
            byte ^= b->bytes[info.tokens_offset + i];
        }
    }
    state_of(t->session, before);
    if (l3_session_import(t->session, b->bytes, b->length, position, &err) == L3_OK) {
        expect(read == L3_OK, "an import of what cannot be read");
        accepted++;
        use(t);
        back_to_start(t);
        return;
    }
    refused++;
    expect(err.status != L3_OK && err.message[0] != 0, "a refusal without a reason");
    state_of(t->session, after);
    expect(memcmp(before, after, sizeof before) == 0, "a refusal that changed the session");
    for (uint32_t i = 0; i < SLOTS; i++) {
        expect(slots[i] == l3_session_checkpoint(t->session, i), "a refusal that changed a checkpoint");
    }
}

static void cut(const bench *t, uint32_t position) {
    for (size_t length = 0; length < t->sound.length; length += length < 2 * HEADER ? 1 : 37) {
        block b = block_of(t->sound.bytes, length);
        uint64_t total = length;
        offer(t, &b, position);
        if (length >= HEADER) {
            memcpy(b.bytes + 16, &total, sizeof total);
            seal(&b);
            offer(t, &b, position);
        }
        free(b.memory);
    }
}

static void flip(const bench *t, uint32_t position, size_t structure) {
    block b = block_of(t->sound.bytes, t->sound.length);
    for (size_t place = 0; place < structure; place++) {
        for (unsigned bit = 0; bit < 8; bit++) {
            memcpy(b.bytes, t->sound.bytes, structure);
            b.bytes[place] = (uint8_t)(b.bytes[place] ^ 1u << bit);
            offer(t, &b, position);
            seal(&b);
            offer(t, &b, position);
        }
    }
    free(b.memory);
}

/* Several words at once, of values near what is possible. */
static void scramble(const bench *t, size_t structure) {
    static const uint32_t values[] = {0, 1, 2, 3, 19, 20, 21, 39, 40, 41, 255, 1023, 1024, 65536, 0x7fffffff, 0xffffffff};
    block b = block_of(t->sound.bytes, t->sound.length);
    for (uint32_t round = 0; round < 6000; round++) {
        uint32_t changes = 1 + (uint32_t)(next_random() % 4);
        memcpy(b.bytes, t->sound.bytes, structure);
        for (uint32_t i = 0; i < changes; i++) {
            size_t place = 24 + next_random() % ((structure - 24) / 4) * 4;
            memcpy(b.bytes + place, &values[next_random() % (sizeof values / sizeof values[0])], 4);
        }
        seal(&b);
        offer(t, &b, values[next_random() % 10]);
    }
    free(b.memory);
}

static void garbage(const bench *t) {
    for (uint32_t round = 0; round < 3000; round++) {
        block b = block_of(NULL, next_random() % 600);
        size_t sound = round % 4 * 12;
        uint64_t total = b.length;
        for (size_t i = 0; i < b.length; i++) {
            b.bytes[i] = (uint8_t)next_random();
        }
        memcpy(b.bytes, t->sound.bytes, sound < b.length ? sound : b.length);
        if (sound > 0 && b.length >= HEADER) {
            memcpy(b.bytes + 16, &total, sizeof total);
            seal(&b);
        }
        offer(t, &b, (uint32_t)next_random() % 50);
        free(b.memory);
    }
}

/* Words of a float32 or two bfloat16, four bytes of FP8 or INT8: not numbers, infinite, the largest, the smallest. */
static uint32_t hostile(uint64_t random) {
    static const uint32_t words[] = {0x7fc00000, 0xffc00001, 0x7f800000, 0xff800000, 0x7f7fffff, 0xff7fffff, 0x00000001,
                                     0x7fc07fc0, 0x7f807f80, 0xff80ff80, 0x7f7f7f7f, 0x80808080, 0xffffffff, 0x7c007c00};
    uint32_t kind = (uint32_t)(random % (sizeof words / sizeof words[0] + 2));
    return kind < sizeof words / sizeof words[0] ? words[kind] : (uint32_t)(random >> 32);
}

/* Puts such words over the caches and states: everywhere, or here and there. */
static void forge(const block *b, const block *sound, size_t from) {
    uint64_t density = next_random() % 3;
    uint64_t kind = next_random();
    memcpy(b->bytes, sound->bytes, sound->length);
    for (size_t place = from; place + 4 <= b->length; place += 4) {
        uint32_t word = hostile(density == 0 ? kind : next_random());
        if (density < 2 || next_random() % 512 == 0) {
            memcpy(b->bytes + place, &word, sizeof word);
        }
    }
}

/* A token or, where the numbers lead nowhere, an error that says so; the same for its log-probabilities. */
static void pick(const bench *t, l3_sampler *sampler) {
    const l3_choice choice = {.logits = l3_session_logits(t->session)};
    float logprob;
    int32_t id = -1;
    l3_error err;
    l3_status status = l3_sampler_sample(sampler, &choice, &id, &err);
    expect(status == L3_OK || status == L3_E_INTERNAL, "a token of forged numbers");
    expect(l3_log_probabilities(t->session->package, choice.logits, 0, &logprob, 0, NULL, NULL, &err) == status,
           "log-probabilities of forged numbers");
    expect(status != L3_OK || (id >= 0 && (uint32_t)id < t->session->config->token_count), "a token that there is");
    picked += status == L3_OK;
    unpicked += status != L3_OK;
}

/* States that nothing is wrong with but their numbers. They are taken, and gone without a trace when the sound one is. */
static void invent(const bench *t, size_t from, uint32_t position) {
    const l3_sampling sampling = {.temperature = 1.0f, .top_p = 0.9f, .repetition_penalty = 1.0f};
    block b = block_of(NULL, t->sound.length);
    size_t bytes = t->session->config->vocab_size * sizeof(float);
    float *expected = malloc(bytes);
    l3_sampler *sampler = NULL;
    l3_error err;
    expect(expected != NULL, "memory for logits");
    require(l3_sampler_create(t->session->package, &sampling, &sampler, &err), &err);
    feed(t->session, 3, t->hidden);
    memcpy(expected, l3_session_logits(t->session), bytes);
    for (uint32_t round = 0; round < 60; round++) {
        uint32_t at = position - 5 * (round % 4);
        forge(&b, &t->sound, from);
        require(l3_session_import(t->session, b.bytes, b.length, at, &err), &err);
        for (uint32_t i = 0; i < 3; i++) {
            feed(t->session, 1 + i, t->hidden);
            pick(t, sampler);
        }
        back_to_start(t);
        feed(t->session, 3, t->hidden);
        expect(memcmp(expected, l3_session_logits(t->session), bytes) == 0, "forged numbers that stayed");
    }
    l3_sampler_destroy(sampler);
    free(expected);
    free(b.memory);
}

/* As many of the likeliest as are possible, in ascending order of their logits and in the other. */
static void rank(const l3_package *package) {
    size_t vocab = package->config.vocab_size;
    float *logits = calloc(vocab, sizeof *logits);
    int32_t *ids = malloc(64 * sizeof *ids);
    float *logprobs = malloc(64 * sizeof *logprobs);
    float logprob;
    l3_error err;
    for (uint32_t order = 0; order < 2; order++) {
        for (size_t i = 0; i < vocab; i++) {
            logits[i] = (float)(order > 0 ? i : vocab - i) / 16.0f;
        }
        require(l3_log_probabilities(package, logits, 0, &logprob, 64, ids, logprobs, &err), &err);
        expect(ids[63] == (order > 0 ? (int32_t)package->config.token_count - 64 : 63), "the 64th likeliest token");
    }
    free(logits);
    free(ids);
    free(logprobs);
}

static void run(l3_engine *engine, uint32_t kind) {
    const l3_session_options options = {
        .context = CONTEXT, .kv_type = kind, .chunk = 8, .poison = 1, .checkpoints = SLOTS};
    bench t = {.hidden = calloc((size_t)CONTEXT * engine->package->config.hidden_size, sizeof(float))};
    uint8_t before[32];
    uint8_t after[32];
    uint32_t position = 0;
    l3_error err;
    require(l3_session_create(engine, &options, &t.session, &err), &err);
    for (uint32_t i = 0; i < SLOTS; i++) {
        feed(t.session, 5, t.hidden);
        require(l3_session_save(t.session, SLOTS - 1 - i, &err), &err);
    }
    feed(t.session, 5, t.hidden);
    t.sound = block_of(NULL, l3_session_export_bytes(t.session));
    require(l3_session_export(t.session, t.sound.bytes, t.sound.length, &err), &err);
    state_of(t.session, before);
    position = l3_session_position(t.session);
    l3_session_reset(t.session);
    back_to_start(&t);
    state_of(t.session, after);
    expect(memcmp(before, after, sizeof before) == 0, "an import that is not what was exported");
    for (uint32_t at = 5; at <= position; at += 5) {
        offer(&t, &t.sound, at);
    }
    expect(accepted == 4, "the positions of checkpoints");
    cut(&t, position);
    expect(accepted == 4, "a cut export that was accepted");
    flip(&t, position, HEADER + SLOTS * ENTRY);
    scramble(&t, HEADER + SLOTS * ENTRY);
    garbage(&t);
    invent(&t, HEADER + SLOTS * ENTRY + position * sizeof(int32_t), position);
    l3_session_destroy(t.session);
    free(t.sound.memory);
    free(t.hidden);
    printf("%u %u %u %u\n", refused, accepted, picked, unpicked);
    refused = 0;
    accepted = 0;
    picked = 0;
    unpicked = 0;
}

int main(int argc, char **argv) {
    const l3_engine_options options = {.threads = 1, .mtp = 1};
    l3_package *package = NULL;
    l3_engine *engine = NULL;
    l3_error err;
    if (argc != 2) {
        fprintf(stderr, "usage: export_driver PACKAGE\n");
        return 2;
    }
    require(l3_package_open(argv[1], &package, &err), &err);
    require(l3_engine_create(package, &options, &engine, &err), &err);
    rank(package);
    for (uint32_t kind = L3_KV_F32; kind <= L3_KV_INT8; kind += 2) {
        run(engine, kind);
    }
    l3_engine_destroy(engine);
    l3_package_close(package);
    return 0;
}
