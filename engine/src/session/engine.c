/* Package + kernels + threads. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/error.h"
#include "base/memory.h"
#include "session/session.h"

/* Matrices are read once per token and in order, experts at random: tell the kernel nothing and let it learn, but map
 * the MTP extents only here. */
static l3_status map_mtp(l3_engine *engine, l3_error *err) {
    const l3_package *package = engine->package;
    uint64_t offset = l3_mtp_offset(package);
    void *map;
    if (!package->weights.has_mtp) {
        return l3_fail(err, L3_E_UNSUPPORTED, "MTP is asked for, but the package holds no MTP layer");
    }
    engine->mtp_map_bytes = package->size - offset;
    map = mmap(NULL, (size_t)engine->mtp_map_bytes, PROT_READ, MAP_SHARED, package->fd,
               (off_t)(package->start + offset));
    if (map == MAP_FAILED) {
        return l3_fail_errno(err, L3_E_IO, errno, "cannot map the MTP layer (%llu bytes)",
                             (unsigned long long)engine->mtp_map_bytes);
    }
    engine->mtp_map = map;
    engine->has_mtp = true;
    return l3_mtp_bind(package, map, &engine->mtp, err);
}

static l3_status choose_kernels(l3_engine *engine, const l3_engine_options *options, l3_error *err) {
    if (memchr(options->simd, 0, sizeof options->simd) == NULL) {
        return l3_fail(err, L3_E_ARG, "the name of the kernel set is not terminated");
    }
    engine->kernels = l3_kernels_find(options->simd);
    if (engine->kernels == NULL) {
        return l3_fail(err, L3_E_ARG, "kernel set '%s' is not available here; this CPU can run: %s",
                       options->simd, l3_simd_available());
    }
    return L3_OK;
}

l3_status l3_engine_create(const l3_package *package, const l3_engine_options *options, l3_engine **out,
                           l3_error *err) {
    l3_engine *engine = NULL;
    int cores[L3_MAX_CPUS];
    uint32_t core_count;
    l3_status status;
    if (out != NULL) {
        *out = NULL;
    }
    if (package == NULL || options == NULL || out == NULL) {
        return l3_fail(err, L3_E_ARG, "l3_engine_create: NULL argument");
    }
    l3_error_clear(err);
    engine = l3_alloc(1, sizeof *engine);
    if (engine == NULL) {
        return l3_fail(err, L3_E_MEMORY, "no memory for an engine");
    }
    engine->package = package;
    if ((status = choose_kernels(engine, options, err)) != L3_OK) {
        goto fail;
    }
    if (options->mtp && (status = map_mtp(engine, err)) != L3_OK) {
        goto fail;
    }
    core_count = l3_cpu_big_cores(cores);
    engine->threads = options->threads > 0 ? options->threads : core_count;
    if ((status = l3_pool_create(engine->threads, cores, core_count, &engine->pool, err)) != L3_OK) {
        goto fail;
    }
    *out = engine;
    return L3_OK;
fail:
    l3_engine_destroy(engine);
    return status;
}

void l3_engine_destroy(l3_engine *engine) {
    if (engine == NULL) {
        return;
    }
    l3_pool_destroy(engine->pool);
    if (engine->mtp_map != NULL) {
        munmap(engine->mtp_map, (size_t)engine->mtp_map_bytes);
    }
    l3_free(engine);
}

const char *l3_engine_simd(const l3_engine *engine) { return engine->kernels->name; }
uint32_t l3_engine_threads(const l3_engine *engine) { return engine->threads; }

/* -- preload -- */

#define PRELOAD_PIECE (32ull << 20)
#define READ_STEP (64u << 10)
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14 */
#endif

typedef struct preload {
    const l3_package *package;
    l3_progress_fn progress;
    void *user;
    uint64_t done;
    uint64_t total;
    bool touch; /* the kernel cannot populate: read a byte of every page */
    l3_error *err;
} preload;

/* Reading beyond the end of a file that became shorter is a signal, so look before. */
static l3_status check_size(const preload *p) {
    struct stat st;
    if (fstat(p->package->fd, &st) != 0) {
        return l3_fail_errno(p->err, L3_E_IO, errno, "cannot stat the package");
    }
    if ((uint64_t)st.st_size < p->package->start + p->package->size) {
        return l3_fail(p->err, L3_E_IO, "the package was cut to %lld of %llu bytes while it is open",
                       (long long)st.st_size, (unsigned long long)(p->package->start + p->package->size));
    }
    return L3_OK;
}

/* Brings the bytes into the page cache by a way that can answer with an error; a mapping answers with a signal. */
static l3_status read_through(const preload *p, uint64_t offset, uint64_t bytes) {
    uint8_t buffer[READ_STEP];
    for (uint64_t at = 0; at < bytes;) {
        size_t wanted = bytes - at < sizeof buffer ? (size_t)(bytes - at) : sizeof buffer;
        ssize_t n = pread(p->package->fd, buffer, wanted, (off_t)(p->package->start + offset + at));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            int reason = n < 0 ? errno : EIO;
            l3_status status = check_size(p);
            return status != L3_OK ? status : l3_fail_errno(p->err, L3_E_IO, reason, "cannot read the package");
        }
        at += (uint64_t)n;
    }
    return L3_OK;
}

static l3_status touch_pages(const preload *p, const volatile uint8_t *piece, uint64_t offset, uint64_t bytes) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    l3_status status = read_through(p, offset, bytes);
    if (status != L3_OK) {
        return status;
    }
    for (uint64_t at = 0; at < bytes; at += page) {
        (void)piece[at];
    }
    return L3_OK;
}

static l3_status preload_piece(preload *p, uint8_t *piece, uint64_t offset, uint64_t bytes) {
    (void)madvise(piece, (size_t)bytes, MADV_WILLNEED); /* one long read instead of many short ones; only advice */
    while (!p->touch && madvise(piece, (size_t)bytes, MADV_POPULATE_READ) != 0) {
        if (errno == EINVAL) {
            p->touch = true;
        } else if (errno == ENOMEM) {
            return l3_fail_errno(p->err, L3_E_MEMORY, errno, "no memory to load the package");
        } else if (errno != EAGAIN && errno != EINTR) {
            l3_status status = check_size(p);
            return status != L3_OK ? status : l3_fail_errno(p->err, L3_E_IO, errno, "cannot read the package");
        }
    }
    return p->touch ? touch_pages(p, piece, offset, bytes) : L3_OK;
}

/* `map` is what lies at `offset` of the package. */
static l3_status preload_map(preload *p, const void *map, uint64_t offset, uint64_t bytes) {
    uint8_t *base = (uint8_t *)(uintptr_t)map; /* madvise wants it writable, and writes nothing */
    for (uint64_t at = 0; at < bytes; at += PRELOAD_PIECE) {
        uint64_t n = bytes - at < PRELOAD_PIECE ? bytes - at : PRELOAD_PIECE;
        l3_status status = preload_piece(p, base + at, offset + at, n);
        if (status != L3_OK) {
            return status;
        }
        p->done += n;
        if (p->progress != NULL && p->progress(p->user, p->done, p->total) != 0) {
            return l3_fail(p->err, L3_E_CANCELLED, "cancelled after loading %llu of %llu bytes",
                           (unsigned long long)p->done, (unsigned long long)p->total);
        }
    }
    return L3_OK;
}

l3_status l3_engine_preload(const l3_engine *engine, l3_progress_fn progress, void *user, l3_error *err) {
    preload p = {.progress = progress, .user = user, .err = err};
    l3_status status;
    if (engine == NULL) {
        return l3_fail(err, L3_E_ARG, "l3_engine_preload: engine is NULL");
    }
    l3_error_clear(err);
    p.package = engine->package;
    p.total = engine->package->mapped + engine->mtp_map_bytes;
    status = preload_map(&p, engine->package->base, 0, engine->package->mapped);
    if (status == L3_OK && engine->mtp_map_bytes > 0) {
        status = preload_map(&p, engine->mtp_map, l3_mtp_offset(engine->package), engine->mtp_map_bytes);
    }
    return status;
}

/* Both mappings are shared, of a file, and never written to: what is dropped is in the file. */
static void unload_map(const void *map, uint64_t bytes) {
    if (bytes > 0) {
        (void)madvise((void *)(uintptr_t)map, (size_t)bytes, MADV_DONTNEED);
    }
}

void l3_engine_unload(const l3_engine *engine) {
    if (engine == NULL) {
        return;
    }
    unload_map(engine->package->base, engine->package->mapped);
    unload_map(engine->mtp_map, engine->mtp_map_bytes);
}

/* -- read bandwidth -- */

#define BANDWIDTH_PIECE (1u << 20)

typedef struct reading {
    const uint64_t *data;
    _Atomic uint64_t sink; /* keeps the sums alive */
} reading;

static void read_pieces(void *context, uint32_t first, uint32_t last, uint32_t thread) {
    reading *work = context;
    const uint64_t *p = work->data + (size_t)first * (BANDWIDTH_PIECE / 8);
    const uint64_t *end = work->data + (size_t)last * (BANDWIDTH_PIECE / 8);
    uint64_t sum[8] = {0};
    (void)thread;
    for (; p < end; p += 8) {
        for (size_t i = 0; i < 8; i++) {
            sum[i] += p[i];
        }
    }
    for (size_t i = 1; i < 8; i++) {
        sum[0] += sum[i];
    }
    atomic_fetch_add_explicit(&work->sink, sum[0], memory_order_relaxed);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

l3_status l3_engine_read_bandwidth(l3_engine *engine, uint64_t bytes, double *bytes_per_second, l3_error *err) {
    reading work = {0};
    uint64_t pieces = bytes / BANDWIDTH_PIECE;
    double best = 0.0;
    void *memory;
    if (engine == NULL || bytes_per_second == NULL || pieces == 0 || pieces > UINT32_MAX) {
        return l3_fail(err, L3_E_ARG, "l3_engine_read_bandwidth: at least 1 MiB is needed");
    }
    memory = l3_pages_alloc(pieces * BANDWIDTH_PIECE);
    if (memory == NULL) {
        return l3_fail(err, L3_E_MEMORY, "no memory for %llu bytes to measure with", (unsigned long long)bytes);
    }
    memset(memory, 1, (size_t)(pieces * BANDWIDTH_PIECE)); /* real pages, not the shared zero page */
    work.data = memory;
    for (int round = 0; round < 3; round++) {
        double start = now();
        double seconds;
        l3_pool_run(engine->pool, read_pieces, &work, (uint32_t)pieces, 1);
        seconds = now() - start;
        if (seconds > 0.0 && (double)(pieces * BANDWIDTH_PIECE) / seconds > best) {
            best = (double)(pieces * BANDWIDTH_PIECE) / seconds;
        }
    }
    l3_pages_free(memory, pieces * BANDWIDTH_PIECE);
    *bytes_per_second = best;
    return L3_OK;
}
