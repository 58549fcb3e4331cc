/* Fuzz target for everything that a package's bytes before the extents decide, with libFuzzer's interface.
 *
 * An input is such a front: header, directory and sections. It is completed before use: checksums are made to fit, so
 * that damage gets past them, and the extents are holes of zeros, so that a file of megabytes costs nothing.
 * The mutator knows where the tables are and mends their sums half of the time. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/sha256.h"
#include "guarded_mapping.h"

#define HEADER 192u
#define SECTION 64u
#define TENSOR 192u
#define MAX_FRONT (1u << 17)
#define MAX_FILE (1u << 26)
#define MAX_SESSION (1u << 24)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed);

/* Keeps the compiler from leaving out the reading of bytes. */
static volatile uint64_t seen;

static void require(bool condition, const char *what, const l3_error *err) {
    if (!condition) {
        fprintf(stderr, "%s (status %d: %s)\n", what, err->status, err->message);
        abort();
    }
}

static void look(const void *data, size_t length) {
    const uint8_t *p = data;
    for (size_t i = 0; i < length; i++) {
        seen += p[i];
    }
}

/* -- completing an input -- */

static void put_hash(const uint8_t *data, size_t length, uint8_t *out) {
    l3_sha256 hash;
    l3_sha256_init(&hash);
    l3_sha256_update(&hash, data, length);
    l3_sha256_final(&hash, out);
}

static bool inside(uint64_t offset, uint64_t length, uint64_t size) { return offset <= size && length <= size - offset; }

static void seal(uint8_t *p, size_t size) {
    uint64_t directory = l3_load_u64(p + 32);
    uint32_t sections = l3_load_u32(p + 40);
    for (uint32_t i = 0; i < sections && inside(HEADER, (i + 1ull) * SECTION, size); i++) {
        uint8_t *entry = p + HEADER + (size_t)i * SECTION;
        uint32_t kind = l3_load_u32(entry);
        uint64_t offset = l3_load_u64(entry + 8);
        uint64_t length = l3_load_u64(entry + 16);
        if ((kind == L3_SECTION_CONFIG || kind == L3_SECTION_FEATURES) && inside(offset, length, size)) {
            put_hash(p + offset, (size_t)length, entry + 24);
        }
    }
    if (inside(HEADER, directory, size)) {
        put_hash(p + HEADER, (size_t)directory, p + 64);
    }
    put_hash(p, 160, p + 160);
}

/* -- using a package -- */

static void run_text(const l3_package *package) {
    static const char text[] = "Hello, the world! 123 <|role_end|>\n  a\u4e16\u754c";
    int32_t ids[sizeof text];
    size_t count = 0;
    l3_error err = {0};
    for (uint32_t flags = 0; flags < 2; flags++) {
        l3_status status = l3_tokenize(package, text, sizeof text - 1, flags, ids, sizeof text, &count, &err);
        require(status == L3_OK || status == L3_E_FORMAT, "tokenising fails in an undocumented way", &err);
        require(status == L3_OK || err.message[0] != 0, "tokenising fails without a message", &err);
        for (size_t i = 0; i < count && status == L3_OK; i++) {
            require(ids[i] >= 0 && (uint32_t)ids[i] < l3_package_config(package)->token_count, "an id of no token", &err);
        }
    }
    for (int32_t id = -1; id < 330; id += 3) {
        const uint8_t *bytes = NULL;
        size_t length = 0;
        if (l3_token_bytes(package, id, &bytes, &length, &err) == L3_OK) {
            look(bytes, length);
            seen += (uint64_t)l3_token_find(package, (const char *)bytes, length);
        }
        seen += (uint64_t)l3_token_is_special(package, id);
    }
}

static void run_tables(const l3_package *package) {
    l3_error err = {0};
    for (uint32_t kind = 0; kind < 8; kind++) {
        const void *data = NULL;
        size_t length = 0;
        require(l3_package_section(package, kind, &data, &length, &err) == L3_OK, "a section cannot be had", &err);
        look(data, length);
    }
    for (size_t i = 0; i < l3_package_tensor_count(package); i++) {
        l3_tensor_info info = {0};
        float *row;
        require(l3_package_tensor(package, i, &info, &err) == L3_OK, "a tensor cannot be had", &err);
        look(info.name, strlen(info.name));
        row = malloc((size_t)info.shape[info.rank - 1] * sizeof *row);
        if (row != NULL) {
            require(l3_package_read_rows(package, i, 0, 1, row, &err) == L3_OK, "a row cannot be read", &err);
        }
        free(row);
    }
}

static void run_session(const l3_package *package) {
    const l3_config *c = l3_package_config(package);
    const l3_engine_options options = {.threads = 1, .mtp = l3_package_has_mtp(package) != 0};
    const l3_session_options limits = {.context = c->max_context < 4 ? c->max_context : 4, .chunk = 2};
    const int32_t ids[2] = {0, (int32_t)c->vocab_size - 1};
    l3_error err = {0};
    l3_memory_plan plan = {0};
    l3_engine *engine = NULL;
    l3_session *session = NULL;
    float *hidden = calloc(c->hidden_size, sizeof *hidden);
    require(l3_plan(package, &options, &limits, &plan, &err) == L3_OK, "a sound package has no plan", &err);
    if (hidden != NULL && plan.allocated_bytes <= MAX_SESSION) {
        require(l3_engine_create(package, &options, &engine, &err) == L3_OK, "no engine", &err);
        poison_mtp_gaps(engine);
        require(l3_session_create(engine, &limits, &session, &err) == L3_OK, "no session", &err);
        for (uint32_t i = 0; i < 2 && i < limits.context; i++) {
            require(l3_session_eval(session, ids + i, 1, L3_LOGITS_LAST, NULL, hidden, &err) == L3_OK, "no eval", &err);
        }
        if (options.mtp) {
            require(l3_session_mtp(session, hidden, ids, 1, 0, NULL, hidden, &err) == L3_OK, "no draft", &err);
        }
        l3_session_destroy(session);
        l3_engine_destroy(engine);
    }
    free(hidden);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t front[MAX_FRONT];
    static int file = -1;
    char path[64];
    l3_package *package = NULL;
    l3_error err = {0};
    l3_status status;
    uint64_t bytes;
    if (size < HEADER || size > MAX_FRONT) {
        return 0;
    }
    if (file < 0) {
        file = memfd_create("package", MFD_CLOEXEC);
    }
    memcpy(front, data, size);
    seal(front, size);
    bytes = l3_load_u64(front + 16);
    if (file < 0 || ftruncate(file, 0) != 0 || pwrite(file, front, size, 0) != (ssize_t)size ||
        ftruncate(file, (off_t)(bytes <= MAX_FILE ? bytes : size)) != 0) {
        perror("package in memory");
        abort();
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    status = l3_package_open(path, &package, &err);
    if (status != L3_OK) {
        require(package == NULL, "a package comes with an error", &err);
        require(status == L3_E_FORMAT || status == L3_E_UNSUPPORTED, "an undocumented status", &err);
        require(err.status == (int32_t)status && err.message[0] != 0, "an error without words", &err);
        return 0;
    }
    poison_gaps(package);
    run_tables(package);
    run_text(package);
    run_session(package);
    l3_package_close(package);
    return 1;
}

/* -- mutating -- */

static uint64_t next(uint64_t *state) {
    *state += 0x9e3779b97f4a7c15u;
    uint64_t z = (*state ^ (*state >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

typedef struct stretch {
    size_t offset;
    size_t length;
} stretch;

/* The section of a kind, as far as it lies inside the input. */
static stretch section_of(const uint8_t *p, size_t size, uint32_t kind) {
    uint32_t count = l3_load_u32(p + 40);
    for (uint32_t i = 0; i < count && inside(HEADER, (i + 1ull) * SECTION, size); i++) {
        const uint8_t *entry = p + HEADER + (size_t)i * SECTION;
        uint64_t offset = l3_load_u64(entry + 8);
        uint64_t length = l3_load_u64(entry + 16);
        if (l3_load_u32(entry) == kind && length > 0 && inside(offset, length, size)) {
            return (stretch){(size_t)offset, (size_t)length};
        }
    }
    return (stretch){0, HEADER};
}

/* Where to change something: the tables are small beside the tokenizer, and deserve as much attention. */
static stretch choose(const uint8_t *p, size_t size, uint64_t *random) {
    size_t sections = (size_t)(l3_load_u32(p + 40) % 64) * SECTION;
    size_t tensors = (size_t)(l3_load_u32(p + 44) % 4096) * TENSOR;
    stretch s = {0, size};
    switch (next(random) % 8) {
    case 0: return (stretch){8, 56};
    case 1: s = (stretch){HEADER, sections}; break;
    case 2: s = (stretch){HEADER + sections, tensors}; break;
    case 3: /* the numbers of one tensor */
        s = (stretch){HEADER + sections + (tensors > 0 ? next(random) % (tensors / TENSOR) * TENSOR : 0) + 80, 64};
        break;
    case 4: s = section_of(p, size, L3_SECTION_CONFIG); break;
    case 5: s = section_of(p, size, L3_SECTION_FEATURES); break;
    case 6:
        s = section_of(p, size, L3_SECTION_TOKENIZER);
        s.length = s.length < 64 || next(random) % 2 == 0 ? s.length : 64;
        break;
    default: break;
    }
    return s.length >= 8 && inside(s.offset, s.length, size) ? s : (stretch){0, size};
}

static void change(uint8_t *p, stretch s, uint64_t *random) {
    static const uint64_t edges[] = {0,    1,          2,          7,          8,           31,         32,       64,
                                     255,  256,        4096,       65535,      65536,       1u << 31,   UINT32_MAX, 1ull << 32,
                                     1ull << 62, 1ull << 63, UINT64_MAX, UINT64_MAX - 63, UINT64_MAX - 65535};
    size_t width = next(random) % 2 == 0 ? 4 : 8;
    size_t at = s.offset + next(random) % (s.length / width) * width;
    size_t from = s.offset + next(random) % (s.length / width) * width;
    uint64_t old = 0;
    memcpy(&old, p + at, width);
    switch (next(random) % 6) {
    case 0: old = edges[next(random) % (sizeof edges / sizeof edges[0])]; break;
    case 1: old += next(random) % 33 - 16; break;
    case 2: old ^= 1ull << next(random) % (8 * width); break;
    case 3: old = next(random) >> next(random) % 64; break;
    case 4: memcpy(&old, p + from, width); break;
    default: old += (next(random) % 5 - 2) * 65536; break;
    }
    memcpy(p + at, &old, width);
}

/* Makes the sums of the header fit the tables, as a careful liar would. */
static void mend(uint8_t *p, size_t size) {
    uint64_t sections = l3_load_u32(p + 40);
    uint64_t tensors = l3_load_u32(p + 44);
    uint64_t directory = sections * SECTION + tensors * TENSOR;
    uint64_t end = 0;
    uint64_t trunk = 0;
    memcpy(p + 32, &directory, sizeof directory);
    for (uint64_t i = 0; i < tensors && inside(HEADER + sections * SECTION, (i + 1) * TENSOR, size); i++) {
        const uint8_t *entry = p + HEADER + sections * SECTION + i * TENSOR;
        end = l3_load_u64(entry + 120) + l3_load_u64(entry + 128);
        trunk = l3_load_u32(entry + 136) == 0 ? end : trunk;
    }
    memcpy(p + 16, &end, sizeof end);
    memcpy(p + 56, &trunk, sizeof trunk);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed) {
    uint64_t random = seed;
    uint64_t changes = 1 + next(&random) % 4;
    if (size < HEADER || size > max_size) {
        return size;
    }
    for (uint64_t i = 0; i < changes; i++) {
        change(data, choose(data, size, &random), &random);
    }
    if (next(&random) % 2 == 0) {
        mend(data, size);
    }
    return size;
}
