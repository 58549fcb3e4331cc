/* How likely tokens are before any sampling. */
#include <math.h>

#include "base/error.h"
#include "package/package.h"
#include "text/tables.h"

#define MAX_TOP 64u

/* The best so far, likeliest first; ids arrive in ascending order, so among equals the earlier one stays in front. */
typedef struct best {
    const float *logits;
    uint32_t count;
    uint32_t capacity;
    int32_t ids[MAX_TOP];
} best;

static void offer(best *b, int32_t id) {
    float logit = b->logits[id];
    uint32_t at = b->count;
    if (b->capacity == 0 || (at == b->capacity && !(logit > b->logits[b->ids[at - 1]]))) {
        return;
    }
    if (at == b->capacity) {
        at--; /* the last one falls out */
    } else {
        b->count++;
    }
    for (; at > 0 && logit > b->logits[b->ids[at - 1]]; at--) {
        b->ids[at] = b->ids[at - 1];
    }
    b->ids[at] = id;
}

static bool is_hole(const l3_tables *tables, uint32_t id) { return (tables->token_flags[id] & L3_TOKEN_HOLE) != 0; }

/* Finds the largest logit and the best ids. */
static l3_status survey(const l3_tables *tables, const float *logits, best *b, float *largest, l3_error *err) {
    *largest = -INFINITY;
    for (uint32_t id = 0; id < tables->token_count; id++) {
        if (is_hole(tables, id)) {
            continue;
        }
        if (!isfinite(logits[id])) {
            return l3_fail(err, L3_E_INTERNAL, "the logit of token %u is not finite", id);
        }
        *largest = logits[id] > *largest ? logits[id] : *largest;
        offer(b, (int32_t)id);
    }
    return L3_OK;
}

l3_status l3_log_probabilities(const l3_package *package, const float *logits, int32_t id, float *logprob,
                               uint32_t top, int32_t *top_ids, float *top_logprobs, l3_error *err) {
    best b = {.logits = logits, .capacity = top};
    l3_tables tables;
    const void *section;
    size_t length;
    float largest;
    double total = 0.0;
    double norm;
    l3_status status;
    if (package == NULL || logits == NULL || logprob == NULL || (top > 0 && (top_ids == NULL || top_logprobs == NULL))) {
        return l3_fail(err, L3_E_ARG, "l3_log_probabilities: NULL argument");
    }
    if (top > MAX_TOP) {
        return l3_fail(err, L3_E_ARG, "the %u likeliest tokens; at most %u are possible", top, MAX_TOP);
    }
    if ((status = l3_package_section(package, L3_SECTION_TOKENIZER, &section, &length, err)) != L3_OK ||
        (status = l3_tables_open(section, length, package->config.token_count, &tables, err)) != L3_OK) {
        return status;
    }
    if (id < 0 || (uint32_t)id >= tables.token_count || is_hole(&tables, (uint32_t)id)) {
        return l3_fail(err, L3_E_ARG, "the probability of id %d, which no token has", id);
    }
    if ((status = survey(&tables, logits, &b, &largest, err)) != L3_OK) {
        return status;
    }
    if (b.count < top) {
        return l3_fail(err, L3_E_ARG, "the %u likeliest tokens; there are %u", top, b.count);
    }
    for (uint32_t i = 0; i < tables.token_count; i++) {
        if (!is_hole(&tables, i)) {
            total += exp((double)logits[i] - (double)largest);
        }
    }
    norm = (double)largest + log(total);
    *logprob = (float)((double)logits[id] - norm);
    for (uint32_t i = 0; i < top; i++) {
        top_ids[i] = b.ids[i];
        top_logprobs[i] = (float)((double)logits[b.ids[i]] - norm);
    }
    return L3_OK;
}
