#include "text/tables.h"

#include "base/bytes.h"
#include "base/error.h"

#include <string.h>

#define HEADER_BYTES 64u
#define FLAG_IGNORE_MERGES 1u
#define EMPTY_MERGE 0xffffffffu

enum {
    FIELD_TOKEN_COUNT = 4,
    FIELD_MERGE_COUNT = 8,
    FIELD_ADDED_COUNT = 12,
    FIELD_MERGE_SLOTS = 16,
    FIELD_TOKEN_SLOTS = 20,
    FIELD_FLAGS = 24,
    FIELD_BYTES = 28,
    FIELD_BYTES_LENGTH = 32,
    FIELD_TOKEN_OFFSETS = 36,
    FIELD_TOKEN_FLAGS = 40,
    FIELD_BYTE_TOKENS = 44,
    FIELD_MERGES = 48,
    FIELD_TOKEN_TABLE = 52,
    FIELD_ADDED = 56,
    FIELD_ZERO = 60
};

/* The array of count elements of size bytes whose offset is in a header field. */
static l3_status array_at(const uint8_t *section, size_t length, uint32_t field, uint64_t count, uint64_t size,
                          const char *name, const void **out, l3_error *err) {
    uint32_t offset = l3_load_u32(section + field);
    uint64_t bytes = count * size; /* both below 2^33 */
    if (offset % 4 != 0 || offset < HEADER_BYTES || offset > length || bytes > length - offset) {
        return l3_fail(err, L3_E_FORMAT,
                       "tokenizer: %s lie at offset %u with %llu bytes; the section has %zu bytes and offsets are "
                       "multiples of 4 from 64 on",
                       name, offset, (unsigned long long)bytes, length);
    }
    *out = section + offset;
    return L3_OK;
}

static l3_status check_slots(uint32_t slots, uint32_t entries, const char *name, l3_error *err) {
    if (slots < 2 || (slots & (slots - 1)) != 0 || slots / 2 < entries) {
        return l3_fail(err, L3_E_FORMAT,
                       "tokenizer: the %s table has %u slots for %u entries; expected a power of two at least twice as "
                       "large",
                       name, slots, entries);
    }
    return L3_OK;
}

static l3_status check_header(const uint8_t *section, size_t length, uint32_t token_count, l3_tables *t, l3_error *err) {
    if (length < HEADER_BYTES) {
        return l3_fail(err, L3_E_FORMAT, "tokenizer: the section has %zu bytes, fewer than its header of %u", length,
                       HEADER_BYTES);
    }
    if (memcmp(section, "BPE1", 4) != 0) {
        return l3_fail(err, L3_E_FORMAT, "tokenizer: the section does not begin with BPE1");
    }
    uint32_t flags = l3_load_u32(section + FIELD_FLAGS);
    uint32_t zero = l3_load_u32(section + FIELD_ZERO);
    if ((flags & ~FLAG_IGNORE_MERGES) != 0 || zero != 0) {
        return l3_fail(err, L3_E_FORMAT, "tokenizer: unknown flags 0x%x, or 0x%x where 0 is expected", flags, zero);
    }
    t->ignore_merges = (flags & FLAG_IGNORE_MERGES) != 0;
    t->token_count = l3_load_u32(section + FIELD_TOKEN_COUNT);
    t->merge_count = l3_load_u32(section + FIELD_MERGE_COUNT);
    t->added_count = l3_load_u32(section + FIELD_ADDED_COUNT);
    t->merge_slots = l3_load_u32(section + FIELD_MERGE_SLOTS);
    t->token_slot_count = l3_load_u32(section + FIELD_TOKEN_SLOTS);
    t->bytes_length = l3_load_u32(section + FIELD_BYTES_LENGTH);
    if (t->token_count != token_count) {
        return l3_fail(err, L3_E_FORMAT, "tokenizer: the section has %u tokens, the config says %u", t->token_count,
                       token_count);
    }
    if (t->added_count > t->token_count) {
        return l3_fail(err, L3_E_FORMAT, "tokenizer: %u of %u tokens are added ones", t->added_count, t->token_count);
    }
    l3_status status = check_slots(t->merge_slots, t->merge_count, "merge", err);
    return status != L3_OK ? status : check_slots(t->token_slot_count, t->token_count, "token", err);
}

l3_status l3_tables_open(const uint8_t *section, size_t length, uint32_t token_count, l3_tables *out, l3_error *err) {
    memset(out, 0, sizeof *out);
    l3_status status = check_header(section, length, token_count, out, err);
    if (status != L3_OK) {
        return status;
    }
    const struct {
        uint32_t field;
        uint64_t count;
        uint64_t size;
        const char *name;
    } arrays[] = {
        {FIELD_BYTES, out->bytes_length, 1, "the bytes of the tokens"},
        {FIELD_TOKEN_OFFSETS, (uint64_t)out->token_count + 1, 4, "the offsets of the tokens"},
        {FIELD_TOKEN_FLAGS, out->token_count, 1, "the flags of the tokens"},
        {FIELD_BYTE_TOKENS, 256, 4, "the byte tokens"},
        {FIELD_MERGES, out->merge_slots, 16, "the merges"},
        {FIELD_TOKEN_TABLE, out->token_slot_count, 4, "the slots of the tokens"},
        {FIELD_ADDED, out->added_count, 4, "the added tokens"},
    };
    const void *places[sizeof arrays / sizeof arrays[0]];
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        status = array_at(section, length, arrays[i].field, arrays[i].count, arrays[i].size, arrays[i].name, &places[i],
                          err);
        if (status != L3_OK) {
            return status;
        }
    }
    out->bytes = places[0];
    out->token_offsets = places[1];
    out->token_flags = places[2];
    out->byte_tokens = places[3];
    out->merges = places[4];
    out->token_slots = places[5];
    out->added = places[6];
    return L3_OK;
}

/* Fails where an id that stands in the tables is no token. */
static l3_status check_id(const l3_tables *t, uint32_t id, const char *where, l3_error *err) {
    if (id >= t->token_count) {
        return l3_fail(err, L3_E_FORMAT, "tokenizer: %s names token %d; there are %u", where, (int32_t)id,
                       t->token_count);
    }
    return L3_OK;
}

l3_status l3_tables_token(const l3_tables *t, int32_t id, const uint8_t **bytes, size_t *length, l3_error *err) {
    if (id < 0 || (uint32_t)id >= t->token_count) {
        return l3_fail(err, L3_E_ARG, "there is no token %d; ids are 0 to %u", id, t->token_count - 1);
    }
    uint32_t begin = t->token_offsets[id];
    uint32_t end = t->token_offsets[id + 1];
    if (begin > end || end > t->bytes_length) {
        return l3_fail(err, L3_E_FORMAT, "tokenizer: token %d lies at %u to %u of %u bytes", id, begin, end,
                       t->bytes_length);
    }
    *bytes = t->bytes + begin;
    *length = end - begin;
    return L3_OK;
}

static uint32_t token_hash(const uint8_t *bytes, size_t length) {
    uint32_t h = 0x811c9dc5u; /* FNV-1a */
    for (size_t i = 0; i < length; i++) {
        h = (h ^ bytes[i]) * 0x01000193u;
    }
    return h ^ (h >> 15);
}

l3_status l3_tables_find(const l3_tables *t, const uint8_t *bytes, size_t length, int32_t *id, l3_error *err) {
    uint32_t mask = t->token_slot_count - 1;
    uint32_t slot = token_hash(bytes, length) & mask;
    *id = L3_NO_TOKEN;
    for (uint32_t probes = 0; probes < t->token_slot_count; probes++) {
        int32_t candidate = t->token_slots[slot];
        if (candidate == L3_NO_TOKEN) {
            return L3_OK;
        }
        const uint8_t *found = NULL;
        size_t found_length = 0;
        l3_status status = check_id(t, (uint32_t)candidate, "the token table", err);
        if (status == L3_OK) {
            status = l3_tables_token(t, candidate, &found, &found_length, err);
        }
        if (status != L3_OK) {
            return status;
        }
        if (found_length == length && memcmp(found, bytes, length) == 0) {
            *id = candidate;
            return L3_OK;
        }
        slot = (slot + 1) & mask;
    }
    return l3_fail(err, L3_E_FORMAT, "tokenizer: the token table has no empty slot");
}

l3_status l3_tables_merge(const l3_tables *t, int32_t left, int32_t right, uint32_t *rank, int32_t *result,
                          l3_error *err) {
    uint32_t h = (uint32_t)left * 0x9e3779b1u + (uint32_t)right * 0x85ebca77u;
    uint32_t mask = t->merge_slots - 1;
    uint32_t slot = (h ^ (h >> 15)) & mask;
    *result = L3_NO_TOKEN;
    for (uint32_t probes = 0; probes < t->merge_slots; probes++) {
        const uint32_t *merge = t->merges + (size_t)slot * 4;
        if (merge[0] == EMPTY_MERGE) {
            return L3_OK;
        }
        if (merge[0] == (uint32_t)left && merge[1] == (uint32_t)right) {
            *rank = merge[2];
            *result = (int32_t)merge[3];
            return check_id(t, merge[3], "a merge", err);
        }
        slot = (slot + 1) & mask;
    }
    return l3_fail(err, L3_E_FORMAT, "tokenizer: the merge table has no empty slot");
}

l3_status l3_tables_byte(const l3_tables *t, uint8_t byte, int32_t *id, l3_error *err) {
    *id = t->byte_tokens[byte];
    return check_id(t, (uint32_t)*id, "a byte", err);
}
