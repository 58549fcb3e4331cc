/* Byte-pair encoding of one piece of text. */
#ifndef L3_TEXT_BPE_H
#define L3_TEXT_BPE_H

#include "text/tables.h"

/* Where ids go: all are counted, the first `capacity` are kept. */
typedef struct l3_id_sink {
    int32_t *ids; /* [capacity] */
    size_t capacity;
    size_t count;
} l3_id_sink;

static inline void l3_id_sink_put(l3_id_sink *sink, int32_t id) {
    if (sink->count < sink->capacity) {
        sink->ids[sink->count] = id;
    }
    sink->count++;
}

/* Memory that is kept from piece to piece. Zero-initialise. */
typedef struct l3_bpe {
    struct l3_bpe_symbol *symbols; /* [symbol_capacity] */
    size_t symbol_capacity;
    struct l3_bpe_candidate *heap; /* [heap_capacity] */
    size_t heap_length;
    size_t heap_capacity;
} l3_bpe;

/* Largest piece, bytes. */
#define L3_BPE_MAX_PIECE 0x7fffffffu

/* Appends the ids of piece[0..length), 0 < length <= L3_BPE_MAX_PIECE. */
l3_status l3_bpe_encode(l3_bpe *bpe, const l3_tables *tables, const uint8_t *piece, size_t length, l3_id_sink *sink,
                        l3_error *err);
void l3_bpe_free(l3_bpe *bpe);

#endif
