/* Ling-3.0 splits text by a regular expression of seven alternatives, tried in this order at each position:
 *
 *   1  an apostrophe and s, d, m, t, ll, ve or re, in any case
 *   2  at most one character that is no letter, number, CR or LF; then letters
 *   3  one number
 *   4  at most one space; then characters that are no white space, letters or numbers; then CR and LF
 *   5  white space that ends with CR or LF
 *   6  white space, without its last character where something else follows
 *   7  white space
 *
 * Every character is taken by one of them. The classes of neighbouring parts are disjoint but for 5 and 6, so each
 * alternative is one forward scan. */
#include "text/split.h"

#include "text/unicode.h"
#include "text/utf8.h"

#include <stdbool.h>

typedef struct character {
    uint32_t code;
    l3_char_class class;
    size_t end; /* where the next character begins; equals `at` behind the text */
} character;

static character character_at(const uint8_t *text, size_t length, size_t at) {
    character c = {0, L3_CHAR_OTHER, at};
    if (at < length) {
        c.end = at + l3_utf8_decode(text + at, length - at, &c.code);
        c.class = l3_char_class_of(c.code);
    }
    return c;
}

static bool is_line_end(uint32_t code) { return code == '\r' || code == '\n'; }

/* End of the run of characters of one class from `at` on. */
static size_t run_end(const uint8_t *text, size_t length, size_t at, l3_char_class class) {
    while (at < length) {
        character c = character_at(text, length, at);
        if (c.class != class) {
            break;
        }
        at = c.end;
    }
    return at;
}

/* Lower-case form of an ASCII letter; U+017F, the long s, is an s in another case. */
static uint32_t folded(uint32_t code) {
    if (code >= 'A' && code <= 'Z') {
        return code + ('a' - 'A');
    }
    return code == 0x17f ? 's' : code;
}

/* End of a contraction whose apostrophe ends at `at`, or 0. */
static size_t contraction_end(const uint8_t *text, size_t length, size_t at) {
    character first = character_at(text, length, at);
    uint32_t a = folded(first.code);
    if (first.end == at) {
        return 0;
    }
    if (a == 's' || a == 'd' || a == 'm' || a == 't') {
        return first.end;
    }
    character second = character_at(text, length, first.end);
    uint32_t b = folded(second.code);
    bool pair = (a == 'l' && b == 'l') || (a == 'v' && b == 'e') || (a == 'r' && b == 'e');
    return pair && second.end != first.end ? second.end : 0;
}

/* Alternatives 5 to 7, for text that begins with white space. */
static size_t white_space_end(const uint8_t *text, size_t length) {
    size_t at = 0;
    size_t last = 0;        /* where the last character of the run begins */
    size_t line_end = 0;    /* behind the last CR or LF of the run */
    while (at < length) {
        character c = character_at(text, length, at);
        if (c.class != L3_CHAR_SPACE) {
            break;
        }
        last = at;
        at = c.end;
        if (is_line_end(c.code)) {
            line_end = at;
        }
    }
    if (line_end != 0) {
        return line_end;
    }
    return at < length && last != 0 ? last : at;
}

size_t l3_split_piece(const uint8_t *text, size_t length) {
    character first = character_at(text, length, 0);
    if (first.class == L3_CHAR_LETTER) {
        return run_end(text, length, first.end, L3_CHAR_LETTER);
    }
    if (first.class == L3_CHAR_NUMBER) {
        return first.end;
    }
    if (first.code == '\'') {
        size_t end = contraction_end(text, length, first.end);
        if (end != 0) {
            return end;
        }
    }
    character second = character_at(text, length, first.end);
    bool more = second.end != first.end;
    if (more && second.class == L3_CHAR_LETTER && !is_line_end(first.code)) {
        return run_end(text, length, second.end, L3_CHAR_LETTER);
    }
    if (first.class == L3_CHAR_OTHER || (first.code == ' ' && more && second.class == L3_CHAR_OTHER)) {
        size_t end = run_end(text, length, first.end, L3_CHAR_OTHER);
        while (end < length && is_line_end(text[end])) {
            end++;
        }
        return end;
    }
    return white_space_end(text, length);
}
