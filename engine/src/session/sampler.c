/* From logits to a token. All arithmetic is in double on one thread, so equal seeds give equal ids everywhere. */
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "package/package.h"
#include "text/tables.h"

typedef struct candidate {
    float logit;
    int32_t id;
} candidate;

typedef struct bias {
    int32_t id;
    float value;
} bias;

struct l3_sampler {
    l3_sampling sampling;
    uint32_t token_count;
    uint64_t random;
    int32_t *ids;          /* [id_count]: every id that is a token, in ascending order */
    size_t id_count;
    float *penalised;      /* [token_count] */
    candidate *candidates; /* [token_count], of which id_count are used */
    double *weights;       /* likewise; before that, how often an id occurs */
    bias *biases;          /* [bias_count] */
    size_t bias_count;
};

/* SplitMix64 (Steele, Lea, Flood 2014): every seed, zero included, gives a full-period stream. */
static uint64_t next_random(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static l3_status check_sampling(const l3_sampling *s, l3_error *err) {
    if (!(s->temperature >= 0.0f && s->temperature <= 100.0f)) {
        return l3_fail(err, L3_E_ARG, "temperature %g; 0 to 100 is possible", (double)s->temperature);
    }
    if (!(s->top_p > 0.0f && s->top_p <= 1.0f)) {
        return l3_fail(err, L3_E_ARG, "top_p %g; above 0, up to 1 is possible", (double)s->top_p);
    }
    if (!(s->min_p >= 0.0f && s->min_p < 1.0f)) {
        return l3_fail(err, L3_E_ARG, "min_p %g; 0 up to, not including, 1 is possible", (double)s->min_p);
    }
    if (!(s->repetition_penalty > 0.0f && s->repetition_penalty <= 100.0f)) {
        return l3_fail(err, L3_E_ARG, "repetition_penalty %g; above 0, up to 100 is possible",
                       (double)s->repetition_penalty);
    }
    if (!(s->frequency_penalty >= -2.0f && s->frequency_penalty <= 2.0f)) {
        return l3_fail(err, L3_E_ARG, "frequency_penalty %g; -2 to 2 is possible", (double)s->frequency_penalty);
    }
    if (!(s->presence_penalty >= -2.0f && s->presence_penalty <= 2.0f)) {
        return l3_fail(err, L3_E_ARG, "presence_penalty %g; -2 to 2 is possible", (double)s->presence_penalty);
    }
    return L3_OK;
}

/* A vocabulary may have holes: numbers that no token has. Their logits mean nothing, like those of the padding rows. */
static l3_status list_tokens(l3_sampler *sampler, const l3_package *package, l3_error *err) {
    l3_tables tables;
    const void *section;
    size_t length;
    l3_status status = l3_package_section(package, L3_SECTION_TOKENIZER, &section, &length, err);
    if (status != L3_OK ||
        (status = l3_tables_open(section, length, package->config.token_count, &tables, err)) != L3_OK) {
        return status;
    }
    for (uint32_t id = 0; id < tables.token_count; id++) {
        if ((tables.token_flags[id] & L3_TOKEN_HOLE) == 0) {
            sampler->ids[sampler->id_count++] = (int32_t)id;
        }
    }
    if (sampler->id_count == 0) {
        return l3_fail(err, L3_E_FORMAT, "tokenizer: every one of %u tokens is a hole", tables.token_count);
    }
    return L3_OK;
}

l3_status l3_sampler_create(const l3_package *package, const l3_sampling *sampling, l3_sampler **out, l3_error *err) {
    l3_sampler *sampler;
    l3_status status;
    if (out != NULL) {
        *out = NULL;
    }
    if (package == NULL || sampling == NULL || out == NULL) {
        return l3_fail(err, L3_E_ARG, "l3_sampler_create: NULL argument");
    }
    l3_error_clear(err);
    if ((status = check_sampling(sampling, err)) != L3_OK) {
        return status;
    }
    sampler = l3_alloc(1, sizeof *sampler);
    if (sampler == NULL) {
        return l3_fail(err, L3_E_MEMORY, "no memory for a sampler");
    }
    sampler->sampling = *sampling;
    sampler->random = sampling->seed;
    sampler->token_count = package->config.token_count;
    sampler->ids = l3_alloc(sampler->token_count, sizeof *sampler->ids);
    sampler->penalised = l3_alloc(sampler->token_count, sizeof *sampler->penalised);
    sampler->candidates = l3_alloc(sampler->token_count, sizeof *sampler->candidates);
    sampler->weights = l3_alloc(sampler->token_count, sizeof *sampler->weights);
    if (sampler->ids == NULL || sampler->penalised == NULL || sampler->candidates == NULL || sampler->weights == NULL) {
        l3_sampler_destroy(sampler);
        return l3_fail(err, L3_E_MEMORY, "no memory to sample from %u tokens", package->config.token_count);
    }
    if ((status = list_tokens(sampler, package, err)) != L3_OK) {
        l3_sampler_destroy(sampler);
        return status;
    }
    *out = sampler;
    return L3_OK;
}

void l3_sampler_destroy(l3_sampler *sampler) {
    if (sampler == NULL) {
        return;
    }
    l3_free(sampler->ids);
    l3_free(sampler->penalised);
    l3_free(sampler->candidates);
    l3_free(sampler->weights);
    l3_free(sampler->biases);
    l3_free(sampler);
}

/* The ids are in ascending order. */
static bool is_token(const l3_sampler *s, int32_t id) {
    size_t low = 0;
    size_t high = s->id_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (s->ids[middle] < id) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < s->id_count && s->ids[low] == id;
}

l3_status l3_sampler_bias(l3_sampler *sampler, const int32_t *ids, const float *biases, size_t count, l3_error *err) {
    bias *list = NULL;
    if (sampler == NULL || (count > 0 && (ids == NULL || biases == NULL))) {
        return l3_fail(err, L3_E_ARG, "l3_sampler_bias: NULL argument");
    }
    for (size_t i = 0; i < count; i++) {
        if (!is_token(sampler, ids[i])) {
            return l3_fail(err, L3_E_ARG, "a bias for id %d, which no token has", ids[i]);
        }
        if (!isfinite(biases[i])) {
            return l3_fail(err, L3_E_ARG, "the bias for token %d is not finite", ids[i]);
        }
    }
    if (count > 0 && (list = l3_alloc(count, sizeof *list)) == NULL) {
        return l3_fail(err, L3_E_MEMORY, "no memory for %zu biases", count);
    }
    for (size_t i = 0; i < count; i++) {
        list[i] = (bias){.id = ids[i], .value = biases[i]};
    }
    l3_free(sampler->biases);
    sampler->biases = list;
    sampler->bias_count = count;
    return L3_OK;
}

/* Higher logit first, lower id first among equals: a total order, so every selection is unique. */
static int before(candidate a, candidate b) { return a.logit > b.logit || (a.logit == b.logit && a.id < b.id); }

static void sift(candidate *heap, size_t root, size_t n) {
    candidate item = heap[root];
    for (;;) {
        size_t child = 2 * root + 1;
        if (child >= n) {
            break;
        }
        if (child + 1 < n && before(heap[child], heap[child + 1])) {
            child++; /* the worse of the two rises: the root is the worst of the heap */
        }
        if (!before(item, heap[child])) {
            break;
        }
        heap[root] = heap[child];
        root = child;
    }
    heap[root] = item;
}

/* Leaves the best `keep` candidates in front, best first. */
static void select_best(candidate *c, size_t n, size_t keep) {
    for (size_t i = keep / 2; i-- > 0;) {
        sift(c, i, keep);
    }
    for (size_t i = keep; i < n; i++) {
        if (before(c[i], c[0])) {
            c[0] = c[i];
            sift(c, 0, keep);
        }
    }
    for (size_t i = keep; i-- > 1;) {
        candidate worst = c[0];
        c[0] = c[i];
        c[i] = worst;
        sift(c, 0, i);
    }
}

/* A sum that leaves float stops at its end: an infinite logit would leave no probability to anything else. */
static float limited(double logit) {
    if (logit > (double)FLT_MAX) {
        return FLT_MAX;
    }
    return logit < -(double)FLT_MAX ? -FLT_MAX : (float)logit;
}

static bool in_vocabulary(const l3_sampler *s, int32_t id) { return id >= 0 && (uint32_t)id < s->token_count; }

/* Divides positive and multiplies negative logits, once per distinct token (Keskar et al. 2019). */
static void penalise_repetition(l3_sampler *s, const l3_choice *choice) {
    float penalty = s->sampling.repetition_penalty;
    for (size_t i = 0; i < choice->history_length; i++) {
        int32_t id = choice->history[i];
        if (in_vocabulary(s, id)) {
            float logit = choice->logits[id];
            s->penalised[id] = limited((double)(logit > 0.0f ? logit / penalty : logit * penalty));
        }
    }
}

/* Per distinct token of the reply: its count times one penalty, plus the other (OpenAI's API reference). */
static void penalise_reply(l3_sampler *s, const l3_choice *choice) {
    const int32_t *reply = choice->history + (choice->history_length - choice->reply_length);
    size_t n = choice->reply_length;
    for (size_t i = 0; i < n; i++) {
        if (in_vocabulary(s, reply[i])) {
            s->weights[reply[i]] = 0.0;
        }
    }
    for (size_t i = 0; i < n; i++) {
        if (in_vocabulary(s, reply[i])) {
            s->weights[reply[i]] += 1.0;
        }
    }
    for (size_t i = 0; i < n; i++) {
        int32_t id = reply[i];
        if (in_vocabulary(s, id) && s->weights[id] > 0.0) {
            double less = s->weights[id] * (double)s->sampling.frequency_penalty + (double)s->sampling.presence_penalty;
            s->penalised[id] = limited((double)s->penalised[id] - less);
            s->weights[id] = 0.0;
        }
    }
}

static void adjust(l3_sampler *s, const l3_choice *choice) {
    memcpy(s->penalised, choice->logits, s->token_count * sizeof *s->penalised);
    if (s->sampling.repetition_penalty != 1.0f) {
        penalise_repetition(s, choice);
    }
    if (choice->reply_length > 0 &&
        (s->sampling.frequency_penalty != 0.0f || s->sampling.presence_penalty != 0.0f)) {
        penalise_reply(s, choice);
    }
    for (size_t i = 0; i < s->bias_count; i++) {
        bias b = s->biases[i];
        s->penalised[b.id] = limited((double)s->penalised[b.id] + (double)b.value);
    }
}

/* How many ids may be picked. */
static size_t list_candidates(l3_sampler *s, const uint32_t *allowed) {
    size_t n = 0;
    for (size_t i = 0; i < s->id_count; i++) {
        int32_t id = s->ids[i];
        if (allowed == NULL || (allowed[id / 32] >> (id % 32) & 1u) != 0) {
            s->candidates[n++] = (candidate){.logit = s->penalised[id], .id = id};
        }
    }
    return n;
}

/* Index into the candidates, which are sorted. */
static size_t draw(l3_sampler *s, size_t n) {
    double temperature = (double)s->sampling.temperature;
    double top = (double)s->candidates[0].logit;
    double total = 0.0;
    double kept = 0.0;
    double target;
    size_t keep = 0;
    for (size_t i = 0; i < n; i++) {
        s->weights[i] = exp(((double)s->candidates[i].logit - top) / temperature);
        total += s->weights[i];
    }
    while (keep < n && (keep == 0 || (kept < (double)s->sampling.top_p * total &&
                                      s->weights[keep] >= (double)s->sampling.min_p * s->weights[0]))) {
        kept += s->weights[keep++];
    }
    target = (double)(next_random(&s->random) >> 11) * 0x1p-53 * kept;
    for (size_t i = 0; i < keep; i++) {
        target -= s->weights[i];
        if (target < 0.0) {
            return i;
        }
    }
    return keep - 1;
}

l3_status l3_sampler_sample(l3_sampler *sampler, const l3_choice *choice, int32_t *id, l3_error *err) {
    size_t n;
    size_t keep;
    if (sampler == NULL || choice == NULL || id == NULL || choice->logits == NULL ||
        (choice->history == NULL && choice->history_length > 0)) {
        return l3_fail(err, L3_E_ARG, "l3_sampler_sample: NULL argument");
    }
    if (choice->reply_length > choice->history_length) {
        return l3_fail(err, L3_E_ARG, "a reply of %zu ids in a history of %zu", choice->reply_length,
                       choice->history_length);
    }
    for (size_t i = 0; i < sampler->id_count; i++) {
        if (!isfinite(choice->logits[sampler->ids[i]])) {
            return l3_fail(err, L3_E_INTERNAL, "the logit of token %d is not finite", sampler->ids[i]);
        }
    }
    adjust(sampler, choice);
    n = list_candidates(sampler, choice->allowed);
    if (n == 0) {
        return l3_fail(err, L3_E_ARG, "none of the tokens is allowed");
    }
    keep = sampler->sampling.top_k > 0 && sampler->sampling.top_k < n ? sampler->sampling.top_k : n;
    if (sampler->sampling.temperature == 0.0f) {
        keep = 1;
    }
    select_best(sampler->candidates, n, keep);
    *id = sampler->candidates[keep == 1 ? 0 : draw(sampler, keep)].id;
    return L3_OK;
}
