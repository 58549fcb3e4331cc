/* The pre-split of text: where one piece for byte-pair encoding ends and the next begins. */
#ifndef L3_TEXT_SPLIT_H
#define L3_TEXT_SPLIT_H

#include <stddef.h>
#include <stdint.h>

/* Length in bytes (at least 1) of the piece that begins at text[0]; length > 0. Text ends at `length`. */
size_t l3_split_piece(const uint8_t *text, size_t length);

#endif
