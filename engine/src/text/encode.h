/* Text to ids by tables that lie in memory. */
#ifndef L3_TEXT_ENCODE_H
#define L3_TEXT_ENCODE_H

#include "text/bpe.h"
#include "text/tables.h"

/* Appends the ids of valid UTF-8 text of at most L3_BPE_MAX_PIECE bytes; with `special`, added tokens are recognised. */
l3_status l3_encode(const l3_tables *tables, const uint8_t *text, size_t length, bool special, l3_id_sink *sink,
                    l3_error *err);

#endif
