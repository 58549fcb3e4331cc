/* Added tokens first, then the pre-split, then byte-pair encoding. */
#include "text/encode.h"

#include "base/error.h"
#include "text/split.h"

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

/* Ids of text in which no added token is recognised; a word never becomes one either. */
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

l3_status l3_encode(const l3_tables *tables, const uint8_t *text, size_t length, bool special, l3_id_sink *sink,
                    l3_error *err) {
    l3_bpe bpe = {0};
    l3_status status = special ? encode_with_added(&bpe, tables, text, length, sink, err)
                               : encode_plain(&bpe, tables, text, length, sink, err);
    l3_bpe_free(&bpe);
    return status;
}
