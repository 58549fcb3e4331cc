/* What tells packages apart that compute differently. Where a tensor lies in the file makes no difference, and neither
 * do tokenizer, template and metadata: none of them reaches a session. */
#include <string.h>

#include "base/error.h"
#include "base/sha256.h"
#include "package/package.h"

/* In front of everything, so that the digest is that of nothing else. */
static const char domain[] = "ling3 package identity 1";

static void add_tensor(l3_sha256 *hash, const l3_tensor_info *t) {
    l3_sha256_update(hash, t->name, strlen(t->name) + 1);
    l3_sha256_update(hash, &t->dtype, sizeof t->dtype);
    l3_sha256_update(hash, &t->rank, sizeof t->rank);
    l3_sha256_update(hash, t->shape, sizeof t->shape);
    l3_sha256_update(hash, &t->group, sizeof t->group);
    l3_sha256_update(hash, t->sha256, sizeof t->sha256);
}

l3_status l3_package_identity(const l3_package *package, uint8_t out[32], l3_error *err) {
    l3_sha256 hash;
    if (package == NULL || out == NULL) {
        return l3_fail(err, L3_E_ARG, "l3_package_identity: NULL argument");
    }
    l3_sha256_init(&hash);
    l3_sha256_update(&hash, domain, sizeof domain);
    l3_sha256_update(&hash, &package->config, sizeof package->config);
    for (uint32_t i = 0; i < package->tensor_count; i++) {
        add_tensor(&hash, &package->tensors[i]);
    }
    l3_sha256_final(&hash, out);
    return L3_OK;
}
