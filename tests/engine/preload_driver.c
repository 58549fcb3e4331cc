/* Loads a package under a kernel that answers as asked, and says what became resident.
 *
 *   preload_driver PACKAGE MODE    MODE: plain, mtp, old (a kernel without MADV_POPULATE_READ), full (no memory),
 *                                  stop (cancelled at the second call),
 *                                  cut, oldcut (the file is cut after it is opened),
 *                                  oldbad, oldbadmtp (such a kernel, and a disk that fails in the second read after
 *                                  opening, or in the middle of the MTP layer),
 *                                  unload, unloadmtp (unloaded again), unloadtwice (and loaded again),
 *                                  unloadlocked (unloaded while another locks the memory)
 *
 * Prints the status, the last progress and its total, the number of calls, the resident bytes of the mapping, the message,
 * and a sum over what is mapped, read after that. Link with -Wl,--wrap=madvise,--wrap=pread. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "session/session.h"

int __real_madvise(void *address, size_t length, int advice);
int __wrap_madvise(void *address, size_t length, int advice);

ssize_t __real_pread(int fd, void *buffer, size_t count, off_t offset);
ssize_t __wrap_pread(int fd, void *buffer, size_t count, off_t offset);

static const char *mode;
static off_t bad_from = -1; /* where the disk begins to fail */
static unsigned interrupted;
static unsigned calls;
static uint64_t last_done;
static uint64_t last_total;

int __wrap_madvise(void *address, size_t length, int advice) {
    if (advice == 22 && strncmp(mode, "old", 3) == 0) {
        errno = EINVAL;
        return -1;
    }
    if (advice == 22 && strcmp(mode, "full") == 0) {
        errno = ENOMEM;
        return -1;
    }
    if (advice == MADV_DONTNEED && strcmp(mode, "unloadlocked") == 0) {
        errno = EINVAL; /* as the kernel answers where pages are locked */
        return -1;
    }
    return __real_madvise(address, length, advice);
}

ssize_t __wrap_pread(int fd, void *buffer, size_t count, off_t offset) {
    if (bad_from >= 0 && interrupted++ == 0) {
        errno = EINTR;
        return -1;
    }
    if (bad_from >= 0 && offset + (off_t)count > bad_from) {
        errno = EIO;
        return -1;
    }
    return __real_pread(fd, buffer, count, offset);
}

static int progress(void *user, uint64_t done, uint64_t total) {
    (void)user;
    if (done <= last_done || (last_total != 0 && total != last_total)) {
        abort();
    }
    calls++;
    last_done = done;
    last_total = total;
    return strcmp(mode, "stop") == 0 && calls == 2;
}

static void require(l3_status status, const l3_error *err) {
    if (status != L3_OK) {
        fprintf(stderr, "%s\n", err->message);
        exit(1);
    }
}

/* Resident bytes of this process's mappings of the file. */
static unsigned long long resident(const char *path) {
    FILE *file = fopen("/proc/self/smaps", "r");
    char line[1024];
    unsigned long long sum = 0;
    int inside = 0;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        unsigned long long kib;
        if (strchr(line, '-') != NULL && strstr(line, ":") != NULL && strstr(line, " kB") == NULL) {
            inside = strstr(line, path) != NULL;
        } else if (inside && sscanf(line, "Rss: %llu kB", &kib) == 1) {
            sum += kib * 1024;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return sum;
}

/* Over everything in both mappings: it must stay what it is. */
static unsigned long long sum_of(const l3_package *package, const l3_engine *engine) {
    const uint64_t *trunk = (const uint64_t *)(const void *)package->base;
    const uint64_t *mtp = engine->mtp_map;
    unsigned long long sum = 0;
    for (uint64_t i = 0; i < package->mapped / 8; i++) {
        sum = sum * 31 + trunk[i];
    }
    for (uint64_t i = 0; i < engine->mtp_map_bytes / 8; i++) {
        sum = sum * 31 + mtp[i];
    }
    return sum;
}

int main(int argc, char **argv) {
    l3_engine_options options = {.threads = 1};
    l3_package *package = NULL;
    l3_engine *engine = NULL;
    l3_error err = {0};
    l3_status status;
    if (argc != 3) {
        fprintf(stderr, "usage: preload_driver PACKAGE MODE\n");
        return 2;
    }
    mode = argv[2];
    options.mtp = strstr(mode, "mtp") != NULL;
    require(l3_package_open(argv[1], &package, &err), &err);
    require(l3_engine_create(package, &options, &engine, &err), &err);
    if (strstr(mode, "cut") != NULL && truncate(argv[1], (off_t)(package->mapped / 2)) != 0) {
        return 1;
    }
    if (strcmp(mode, "oldbad") == 0) {
        bad_from = 100000;
    } else if (strcmp(mode, "oldbadmtp") == 0) {
        bad_from = (off_t)((l3_mtp_offset(package) + package->size) / 2);
    }
    status = l3_engine_preload(engine, progress, NULL, &err);
    if (strncmp(mode, "unload", 6) == 0) {
        l3_engine_unload(NULL);
        l3_engine_unload(engine);
        l3_engine_unload(engine); /* what is gone can go again */
    }
    if (strcmp(mode, "unloadtwice") == 0) {
        last_done = last_total = 0;
        status = l3_engine_preload(engine, progress, NULL, &err);
    }
    printf("%s\t%llu\t%llu\t%u\t%llu\t%s", l3_status_name((int32_t)status), (unsigned long long)last_done,
           (unsigned long long)last_total, calls, resident(argv[1]), err.message);
    printf("\t%llu\n", status == L3_OK ? sum_of(package, engine) : 0);
    l3_engine_destroy(engine);
    l3_package_close(package);
    return 0;
}
