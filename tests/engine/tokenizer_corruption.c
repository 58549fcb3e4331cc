/* Uses damaged tokenizer sections; run under sanitizers. Each damaged copy lies in a block of exactly its size.
 *
 *   tokenizer_corruption SECTION TEXT SEED ROUNDS
 *
 * Prints how many copies were refused. Exits with 1 where a status is not OK, E_FORMAT or E_ARG. */
#include "text/encode.h"

#include "base/bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct blob {
    uint8_t *data;
    size_t length;
} blob;

typedef struct run {
    blob section;
    blob text;
    uint32_t token_count;
    unsigned long used;
    unsigned long refused;
    uint64_t random;
} run;

/* Keeps the compiler from leaving out the reading of bytes. */
static volatile uint64_t seen;

static blob read_file(const char *path) {
    blob b = {NULL, 0};
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
        perror(path);
        exit(2);
    }
    b.length = (size_t)ftell(file);
    rewind(file);
    b.data = malloc(b.length + 1);
    if (b.data == NULL || fread(b.data, 1, b.length, file) != b.length) {
        perror(path);
        exit(2);
    }
    fclose(file);
    return b;
}

static uint32_t next_random(run *r) {
    r->random = r->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(r->random >> 33);
}

static int allowed(l3_status status, const l3_error *err) {
    if (status == L3_OK) {
        return 1;
    }
    if ((status != L3_E_FORMAT && status != L3_E_ARG) || err->status != (int32_t)status || err->message[0] == 0) {
        fprintf(stderr, "status %d: %s\n", (int)status, err->message);
        exit(1);
    }
    return 0;
}

/* Does with a section whatever the library does with one. */
static void use(run *r, const uint8_t *section, size_t length, uint32_t token_count) {
    l3_tables tables;
    l3_error err;
    int whole = 1;
    memset(&err, 0, sizeof err);
    if (!allowed(l3_tables_open(section, length, token_count, &tables, &err), &err)) {
        r->refused++;
        return;
    }
    int32_t ids[64];
    for (int special = 0; special < 2; special++) {
        l3_id_sink sink = {ids, sizeof ids / sizeof ids[0], 0};
        whole &= allowed(l3_encode(&tables, r->text.data, r->text.length, special != 0, &sink, &err), &err);
    }
    uint64_t sum = 0;
    for (uint32_t i = 0; i < 300; i++) {
        int32_t id = i < 256 ? (int32_t)i : (int32_t)next_random(r);
        const uint8_t *bytes = NULL;
        size_t size = 0;
        if (!allowed(l3_tables_token(&tables, id, &bytes, &size, &err), &err)) {
            whole &= (uint32_t)id >= token_count;
            continue;
        }
        for (size_t k = 0; k < size; k++) {
            sum += bytes[k];
        }
        whole &= allowed(l3_tables_find(&tables, bytes, size, &id, &err), &err);
    }
    seen = sum;
    if (whole) {
        r->used++;
    } else {
        r->refused++;
    }
}

static void use_copy(run *r, size_t length, size_t at, const uint8_t *patch, size_t patch_length) {
    uint8_t *copy = malloc(length > 0 ? length : 1);
    if (copy == NULL) {
        exit(2);
    }
    memcpy(copy, r->section.data, length);
    if (patch_length > 0 && at + patch_length <= length) {
        memcpy(copy + at, patch, patch_length);
    }
    use(r, copy, length, r->token_count);
    free(copy);
}

static void each_header_field(run *r) {
    for (size_t field = 0; field < 64; field += 4) {
        uint32_t old = l3_load_u32(r->section.data + field);
        const uint32_t values[] = {0,       1,           2,           3,           64,          old + 1,
                                   old - 1, old + 4,     old - 4,     old * 2,     old / 2,     0x7fffffffu,
                                   1u << 31, 0xffffffffu, 0xfffffffcu, 0xfffffff0u, 0x40000000u, (uint32_t)r->section.length,
                                   (uint32_t)r->section.length - 4};
        for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
            uint8_t patch[4];
            memcpy(patch, &values[i], 4);
            use_copy(r, r->section.length, field, patch, 4);
        }
    }
}

static void each_truncation(run *r) {
    for (size_t length = 0; length <= 64; length++) {
        use_copy(r, length, 0, NULL, 0);
    }
    for (size_t field = 28; field < 60; field += 4) {
        size_t boundary = l3_load_u32(r->section.data + field);
        for (size_t length = boundary < 8 ? 0 : boundary - 8; length < boundary + 9; length++) {
            if (length < r->section.length) {
                use_copy(r, length, 0, NULL, 0);
            }
        }
    }
    for (size_t cut = 1; cut < 16 && cut < r->section.length; cut++) {
        use_copy(r, r->section.length - cut, 0, NULL, 0);
    }
}

/* Several words replaced at once by small, huge or shifted values. */
static void random_words(run *r, unsigned long rounds) {
    for (unsigned long round = 0; round < rounds; round++) {
        uint8_t *copy = malloc(r->section.length);
        if (copy == NULL) {
            exit(2);
        }
        memcpy(copy, r->section.data, r->section.length);
        uint32_t changes = 1 + next_random(r) % 64;
        for (uint32_t i = 0; i < changes; i++) {
            size_t at = 64 + next_random(r) % (r->section.length / 4 - 16) * 4;
            uint32_t old = l3_load_u32(copy + at);
            const uint32_t values[] = {0, 0xffffffffu, 0x80000000u, old + 1, old ^ (1u << next_random(r) % 32),
                                       next_random(r) % 1024, r->token_count, next_random(r)};
            uint32_t value = values[next_random(r) % 8];
            memcpy(copy + at, &value, 4);
        }
        use(r, copy, r->section.length, r->token_count);
        free(copy);
    }
}

/* Tables without an empty slot. */
static void full_tables(run *r) {
    const struct {
        size_t slots;
        size_t table;
        size_t size;
    } tables[] = {{16, 48, 16}, {20, 52, 4}};
    for (size_t i = 0; i < 2; i++) {
        uint8_t *copy = malloc(r->section.length);
        if (copy == NULL) {
            exit(2);
        }
        memcpy(copy, r->section.data, r->section.length);
        size_t slots = l3_load_u32(copy + tables[i].slots);
        memset(copy + l3_load_u32(copy + tables[i].table), 0, slots * tables[i].size);
        use(r, copy, r->section.length, r->token_count);
        free(copy);
    }
}

int main(int argc, char **argv) {
    if (argc != 5) {
        return 2;
    }
    run r = {.section = read_file(argv[1]), .text = read_file(argv[2])};
    r.random = strtoull(argv[3], NULL, 10);
    r.token_count = l3_load_u32(r.section.data + 4);
    use_copy(&r, r.section.length, 0, NULL, 0);
    if (r.used != 1) {
        fprintf(stderr, "the undamaged section is refused\n");
        return 1;
    }
    each_header_field(&r);
    each_truncation(&r);
    full_tables(&r);
    random_words(&r, strtoul(argv[4], NULL, 10));
    printf("%lu used, %lu refused\n", r.used, r.refused);
    free(r.section.data);
    free(r.text.data);
    return 0;
}
