/* Text to ids and back: added tokens, then the pre-split, then byte-pair encoding. */
#include "ling3.h"

#include "base/error.h"
#include "text/bpe.h"
#include "text/split.h"
#include "text/tables.h"
#include "text/utf8.h"

#include <string.h>

/* Which bytes added tokens begin with and go on with: most places in a text are ruled out by these alone. */
typedef struct added_filter {
    bool first[256];
    bool second[256]; /* all true where a token has a single byte */
} added_filter;

/* Bytes of the added token at an index of the table. */
static l3_status added_token(const l3_tables *tables, uint32_t index, int32_t *id, const uint8_t **bytes,
                             size_t *length, l3_error *err) {
    *id = tables->added[index];
    if (*id < 0 || (uint32_t)*id >= tables->token_count) {
        return l3_fail(err, L3_E_FORMAT, "tokenizer: added token %u is %d; there are %u tokens", index, *id,
                       tables->token_count);
    }
    l3_status status = l3_tables_token(tables, *id, bytes, length, err);
    if (status == L3_OK && *length == 0) {
        return l3_fail(err, L3_E_FORMAT, "tokenizer: added token %d is empty", *id);
    }
    return status;
}

static l3_status make_filter(const l3_tables *tables, added_filter *filter, l3_error *err) {
    memset(filter, 0, sizeof *filter);
    for (uint32_t i = 0; i < tables->added_count; i++) {
        int32_t id = L3_NO_TOKEN;
        const uint8_t *bytes = NULL;
        size_t length = 0;
        l3_status status = added_token(tables, i, &id, &bytes, &length, err);
        if (status != L3_OK) {
            return status;
        }
        filter->first[bytes[0]] = true;
        if (length == 1) {
            memset(filter->second, 1, sizeof filter->second);
        } else {
            filter->second[bytes[1]] = true;
        }
    }
    return L3_OK;
}

/* The longest added token at text[0]; *id is L3_NO_TOKEN where there is none. */
static l3_status match_added(const l3_tables *tables, const added_filter *filter, const uint8_t *text, size_t length,
                             int32_t *id, size_t *matched, l3_error *err) {
    *id = L3_NO_TOKEN;
    if (!filter->first[text[0]] || (length > 1 && !filter->second[text[1]])) {
        return L3_OK;
    }
    for (uint32_t i = 0; i < tables->added_count; i++) {
        int32_t candidate = L3_NO_TOKEN;
        const uint8_t *bytes = NULL;
        size_t size = 0;
        l3_status status = added_token(tables, i, &candidate, &bytes, &size, err);
        if (status != L3_OK) {
            return status;
        }
        if (size <= length && memcmp(bytes, text, size) == 0) {
            *id = candidate;
            *matched = size;
            return L3_OK;
        }
    }
    return L3_OK;
}

/* Ids of text that holds no added token. */
static l3_status encode_plain(l3_bpe *bpe, const l3_tables *tables, const uint8_t *text, size_t length,
                              l3_id_sink *sink, l3_error *err) {
    while (length > 0) {
        size_t piece = l3_split_piece(text, length);
        int32_t whole = L3_NO_TOKEN;
        l3_status status = L3_OK;
        if (tables->ignore_merges) {
            status = l3_tables_find(tables, text, piece, &whole, err);
            if (status != L3_OK) {
                return status;
            }
        }
        if (whole != L3_NO_TOKEN && (tables->token_flags[whole] & L3_TOKEN_ADDED) == 0) {
            l3_id_sink_put(sink, whole);
        } else {
            status = l3_bpe_encode(bpe, tables, text, piece, sink, err);
            if (status != L3_OK) {
                return status;
            }
        }
        text += piece;
        length -= piece;
    }
    return L3_OK;
}

/* Ids of text whose added tokens are recognised, the leftmost first, the longest where several begin together. */
static l3_status encode_with_added(l3_bpe *bpe, const l3_tables *tables, const uint8_t *text, size_t length,
                                   l3_id_sink *sink, l3_error *err) {
    added_filter filter;
    l3_status status = make_filter(tables, &filter, err);
    if (status != L3_OK) {
        return status;
    }
    size_t begin = 0; /* of the plain text that is not yet encoded */
    size_t at = 0;
    while (at < length) {
        int32_t id = L3_NO_TOKEN;
        size_t matched = 0;
        status = match_added(tables, &filter, text + at, length - at, &id, &matched, err);
        if (status != L3_OK) {
            return status;
        }
        if (id == L3_NO_TOKEN) {
            at++;
            continue;
        }
        status = encode_plain(bpe, tables, text + begin, at - begin, sink, err);
        if (status != L3_OK) {
            return status;
        }
        l3_id_sink_put(sink, id);
        at += matched;
        begin = at;
    }
    return encode_plain(bpe, tables, text + begin, length - begin, sink, err);
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
    l3_status status = l3_tables_open(package, &tables, err);
    if (status != L3_OK) {
        return status;
    }
    l3_id_sink sink = {.ids = ids, .capacity = capacity, .count = 0};
    l3_bpe bpe = {0};
    status = (flags & L3_TOKENIZE_SPECIAL) != 0 ? encode_with_added(&bpe, &tables, bytes, length, &sink, err)
                                                : encode_plain(&bpe, &tables, bytes, length, &sink, err);
    l3_bpe_free(&bpe);
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
    l3_status status = l3_tables_open(package, &tables, err);
    return status != L3_OK ? status : l3_tables_token(&tables, id, bytes, length, err);
}

int32_t l3_token_find(const l3_package *package, const char *bytes, size_t length) {
    l3_tables tables;
    int32_t id = L3_NO_TOKEN;
    if (package == NULL || bytes == NULL || l3_tables_open(package, &tables, NULL) != L3_OK) {
        return L3_NO_TOKEN;
    }
    if (l3_tables_find(&tables, (const uint8_t *)bytes, length, &id, NULL) != L3_OK) {
        return L3_NO_TOKEN;
    }
    return id;
}

int l3_token_is_special(const l3_package *package, int32_t id) {
    l3_tables tables;
    if (package == NULL || l3_tables_open(package, &tables, NULL) != L3_OK || id < 0 ||
        (uint32_t)id >= tables.token_count) {
        return 0;
    }
    return (tables.token_flags[id] & L3_TOKEN_SPECIAL) != 0;
}
