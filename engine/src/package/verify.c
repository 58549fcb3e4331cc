/* What reads the contents: hashing, and rows of tensors as floats. */
#include <inttypes.h>
#include <string.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/sha256.h"
#include "package/package.h"

#define STEP (4u << 20)

typedef struct verification {
    const l3_package *package;
    l3_progress_fn progress;
    void *user;
    uint64_t done;
    uint64_t total;
} verification;

static l3_status check(verification *v, uint64_t offset, uint64_t length, const uint8_t expected[32], const char *what,
                       l3_error *err) {
    uint8_t digest[32];
    l3_sha256 hash;
    l3_sha256_init(&hash);
    for (uint64_t at = 0; at < length;) {
        uint64_t n = length - at < STEP ? length - at : STEP;
        l3_sha256_update(&hash, v->package->base + offset + at, (size_t)n);
        at += n;
        v->done += n;
        if (v->progress != NULL && v->progress(v->user, v->done, v->total) != 0) {
            return l3_fail(err, L3_E_CANCELLED, "verification was cancelled");
        }
    }
    l3_sha256_final(&hash, digest);
    if (memcmp(digest, expected, 32) != 0) {
        return l3_fail(err, L3_E_FORMAT, "%s is damaged: its SHA-256 does not match the directory", what);
    }
    return L3_OK;
}

l3_status l3_package_verify(const l3_package *package, l3_progress_fn progress, void *user, l3_error *err) {
    static const char *const section_names[] = {"", "the config", "the feature list", "the tokenizer",
                                                "the chat template", "the metadata"};
    verification v = {.package = package, .progress = progress, .user = user};
    if (package == NULL) {
        return l3_fail(err, L3_E_ARG, "l3_package_verify: package is NULL");
    }
    for (uint32_t i = 0; i < package->section_count; i++) {
        v.total += package->sections[i].length;
    }
    for (uint32_t i = 0; i < package->tensor_count; i++) {
        v.total += package->tensors[i].length;
    }
    for (uint32_t i = 0; i < package->section_count; i++) {
        const l3_section *s = &package->sections[i];
        l3_status status = check(&v, s->offset, s->length, s->sha256, section_names[s->kind], err);
        if (status != L3_OK) {
            return status;
        }
    }
    for (uint32_t i = 0; i < package->tensor_count; i++) {
        const l3_tensor_info *t = &package->tensors[i];
        l3_status status = check(&v, t->offset, t->length, t->sha256, t->name, err);
        if (status != L3_OK) {
            return status;
        }
    }
    return L3_OK;
}

/* One row of one tile as floats. */
static void read_tiled_row(uint32_t dtype, const uint8_t *tile, uint32_t lane, uint64_t k, float *out) {
    for (uint64_t i = 0; i < k; i++) {
        const uint8_t *block;
        uint64_t in_group = i % L3_GROUP;
        uint64_t chunk = in_group / 4;
        switch (dtype) {
        case L3_F32X8: out[i] = l3_f32_from_bits(l3_load_u32(tile + (i * 8 + lane) * 4)); break;
        case L3_BF16X8: out[i] = l3_f32_from_bf16(l3_load_u16(tile + (i * 8 + lane) * 2)); break;
        case L3_Q8X8:
            block = tile + i / L3_GROUP * L3_Q8_BLOCK;
            out[i] = l3_f32_from_f16(l3_load_u16(block + 2 * lane)) *
                     (float)(int8_t)block[16 + 32 * chunk + 4 * lane + in_group % 4];
            break;
        default: {
            uint8_t byte;
            block = tile + i / L3_GROUP * L3_Q4_BLOCK;
            byte = block[16 + 32 * (chunk % 4) + 4 * lane + in_group % 4];
            out[i] = l3_f32_from_f16(l3_load_u16(block + 2 * lane)) *
                     (float)((chunk < 4 ? byte & 15 : byte >> 4) - 8);
            break;
        }
        }
    }
}

l3_status l3_package_read_rows(const l3_package *package, size_t index, uint64_t first, uint64_t count, float *out,
                               l3_error *err) {
    const l3_tensor_info *t;
    uint64_t k;
    uint64_t rows;
    uint64_t matrices;
    uint64_t end;
    uint64_t tiles;
    if (package == NULL || out == NULL || index >= package->tensor_count) {
        return l3_fail(err, L3_E_ARG, "l3_package_read_rows: tensor index %zu is out of range", index);
    }
    t = &package->tensors[index];
    k = t->shape[t->rank - 1];
    rows = t->rank >= 2 ? t->shape[t->rank - 2] : 1;
    matrices = t->rank == 3 ? t->shape[0] : 1;
    if (!l3_add_u64(first, count, &end) || end > rows * matrices) {
        return l3_fail(err, L3_E_ARG, "rows %" PRIu64 " to %" PRIu64 " of %s; it has %" PRIu64, first, end, t->name,
                       rows * matrices);
    }
    tiles = (rows + L3_TILE_ROWS - 1) / L3_TILE_ROWS;
    for (uint64_t r = first; r < end; r++, out += k) {
        const uint8_t *base = package->base + t->offset;
        if (t->dtype == L3_F32) {
            memcpy(out, base + r * k * 4, (size_t)k * 4);
        } else {
            uint64_t tile_bytes = t->length / (tiles * matrices);
            uint64_t tile = r / rows * tiles + r % rows / L3_TILE_ROWS;
            read_tiled_row(t->dtype, base + tile * tile_bytes, (uint32_t)(r % rows % L3_TILE_ROWS), k, out);
        }
    }
    return L3_OK;
}
