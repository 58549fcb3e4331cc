#include "text/utf8.h"

#include "ling3.h"

#include <string.h>

#define REPLACEMENT 0xfffdu

/* Length of the sequence that a byte begins, 0 for one that begins none (Unicode, table 3-7). */
static uint32_t sequence_length(uint8_t lead) {
    if (lead < 0x80) {
        return 1;
    }
    if (lead >= 0xc2 && lead <= 0xdf) {
        return 2;
    }
    if (lead >= 0xe0 && lead <= 0xef) {
        return 3;
    }
    return lead >= 0xf0 && lead <= 0xf4 ? 4 : 0;
}

/* Whether `byte` may stand at `index` (1 to 3) of a sequence that begins with `lead`. */
static int continues(uint8_t lead, uint32_t index, uint8_t byte) {
    uint8_t low = 0x80;
    uint8_t high = 0xbf;
    if (index == 1) {
        switch (lead) {
        case 0xe0: /* shorter forms exist */
            low = 0xa0;
            break;
        case 0xed: /* surrogates */
            high = 0x9f;
            break;
        case 0xf0: /* shorter forms exist */
            low = 0x90;
            break;
        case 0xf4: /* above U+10FFFF */
            high = 0x8f;
            break;
        default:
            break;
        }
    }
    return byte >= low && byte <= high;
}

size_t l3_utf8_decode(const uint8_t *bytes, size_t length, uint32_t *code_point) {
    uint32_t need = sequence_length(bytes[0]);
    if (need == 1) {
        *code_point = bytes[0];
        return 1;
    }
    *code_point = REPLACEMENT;
    if (need == 0) {
        return 1;
    }
    uint32_t value = bytes[0] & (0xffu >> (need + 1));
    for (uint32_t i = 1; i < need; i++) {
        if (i >= length || !continues(bytes[0], i, bytes[i])) {
            return i;
        }
        value = value << 6 | (bytes[i] & 0x3fu);
    }
    *code_point = value;
    return need;
}

size_t l3_utf8_valid_prefix(const uint8_t *bytes, size_t length) {
    size_t at = 0;
    while (at < length) {
        if (bytes[at] < 0x80) {
            at++;
            continue;
        }
        uint32_t need = sequence_length(bytes[at]);
        if (need == 0 || need > length - at) {
            return at;
        }
        for (uint32_t i = 1; i < need; i++) {
            if (!continues(bytes[at], i, bytes[at + i])) {
                return at;
            }
        }
        at += need;
    }
    return length;
}

static size_t put_replacement(char *out) {
    memcpy(out, "\xef\xbf\xbd", 3);
    return 3;
}

size_t l3_utf8_push(l3_utf8_stream *stream, const uint8_t *bytes, size_t length, char *out) {
    uint8_t *pending = stream->pending;
    /* 1 to 3 bytes that begin a sequence and do not end it */
    uint32_t held = stream->pending_length < sizeof stream->pending ? stream->pending_length : 0;
    size_t written = 0;
    for (size_t i = 0; i < length; i++) {
        uint8_t byte = bytes[i];
        if (held != 0 && !continues(pending[0], held, byte)) {
            written += put_replacement(out + written);
            held = 0;
        }
        if (held == 0) {
            uint32_t need = sequence_length(byte);
            if (need == 1) {
                out[written++] = (char)byte;
            } else if (need == 0) {
                written += put_replacement(out + written);
            } else {
                pending[held++] = byte;
            }
            continue;
        }
        pending[held++] = byte;
        if (held == sequence_length(pending[0])) {
            memcpy(out + written, pending, held);
            written += held;
            held = 0;
        }
    }
    stream->pending_length = held;
    return written;
}

size_t l3_utf8_finish(l3_utf8_stream *stream, char *out) {
    uint32_t held = stream->pending_length;
    memset(stream, 0, sizeof *stream);
    return held != 0 ? put_replacement(out) : 0;
}
