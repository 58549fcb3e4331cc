/* UTF-8: validation, decoding, and what may follow what. */
#ifndef L3_TEXT_UTF8_H
#define L3_TEXT_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of the longest prefix that is valid UTF-8; equals length where all of it is. */
size_t l3_utf8_valid_prefix(const uint8_t *bytes, size_t length);

/* Decodes the code point at bytes[0] and returns its length in bytes. Where there is none (length > 0, ill-formed), the
 * code point is U+FFFD and the length that of the maximal subpart. */
size_t l3_utf8_decode(const uint8_t *bytes, size_t length, uint32_t *code_point);

#endif
