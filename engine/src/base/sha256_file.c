/* The SHA-256 of a whole file. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/sha256.h"
#include "ling3.h"

#define STEP L3_SHA256_STEP

/* By pread, not by a mapping: a file that becomes shorter while it is mapped kills the process. */
l3_status l3_sha256_fd(int fd, l3_progress_fn progress, void *user, uint8_t out[32], uint64_t *length,
                       l3_error *err) {
    struct stat info;
    l3_sha256 hash;
    uint8_t *buffer = NULL;
    uint64_t size;
    uint64_t done = 0;
    l3_status status = L3_OK;
    if (out == NULL || length == NULL) {
        return l3_fail(err, L3_E_ARG, "l3_sha256_fd: NULL argument");
    }
    l3_error_clear(err);
    if (fstat(fd, &info) != 0) {
        return l3_fail_errno(err, L3_E_IO, errno, "cannot look at the file to hash");
    }
    size = info.st_size > 0 ? (uint64_t)info.st_size : 0;
    buffer = l3_alloc(1, STEP);
    if (buffer == NULL) {
        return l3_fail(err, L3_E_MEMORY, "no memory for %u bytes to hash with", STEP);
    }
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL); /* a hint: pipes and others refuse it */
    l3_sha256_init(&hash);
    for (;;) {
        ssize_t n = pread(fd, buffer, STEP, (off_t)done);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            status = l3_fail_errno(err, L3_E_IO, errno, "cannot read the file at byte %" PRIu64, done);
            goto fail;
        }
        if (n == 0) {
            break;
        }
        l3_sha256_update(&hash, buffer, (size_t)n);
        done += (uint64_t)n;
        if (progress != NULL && progress(user, done, size) != 0) {
            status = l3_fail(err, L3_E_CANCELLED, "hashing was cancelled");
            goto fail;
        }
    }
    if (done < size) {
        status = l3_fail(err, L3_E_IO, "the file ends at byte %" PRIu64 "; it had %" PRIu64 " when reading began", done,
                         size);
        goto fail;
    }
    l3_sha256_final(&hash, out);
    *length = done;
fail:
    l3_free(buffer);
    return status;
}
