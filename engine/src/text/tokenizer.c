/* The public functions for text and ids. */
#include "ling3.h"

#include "base/error.h"
#include "text/encode.h"
#include "text/utf8.h"

static l3_status open_tables(const l3_package *package, l3_tables *out, l3_error *err) {
    const void *section = NULL;
    size_t length = 0;
    l3_status status = l3_package_section(package, L3_SECTION_TOKENIZER, &section, &length, err);
    if (status != L3_OK) {
        return status;
    }
    return l3_tables_open(section, length, l3_package_config(package)->token_count, out, err);
}

l3_status l3_tokenize(const l3_package *package, const char *text, size_t length, uint32_t flags, int32_t *ids,
                      size_t capacity, size_t *count, l3_error *err) {
    if (package == NULL || count == NULL || (text == NULL && length > 0) || (ids == NULL && capacity > 0)) {
        return l3_fail(err, L3_E_ARG, "l3_tokenize: a pointer is NULL");
    }
    *count = 0;
    if ((flags & ~L3_TOKENIZE_SPECIAL) != 0) {
        return l3_fail(err, L3_E_ARG, "l3_tokenize: unknown flags 0x%x", flags);
    }
    if (length > L3_BPE_MAX_PIECE) {
        return l3_fail(err, L3_E_ARG, "the text has %zu bytes; at most %u can be tokenized at once", length,
                       L3_BPE_MAX_PIECE);
    }
    if (length == 0) {
        return L3_OK;
    }
    const uint8_t *bytes = (const uint8_t *)text;
    size_t valid = l3_utf8_valid_prefix(bytes, length);
    if (valid != length) {
        return l3_fail(err, L3_E_ARG, "the text is not valid UTF-8 at byte %zu", valid);
    }
    l3_tables tables;
    l3_status status = open_tables(package, &tables, err);
    if (status != L3_OK) {
        return status;
    }
    l3_id_sink sink = {.ids = ids, .capacity = capacity, .count = 0};
    status = l3_encode(&tables, bytes, length, (flags & L3_TOKENIZE_SPECIAL) != 0, &sink, err);
    if (status != L3_OK) {
        return status;
    }
    *count = sink.count;
    if (sink.count > capacity) {
        return l3_fail(err, L3_E_ARG, "the text has %zu tokens; there is room for %zu", sink.count, capacity);
    }
    return L3_OK;
}

l3_status l3_token_bytes(const l3_package *package, int32_t id, const uint8_t **bytes, size_t *length, l3_error *err) {
    if (package == NULL || bytes == NULL || length == NULL) {
        return l3_fail(err, L3_E_ARG, "l3_token_bytes: a pointer is NULL");
    }
    *bytes = NULL;
    *length = 0;
    l3_tables tables;
    l3_status status = open_tables(package, &tables, err);
    return status != L3_OK ? status : l3_tables_token(&tables, id, bytes, length, err);
}

int32_t l3_token_find(const l3_package *package, const char *bytes, size_t length) {
    l3_tables tables;
    int32_t id = L3_NO_TOKEN;
    if (package == NULL || bytes == NULL || open_tables(package, &tables, NULL) != L3_OK) {
        return L3_NO_TOKEN;
    }
    if (l3_tables_find(&tables, (const uint8_t *)bytes, length, &id, NULL) != L3_OK) {
        return L3_NO_TOKEN;
    }
    return id;
}

int l3_token_is_special(const l3_package *package, int32_t id) {
    l3_tables tables;
    if (package == NULL || open_tables(package, &tables, NULL) != L3_OK || id < 0 ||
        (uint32_t)id >= tables.token_count) {
        return 0;
    }
    return (tables.token_flags[id] & L3_TOKEN_SPECIAL) != 0;
}
