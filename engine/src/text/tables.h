/* The tokenizer section of a package, read in place (docs/l3r-format.md).
 *
 * Its contents are not hashed when a package is opened, so nothing in it is believed: the header is checked by
 * l3_tables_open, every entry where it is used. */
#ifndef L3_TEXT_TABLES_H
#define L3_TEXT_TABLES_H

#include "ling3.h"

#include <stdbool.h>

#define L3_TOKEN_ADDED 1u
#define L3_TOKEN_SPECIAL 2u
#define L3_TOKEN_HOLE 4u

typedef struct l3_tables {
    const uint8_t *bytes;          /* [bytes_length] */
    const uint32_t *token_offsets; /* [token_count + 1] */
    const uint8_t *token_flags;    /* [token_count] */
    const int32_t *byte_tokens;    /* [256] */
    const uint32_t *merges;        /* [merge_slots][4]: left, right, rank, result */
    const int32_t *token_slots;    /* [token_slot_count] */
    const int32_t *added;          /* [added_count] */
    uint32_t bytes_length;
    uint32_t token_count;
    uint32_t merge_count;
    uint32_t merge_slots;
    uint32_t token_slot_count;
    uint32_t added_count;
    bool ignore_merges;
} l3_tables;

/* Checks the header of a 4-byte aligned section, which may be NULL where length is 0: a fixed amount of work. */
l3_status l3_tables_open(const uint8_t *section, size_t length, uint32_t token_count, l3_tables *out, l3_error *err);
/* Bytes of a token, which may be none for a hole. */
l3_status l3_tables_token(const l3_tables *tables, int32_t id, const uint8_t **bytes, size_t *length, l3_error *err);
/* Id of the token with these bytes, or L3_NO_TOKEN. */
l3_status l3_tables_find(const l3_tables *tables, const uint8_t *bytes, size_t length, int32_t *id, l3_error *err);
/* The merge of two tokens; *result is L3_NO_TOKEN where there is none. */
l3_status l3_tables_merge(const l3_tables *tables, int32_t left, int32_t right, uint32_t *rank, int32_t *result,
                          l3_error *err);
/* Token of a single byte. */
l3_status l3_tables_byte(const l3_tables *tables, uint8_t byte, int32_t *id, l3_error *err);

#endif
