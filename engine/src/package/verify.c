/* What reads the contents: hashing, and rows of tensors as floats. By pread, so that nothing more gets mapped. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/sha256.h"
#include "package/package.h"

#define STEP L3_SHA256_STEP

typedef struct verification {
    const l3_package *package;
    l3_progress_fn progress;
    void *user;
    uint64_t done;
    uint64_t total;
    uint64_t end;    /* of what was looked at: the next part may start later, with zeros in between */
    uint8_t *buffer; /* [STEP] */
} verification;

static l3_status read_at(const l3_package *package, uint64_t offset, void *out, size_t length, l3_error *err) {
    uint8_t *p = out;
    while (length > 0) {
        ssize_t n = pread(package->fd, p, length, (off_t)(package->start + offset));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return l3_fail_errno(err, L3_E_IO, n < 0 ? errno : EIO, "cannot read the package at %" PRIu64, offset);
        }
        p += n;
        offset += (uint64_t)n;
        length -= (size_t)n;
    }
    return L3_OK;
}

/* Bytes up to the next part are zero, so that a file has no place for anything that no hash covers. */
static l3_status check_gap(verification *v, uint64_t offset, l3_error *err) {
    for (uint64_t at = v->end; at < offset;) {
        uint64_t n = offset - at < STEP ? offset - at : STEP;
        l3_status status = read_at(v->package, at, v->buffer, (size_t)n, err);
        if (status != L3_OK) {
            return status;
        }
        for (uint64_t i = 0; i < n; i++) {
            if (v->buffer[i] != 0) {
                return l3_fail(err, L3_E_FORMAT, "byte %" PRIu64 " lies between two parts and is not zero", at + i);
            }
        }
        at += n;
    }
    return L3_OK;
}

static l3_status check(verification *v, uint64_t offset, uint64_t length, const uint8_t expected[32], const char *what,
                       l3_error *err) {
    uint8_t digest[32];
    l3_sha256 hash;
    l3_status gap = check_gap(v, offset, err);
    if (gap != L3_OK) {
        return gap;
    }
    v->end = offset + length;
    l3_sha256_init(&hash);
    for (uint64_t at = 0; at < length;) {
        uint64_t n = length - at < STEP ? length - at : STEP;
        l3_status status = read_at(v->package, offset + at, v->buffer, (size_t)n, err);
        if (status != L3_OK) {
            return status;
        }
        l3_sha256_update(&hash, v->buffer, (size_t)n);
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
    l3_status status = L3_OK;
    if (package == NULL) {
        return l3_fail(err, L3_E_ARG, "l3_package_verify: package is NULL");
    }
    v.buffer = l3_alloc(1, STEP);
    if (v.buffer == NULL) {
        return l3_fail(err, L3_E_MEMORY, "no memory for %u bytes to verify with", STEP);
    }
    v.end = package->directory_end;
    for (uint32_t i = 0; i < package->section_count; i++) {
        v.total += package->sections[i].length;
    }
    for (uint32_t i = 0; i < package->tensor_count; i++) {
        v.total += package->tensors[i].length;
    }
    for (uint32_t i = 0; i < package->section_count && status == L3_OK; i++) {
        const l3_section *s = &package->sections[i];
        status = check(&v, s->offset, s->length, s->sha256, section_names[s->kind], err);
    }
    for (uint32_t i = 0; i < package->tensor_count && status == L3_OK; i++) {
        const l3_tensor_info *t = &package->tensors[i];
        char what[96];
        snprintf(what, sizeof what, "tensor %s", t->name);
        status = check(&v, t->offset, t->length, t->sha256, what, err);
    }
    l3_free(v.buffer);
    return status;
}

l3_status l3_package_read_rows(const l3_package *package, size_t index, uint64_t first, uint64_t count, float *out,
                               l3_error *err) {
    const l3_tensor_info *t;
    uint64_t k;
    uint64_t rows;
    uint64_t matrices;
    uint64_t end;
    uint64_t tiles;
    uint64_t tile_bytes;
    uint64_t held = UINT64_MAX;
    uint8_t *tile;
    l3_status status = L3_OK;
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
    tile_bytes = t->dtype == L3_F32 ? k * 4 : t->length / (tiles * matrices);
    tile = l3_alloc(1, (size_t)tile_bytes);
    if (tile == NULL) {
        return l3_fail(err, L3_E_MEMORY, "no memory for %" PRIu64 " bytes of %s", tile_bytes, t->name);
    }
    for (uint64_t r = first; r < end && status == L3_OK; r++, out += k) {
        if (t->dtype == L3_F32) {
            status = read_at(package, t->offset + r * k * 4, out, (size_t)k * 4, err);
        } else {
            uint64_t wanted = r / rows * tiles + r % rows / L3_TILE_ROWS;
            if (wanted != held) {
                status = read_at(package, t->offset + wanted * tile_bytes, tile, (size_t)tile_bytes, err);
                held = wanted;
            }
            if (status == L3_OK) {
                l3_read_tiled_row(t->dtype, tile, (uint32_t)(r % rows % L3_TILE_ROWS), k, out);
            }
        }
    }
    l3_free(tile);
    return status;
}
