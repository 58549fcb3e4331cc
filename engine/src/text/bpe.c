/* The symbols of a piece form a linked list in an array; possible merges wait in a heap by rank, then position. A merge
 * whose symbols have changed meanwhile is recognised when its turn comes, so a piece of n bytes takes O(n log n). */
#include "text/bpe.h"

#include "base/error.h"

#include <stdlib.h>

#define NONE 0xffffffffu

typedef struct l3_bpe_symbol {
    int32_t id; /* L3_NO_TOKEN: merged into the symbol before it */
    uint32_t previous;
    uint32_t next;
} l3_bpe_symbol;

typedef struct l3_bpe_candidate {
    uint32_t rank;
    uint32_t position; /* of the left symbol */
    int32_t left;
    int32_t right;
    int32_t result;
} l3_bpe_candidate;

/* Makes room for `needed` elements, doubling. */
static l3_status reserve(void **array, size_t *capacity, size_t needed, size_t size, l3_error *err) {
    if (needed <= *capacity) {
        return L3_OK;
    }
    size_t grown = *capacity < 64 ? 64 : *capacity;
    while (grown < needed) {
        grown *= 2; /* needed is below 2^33 */
    }
    void *moved = realloc(*array, grown * size);
    if (moved == NULL) {
        return l3_fail(err, L3_E_MEMORY, "no memory for a piece of text of %zu symbols", needed);
    }
    *array = moved;
    *capacity = grown;
    return L3_OK;
}

static bool before(const l3_bpe_candidate *a, const l3_bpe_candidate *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->position < b->position;
}

static l3_status heap_push(l3_bpe *bpe, l3_bpe_candidate candidate, l3_error *err) {
    void *array = bpe->heap;
    l3_status status = reserve(&array, &bpe->heap_capacity, bpe->heap_length + 1, sizeof candidate, err);
    if (status != L3_OK) {
        return status;
    }
    bpe->heap = array;
    size_t at = bpe->heap_length++;
    while (at > 0) {
        size_t parent = (at - 1) / 2;
        if (!before(&candidate, &bpe->heap[parent])) {
            break;
        }
        bpe->heap[at] = bpe->heap[parent];
        at = parent;
    }
    bpe->heap[at] = candidate;
    return L3_OK;
}

static l3_bpe_candidate heap_pop(l3_bpe *bpe) {
    l3_bpe_candidate top = bpe->heap[0];
    l3_bpe_candidate last = bpe->heap[--bpe->heap_length];
    size_t length = bpe->heap_length;
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= length) {
            break;
        }
        if (child + 1 < length && before(&bpe->heap[child + 1], &bpe->heap[child])) {
            child++;
        }
        if (!before(&bpe->heap[child], &last)) {
            break;
        }
        bpe->heap[at] = bpe->heap[child];
        at = child;
    }
    bpe->heap[at] = last;
    return top;
}

/* Remembers the merge of the symbol at `position` with the next one, where there is one. */
static l3_status consider(l3_bpe *bpe, const l3_tables *tables, uint32_t position, l3_error *err) {
    if (position == NONE || bpe->symbols[position].next == NONE) {
        return L3_OK;
    }
    l3_bpe_candidate candidate = {.position = position, .left = bpe->symbols[position].id};
    candidate.right = bpe->symbols[bpe->symbols[position].next].id;
    l3_status status =
        l3_tables_merge(tables, candidate.left, candidate.right, &candidate.rank, &candidate.result, err);
    if (status != L3_OK || candidate.result == L3_NO_TOKEN) {
        return status;
    }
    return heap_push(bpe, candidate, err);
}

/* Carries out a merge, unless one of its symbols is no longer there. */
static l3_status merge(l3_bpe *bpe, const l3_tables *tables, const l3_bpe_candidate *candidate, l3_error *err) {
    l3_bpe_symbol *left = &bpe->symbols[candidate->position];
    if (left->id != candidate->left || left->next == NONE) {
        return L3_OK;
    }
    l3_bpe_symbol *right = &bpe->symbols[left->next];
    if (right->id != candidate->right) {
        return L3_OK;
    }
    left->id = candidate->result;
    right->id = L3_NO_TOKEN;
    left->next = right->next;
    if (left->next != NONE) {
        bpe->symbols[left->next].previous = candidate->position;
    }
    l3_status status = consider(bpe, tables, left->previous, err);
    return status != L3_OK ? status : consider(bpe, tables, candidate->position, err);
}

l3_status l3_bpe_encode(l3_bpe *bpe, const l3_tables *tables, const uint8_t *piece, size_t length, l3_id_sink *sink,
                        l3_error *err) {
    void *array = bpe->symbols;
    l3_status status = reserve(&array, &bpe->symbol_capacity, length, sizeof(l3_bpe_symbol), err);
    if (status != L3_OK) {
        return status;
    }
    bpe->symbols = array;
    bpe->heap_length = 0;
    uint32_t count = (uint32_t)length;
    for (uint32_t i = 0; i < count; i++) {
        bpe->symbols[i].previous = i == 0 ? NONE : i - 1;
        bpe->symbols[i].next = i + 1 == count ? NONE : i + 1;
        status = l3_tables_byte(tables, piece[i], &bpe->symbols[i].id, err);
        if (status != L3_OK) {
            return status;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        status = consider(bpe, tables, i, err);
        if (status != L3_OK) {
            return status;
        }
    }
    while (bpe->heap_length > 0) {
        l3_bpe_candidate candidate = heap_pop(bpe);
        status = merge(bpe, tables, &candidate, err);
        if (status != L3_OK) {
            return status;
        }
    }
    for (uint32_t i = 0; i != NONE; i = bpe->symbols[i].next) {
        l3_id_sink_put(sink, bpe->symbols[i].id);
    }
    return L3_OK;
}

void l3_bpe_free(l3_bpe *bpe) {
    free(bpe->symbols);
    free(bpe->heap);
}
