/* Opening a package: every number is checked before anything it points to is touched. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/sha256.h"
#include "package/package.h"

#define HEADER_BYTES 192u
#define SECTION_BYTES 64u
#define TENSOR_BYTES 192u
#define NAME_BYTES 80u
#define MAX_SECTIONS 64u
#define MAX_TENSORS 65536u

static const uint8_t magic[8] = {0x89, 'L', '3', 'R', '\r', '\n', 0x1a, '\n'};

typedef struct header {
    uint64_t file_bytes;
    uint64_t directory_offset;
    uint64_t directory_bytes;
    uint32_t section_count;
    uint32_t tensor_count;
    uint64_t data_offset;
    uint64_t trunk_end;
    uint8_t directory_sha256[32];
} header;

static bool hash_is(const void *data, size_t length, const uint8_t expected[32]) {
    uint8_t digest[32];
    l3_sha256 hash;
    l3_sha256_init(&hash);
    l3_sha256_update(&hash, data, length);
    l3_sha256_final(&hash, digest);
    return memcmp(digest, expected, 32) == 0;
}

static bool all_zero(const uint8_t *p, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (p[i] != 0) {
            return false;
        }
    }
    return true;
}

static l3_status read_header(const l3_package *package, header *h, l3_error *err) {
    uint8_t p[HEADER_BYTES];
    uint64_t directory;
    ssize_t n = pread(package->fd, p, sizeof p, (off_t)package->start);
    if (n != (ssize_t)sizeof p) {
        return l3_fail_errno(err, L3_E_IO, n < 0 ? errno : EIO, "cannot read the header");
    }
    if (memcmp(p, magic, sizeof magic) != 0) {
        return l3_fail(err, L3_E_FORMAT, "not an .l3r package: the first 8 bytes are not its magic");
    }
    if (l3_load_u32(p + 8) != 1) {
        return l3_fail(err, L3_E_UNSUPPORTED, "package version %u; this engine reads version 1", l3_load_u32(p + 8));
    }
    if (l3_load_u32(p + 12) != HEADER_BYTES) {
        return l3_fail(err, L3_E_FORMAT, "header length is %u; %u is expected", l3_load_u32(p + 12), HEADER_BYTES);
    }
    if (!hash_is(p, 160, p + 160)) {
        return l3_fail(err, L3_E_FORMAT, "the header is damaged: its SHA-256 does not match");
    }
    h->file_bytes = l3_load_u64(p + 16);
    h->directory_offset = l3_load_u64(p + 24);
    h->directory_bytes = l3_load_u64(p + 32);
    h->section_count = l3_load_u32(p + 40);
    h->tensor_count = l3_load_u32(p + 44);
    h->data_offset = l3_load_u64(p + 48);
    h->trunk_end = l3_load_u64(p + 56);
    if (h->file_bytes != package->size) {
        return l3_fail(err, L3_E_FORMAT, "the file has %llu bytes; its header says %llu (%s)",
                       (unsigned long long)package->size, (unsigned long long)h->file_bytes,
                       package->size < h->file_bytes ? "truncated, or still being copied" : "something was appended");
    }
    if (!all_zero(p + 96, 64)) {
        return l3_fail(err, L3_E_FORMAT, "reserved header bytes are not zero");
    }
    if (h->section_count > MAX_SECTIONS || h->tensor_count > MAX_TENSORS) {
        return l3_fail(err, L3_E_FORMAT, "%u sections and %u tensors; at most %u and %u are possible",
                       h->section_count, h->tensor_count, MAX_SECTIONS, MAX_TENSORS);
    }
    directory = (uint64_t)h->section_count * SECTION_BYTES + (uint64_t)h->tensor_count * TENSOR_BYTES;
    if (h->directory_offset != HEADER_BYTES || h->directory_bytes != directory) {
        return l3_fail(err, L3_E_FORMAT, "the directory is %llu bytes at %llu; %llu bytes at %u are expected",
                       (unsigned long long)h->directory_bytes, (unsigned long long)h->directory_offset,
                       (unsigned long long)directory, HEADER_BYTES);
    }
    if (h->data_offset % L3_ALIGNMENT != 0 || h->data_offset < HEADER_BYTES + directory ||
        h->data_offset > h->file_bytes) {
        return l3_fail(err, L3_E_FORMAT, "data offset %llu is not a 64 KiB boundary between directory and end",
                       (unsigned long long)h->data_offset);
    }
    if (h->trunk_end < h->data_offset || h->trunk_end > h->file_bytes) {
        return l3_fail(err, L3_E_FORMAT, "the trunk ends at %llu, outside the data between %llu and %llu",
                       (unsigned long long)h->trunk_end, (unsigned long long)h->data_offset,
                       (unsigned long long)h->file_bytes);
    }
    memcpy(h->directory_sha256, p + 64, 32);
    return L3_OK;
}

static l3_status check_directory(const l3_package *package, const header *h, l3_error *err) {
    if (!hash_is(package->base + h->directory_offset, (size_t)h->directory_bytes, h->directory_sha256)) {
        return l3_fail(err, L3_E_FORMAT, "the directory is damaged: its SHA-256 does not match");
    }
    return L3_OK;
}

static l3_status read_sections(l3_package *package, const header *h, l3_error *err) {
    uint64_t previous_end = h->directory_offset + h->directory_bytes;
    for (uint32_t i = 0; i < h->section_count; i++) {
        const uint8_t *p = package->base + h->directory_offset + (size_t)i * SECTION_BYTES;
        l3_section *s = &package->sections[i];
        uint64_t end;
        s->kind = l3_load_u32(p);
        s->offset = l3_load_u64(p + 8);
        s->length = l3_load_u64(p + 16);
        memcpy(s->sha256, p + 24, 32);
        if (l3_load_u32(p + 4) != 0 || !all_zero(p + 56, 8)) {
            return l3_fail(err, L3_E_FORMAT, "section %u: reserved bytes are not zero", i);
        }
        if (s->kind < L3_SECTION_CONFIG || s->kind > L3_SECTION_METADATA) {
            return l3_fail(err, L3_E_UNSUPPORTED, "section %u is of kind %u, which this engine does not know", i,
                           s->kind);
        }
        if (!l3_add_u64(s->offset, s->length, &end) || s->offset % 64 != 0 || s->offset < previous_end ||
            end > h->data_offset) {
            return l3_fail(err, L3_E_FORMAT, "section %u (%llu bytes at %llu) is misplaced or overlaps", i,
                           (unsigned long long)s->length, (unsigned long long)s->offset);
        }
        for (uint32_t j = 0; j < i; j++) {
            if (package->sections[j].kind == s->kind) {
                return l3_fail(err, L3_E_FORMAT, "section kind %u occurs twice", s->kind);
            }
        }
        previous_end = end;
    }
    package->section_count = h->section_count;
    return L3_OK;
}

static l3_status read_tensor(l3_package *package, const header *h, const uint8_t *p, uint32_t i, uint64_t previous_end,
                             l3_error *err) {
    l3_tensor_info *t = &package->tensors[i];
    uint64_t exact;
    uint64_t end;
    if (p[0] == 0 || memchr(p, 0, NAME_BYTES) == NULL) {
        return l3_fail(err, L3_E_FORMAT, "tensor %u: the name is empty or not terminated", i);
    }
    t->name = (const char *)p;
    if (!all_zero(p + strlen(t->name), NAME_BYTES - strlen(t->name))) {
        return l3_fail(err, L3_E_FORMAT, "tensor %s: something follows the end of its name", t->name);
    }
    t->dtype = l3_load_u32(p + 80);
    t->rank = l3_load_u32(p + 84);
    for (uint32_t d = 0; d < 4; d++) {
        t->shape[d] = l3_load_u64(p + 88 + 8 * d);
    }
    t->offset = l3_load_u64(p + 120);
    t->length = l3_load_u64(p + 128);
    t->group = l3_load_u32(p + 136);
    memcpy(t->sha256, p + 144, 32);
    if (l3_load_u32(p + 140) != 0 || !all_zero(p + 176, 16)) {
        return l3_fail(err, L3_E_FORMAT, "tensor %s: reserved bytes are not zero", t->name);
    }
    if (t->dtype > L3_Q4X8) {
        return l3_fail(err, L3_E_UNSUPPORTED, "tensor %s has type %u, which this engine does not know", t->name,
                       t->dtype);
    }
    if (!l3_tensor_length(t->dtype, t->rank, t->shape, &exact)) {
        return l3_fail(err, L3_E_FORMAT, "tensor %s: shape [%llu, %llu, %llu] of rank %u is not possible for %s",
                       t->name, (unsigned long long)t->shape[0], (unsigned long long)t->shape[1],
                       (unsigned long long)t->shape[2], t->rank, l3_dtype_name(t->dtype));
    }
    if (t->length != exact) {
        return l3_fail(err, L3_E_FORMAT, "tensor %s has %llu bytes; its type and shape make %llu", t->name,
                       (unsigned long long)t->length, (unsigned long long)exact);
    }
    if (!l3_add_u64(t->offset, t->length, &end) || t->offset % L3_ALIGNMENT != 0 || t->offset < previous_end ||
        end > h->file_bytes) {
        return l3_fail(err, L3_E_FORMAT, "tensor %s (%llu bytes at %llu) is misplaced, overlaps or leaves the file",
                       t->name, (unsigned long long)t->length, (unsigned long long)t->offset);
    }
    if (t->group > 1 || (t->group == 0 && end > h->trunk_end) || (t->group == 1 && t->offset < h->trunk_end)) {
        return l3_fail(err, L3_E_FORMAT, "tensor %s: group %u does not agree with the trunk's end at %llu", t->name,
                       t->group, (unsigned long long)h->trunk_end);
    }
    return L3_OK;
}

static l3_status read_tensors(l3_package *package, const header *h, l3_error *err) {
    const uint8_t *table = package->base + h->directory_offset + (size_t)h->section_count * SECTION_BYTES;
    uint64_t previous_end = h->data_offset;
    uint64_t trunk_end = h->data_offset;
    for (uint32_t i = 0; i < h->tensor_count; i++) {
        const l3_tensor_info *t = &package->tensors[i];
        l3_status status = read_tensor(package, h, table + (size_t)i * TENSOR_BYTES, i, previous_end, err);
        if (status != L3_OK) {
            return status;
        }
        previous_end = t->offset + t->length;
        if (t->group == 0) {
            trunk_end = previous_end;
        }
    }
    if (previous_end != h->file_bytes || trunk_end != h->trunk_end) {
        return l3_fail(err, L3_E_FORMAT,
                       "the last tensor ends at %llu and the trunk at %llu; the header says %llu and %llu",
                       (unsigned long long)previous_end, (unsigned long long)trunk_end,
                       (unsigned long long)h->file_bytes, (unsigned long long)h->trunk_end);
    }
    package->tensor_count = h->tensor_count;
    package->trunk_end = h->trunk_end;
    package->directory_end = h->directory_offset + h->directory_bytes;
    return L3_OK;
}

static const l3_section *find_section(const l3_package *package, uint32_t kind) {
    for (uint32_t i = 0; i < package->section_count; i++) {
        if (package->sections[i].kind == kind) {
            return &package->sections[i];
        }
    }
    return NULL;
}

static l3_status read_config(l3_package *package, l3_error *err) {
    static const uint32_t required[] = {L3_SECTION_CONFIG, L3_SECTION_FEATURES, L3_SECTION_TOKENIZER,
                                        L3_SECTION_METADATA};
    const l3_section *config;
    const l3_section *features;
    l3_status status;
    for (size_t i = 0; i < sizeof required / sizeof required[0]; i++) {
        if (find_section(package, required[i]) == NULL) {
            return l3_fail(err, L3_E_FORMAT, "the package has no section of kind %u", required[i]);
        }
    }
    config = find_section(package, L3_SECTION_CONFIG);
    features = find_section(package, L3_SECTION_FEATURES);
    if (config->length != sizeof package->config) {
        return l3_fail(err, L3_E_FORMAT, "the config section has %llu bytes; %zu are expected",
                       (unsigned long long)config->length, sizeof package->config);
    }
    if (features->length > 4096) {
        return l3_fail(err, L3_E_FORMAT, "the feature list has %llu bytes; at most 4096 are possible",
                       (unsigned long long)features->length);
    }
    if (!hash_is(package->base + config->offset, (size_t)config->length, config->sha256) ||
        !hash_is(package->base + features->offset, (size_t)features->length, features->sha256)) {
        return l3_fail(err, L3_E_FORMAT, "config or feature list is damaged: its SHA-256 does not match");
    }
    status = l3_features_check((const char *)package->base + features->offset, (size_t)features->length, err);
    if (status != L3_OK) {
        return status;
    }
    memcpy(&package->config, package->base + config->offset, sizeof package->config);
    return l3_config_validate(&package->config, err);
}

/* What of a file is the package: all of it, or `length` bytes from `start` on. */
typedef struct window {
    bool whole;
    uint64_t start;
    uint64_t length;
} window;

static l3_status place_window(l3_package *package, const window *w, uint64_t file_bytes, const char *path,
                              l3_error *err) {
    uint64_t end;
    package->start = w->start;
    package->size = w->whole ? file_bytes : w->length;
    if (w->start % L3_ALIGNMENT != 0) {
        return l3_fail(err, L3_E_ARG, "the package starts at byte %llu, which is no multiple of %u",
                       (unsigned long long)w->start, L3_ALIGNMENT);
    }
    if (!l3_add_u64(w->start, package->size, &end) || end > file_bytes) {
        return l3_fail(err, L3_E_FORMAT, "%.300s has %llu bytes; a package of %llu bytes at %llu is expected in it", path,
                       (unsigned long long)file_bytes, (unsigned long long)package->size, (unsigned long long)w->start);
    }
    if (package->size < HEADER_BYTES) {
        return l3_fail(err, L3_E_FORMAT, "the %s has %llu bytes; a package has at least %u", w->whole ? "file" : "window",
                       (unsigned long long)package->size, HEADER_BYTES);
    }
    return L3_OK;
}

static l3_status open_file(l3_package *package, const char *path, const window *w, l3_error *err) {
    struct stat st;
    package->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer must not hold us up */
    if (package->fd < 0) {
        return l3_fail_errno(err, L3_E_IO, errno, "cannot open %.300s", path);
    }
    if (fstat(package->fd, &st) != 0) {
        return l3_fail_errno(err, L3_E_IO, errno, "cannot stat %.300s", path);
    }
    if (!S_ISREG(st.st_mode)) {
        return l3_fail(err, L3_E_IO, "%.300s is not a regular file", path);
    }
    return place_window(package, w, st.st_size > 0 ? (uint64_t)st.st_size : 0, path, err);
}

/* Maps the package up to the end of the trunk; the MTP extents stay out. */
static l3_status map_trunk(l3_package *package, const header *h, l3_error *err) {
    void *base = mmap(NULL, (size_t)h->trunk_end, PROT_READ, MAP_SHARED, package->fd, (off_t)package->start);
    if (base == MAP_FAILED) {
        return l3_fail_errno(err, L3_E_IO, errno, "cannot map %llu bytes of the package",
                             (unsigned long long)h->trunk_end);
    }
    package->base = base;
    package->mapped = h->trunk_end;
    return L3_OK;
}

static l3_status open_window(const char *path, const window *w, l3_package **out, l3_error *err) {
    l3_package *package = NULL;
    header h = {0};
    l3_status status;
    if (out != NULL) {
        *out = NULL;
    }
    if (out == NULL || path == NULL) {
        return l3_fail(err, L3_E_ARG, "opening a package: path and out must not be NULL");
    }
    l3_error_clear(err);
    package = l3_alloc(1, sizeof *package);
    if (package == NULL) {
        return l3_fail(err, L3_E_MEMORY, "no memory for a package");
    }
    package->fd = -1;
    if ((status = open_file(package, path, w, err)) != L3_OK || (status = read_header(package, &h, err)) != L3_OK ||
        (status = map_trunk(package, &h, err)) != L3_OK || (status = check_directory(package, &h, err)) != L3_OK) {
        goto fail;
    }
    package->sections = l3_alloc((size_t)h.section_count + 1, sizeof *package->sections);
    package->tensors = l3_alloc((size_t)h.tensor_count + 1, sizeof *package->tensors);
    if (package->sections == NULL || package->tensors == NULL) {
        status = l3_fail(err, L3_E_MEMORY, "no memory for the directory");
        goto fail;
    }
    if ((status = read_sections(package, &h, err)) != L3_OK || (status = read_tensors(package, &h, err)) != L3_OK ||
        (status = read_config(package, err)) != L3_OK || (status = l3_weights_bind(package, err)) != L3_OK) {
        goto fail;
    }
    *out = package;
    return L3_OK;
fail:
    l3_package_close(package);
    return status;
}

l3_status l3_package_open(const char *path, l3_package **out, l3_error *err) {
    const window whole = {.whole = true};
    return open_window(path, &whole, out, err);
}

l3_status l3_package_open_at(const char *path, uint64_t offset, uint64_t length, l3_package **out, l3_error *err) {
    const window part = {.start = offset, .length = length};
    return open_window(path, &part, out, err);
}

void l3_package_close(l3_package *package) {
    if (package == NULL) {
        return;
    }
    if (package->base != NULL) {
        munmap((void *)(uintptr_t)package->base, (size_t)package->mapped);
    }
    if (package->fd >= 0) {
        close(package->fd);
    }
    l3_free(package->sections);
    l3_free(package->tensors);
    l3_free(package->weights.layers);
    l3_free(package);
}

const l3_config *l3_package_config(const l3_package *package) { return &package->config; }

l3_status l3_package_section(const l3_package *package, uint32_t kind, const void **data, size_t *length,
                             l3_error *err) {
    const l3_section *section;
    if (package == NULL || data == NULL || length == NULL) {
        return l3_fail(err, L3_E_ARG, "l3_package_section: NULL argument");
    }
    section = find_section(package, kind);
    *data = section != NULL ? package->base + section->offset : NULL;
    *length = section != NULL ? (size_t)section->length : 0;
    return L3_OK;
}

size_t l3_package_tensor_count(const l3_package *package) { return package->tensor_count; }

l3_status l3_package_tensor(const l3_package *package, size_t index, l3_tensor_info *out, l3_error *err) {
    if (package == NULL || out == NULL || index >= package->tensor_count) {
        return l3_fail(err, L3_E_ARG, "l3_package_tensor: index %zu is out of range", index);
    }
    *out = package->tensors[index];
    return L3_OK;
}

int l3_package_has_mtp(const l3_package *package) { return package->weights.has_mtp ? 1 : 0; }
