/* What runs before `main` in the portable program: it sees to signals, checks its own file, cleans its environment.
 *
 * The check hashes the whole file that runs. A file that was cut, extended, stripped or changed ends here with one
 * sentence on stderr and the exit code of a damaged package; nothing in the environment or on the command line changes
 * that. It finds damage, it is no signature: who can rewrite the file can rewrite the seal.
 *
 * System calls are made directly: libraries that are loaded before the program and stand in for open, read and exit (to
 * redirect files, for instance) do not get between the check and the file.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/sha256.h"
#include "start.h"

#define STEP 65536u

/* Exit codes of the product: launcher/errors.py. */
#define EXIT_UNSUPPORTED 3
#define EXIT_DAMAGED 4

/* The exit code of a program that a signal ended, as shells count it. */
#define EXIT_SIGNAL 128

/* Lower ones are the C library's. */
#define BEFORE_EVERYTHING 101
#define CHECK 102
#define AFTER_CHECK 103

extern char **environ;

static l3_start facts;

const l3_start *l3_start_facts(void) { return &facts; }

static _Noreturn void refuse(int code, const char *message) {
    /* Where even stderr is gone, the exit code has to do. */
    (void)syscall(SYS_write, STDERR_FILENO, message, strlen(message));
    for (;;) {
        (void)syscall(SYS_exit_group, code);
    }
}

static void end_by_signal(int number) { _exit(EXIT_SIGNAL + number); }

/* Until the launcher has handlers of its own (launcher/interrupts.py), these signals end the program at once with their
 * documented codes. The interpreter leaves a handler that it finds alone; its own for SIGINT would raise an exception in
 * the midst of its start. Signals that are ignored stay ignored. */
__attribute__((constructor(BEFORE_EVERYTHING))) static void end_on_signals(void) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        struct sigaction action;
        if (sigaction(numbers[i], NULL, &action) == 0 && action.sa_handler == SIG_DFL) {
            action.sa_handler = end_by_signal;
            (void)sigaction(numbers[i], &action, NULL);
        }
    }
}

static uint64_t now(void) {
    struct timespec t = {0};
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Reads exactly `length` bytes at `offset`; false where the file cannot be read or ends before. */
static bool read_exactly(int fd, uint64_t offset, uint8_t *out, size_t length) {
    while (length > 0) {
        long n = syscall(SYS_pread64, fd, out, length, (off_t)offset);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return false;
        }
        out += n;
        offset += (uint64_t)n;
        length -= (size_t)n;
    }
    return true;
}

static bool hash_file(int fd, uint64_t length, uint8_t digest[32]) {
    uint8_t buffer[STEP];
    l3_sha256 hash;
    l3_sha256_init(&hash);
    for (uint64_t at = 0; at < length;) {
        size_t n = length - at < STEP ? (size_t)(length - at) : STEP;
        if (!read_exactly(fd, at, buffer, n)) {
            return false;
        }
        l3_sha256_update(&hash, buffer, n);
        at += n;
    }
    l3_sha256_final(&hash, digest);
    return true;
}

/* Reads lower-case hexadecimal digits, two per byte; false where there are others. */
static bool read_hex(const uint8_t *text, uint8_t *out, size_t bytes) {
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < 2 * bytes; i++) {
        const char *found = text[i] != 0 ? strchr(digits, text[i]) : NULL;
        if (found == NULL) {
            return false;
        }
        out[i / 2] = (uint8_t)(out[i / 2] << 4 | (found - digits));
    }
    return true;
}

/* A number of 16 digits and what ends it. */
static bool read_number(const uint8_t *text, uint64_t *out) {
    uint8_t bytes[8] = {0};
    if (!read_hex(text, bytes, sizeof bytes) || text[16] != ' ') {
        return false;
    }
    *out = 0;
    for (size_t i = 0; i < sizeof bytes; i++) {
        *out = *out << 8 | bytes[i];
    }
    return true;
}

/* Length of the file according to the seal; false where the seal is none. */
static bool read_seal(const uint8_t seal[L3_SEAL_BYTES], uint64_t *file_bytes) {
    return memcmp(seal, L3_SEAL_MAGIC, 8) == 0 && read_number(seal + 8, file_bytes) &&
           read_number(seal + 25, &facts.elf_bytes) && read_number(seal + 42, &facts.directory_offset) &&
           read_hex(seal + L3_SEAL_HASHED, facts.sha256, sizeof facts.sha256) && seal[L3_SEAL_BYTES - 1] == '\n';
}

static void check_file(int fd) {
    static const char unreadable[] =
        "error (program-unreadable): this program's own file cannot be read to its end; check the disk, or copy or "
        "download the file again\n";
    uint8_t seal[L3_SEAL_BYTES];
    uint8_t digest[32];
    uint64_t sealed_bytes;
    long size = syscall(SYS_lseek, fd, 0L, SEEK_END);
    if (size < 0) {
        refuse(EXIT_DAMAGED, unreadable);
    }
    facts.file_bytes = (uint64_t)size;
    if (facts.file_bytes >= sizeof seal && !read_exactly(fd, facts.file_bytes - sizeof seal, seal, sizeof seal)) {
        refuse(EXIT_DAMAGED, unreadable);
    }
    if (facts.file_bytes < sizeof seal || !read_seal(seal, &sealed_bytes)) {
        refuse(EXIT_DAMAGED,
               "error (program-damaged): this program's file does not end with its seal, so it was cut short, extended, "
               "stripped or started through another program; start it directly, or copy or download it again\n");
    }
    if (sealed_bytes != facts.file_bytes || facts.elf_bytes > facts.directory_offset ||
        facts.directory_offset > facts.file_bytes - sizeof seal) {
        refuse(EXIT_DAMAGED, "error (program-damaged): this program's file has another length than its seal says; copy or "
                             "download it again\n");
    }
    if (!hash_file(fd, facts.file_bytes - (L3_SEAL_BYTES - L3_SEAL_HASHED), digest)) {
        refuse(EXIT_DAMAGED, unreadable);
    }
    if (memcmp(digest, facts.sha256, sizeof digest) != 0) {
        refuse(EXIT_DAMAGED, "error (program-damaged): this program's file was changed: its SHA-256 is not the one in its "
                             "seal; copy or download it again\n");
    }
}

__attribute__((constructor(CHECK))) static void check_itself(void) {
    uint64_t started = now();
    /* Always the file that runs, whatever its name is by now and wherever it was moved. */
    long fd = syscall(SYS_openat, AT_FDCWD, "/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        refuse(EXIT_UNSUPPORTED, "error (program-unchecked): this program cannot check its own file, because "
                                 "/proc/self/exe cannot be opened; mount /proc and let this user read the file\n");
    }
    check_file((int)fd);
    (void)syscall(SYS_close, fd);
    facts.nanoseconds = now() - started;
}

/* Whether an entry of the environment speaks to the interpreter that is inside: PYTHONMALLOC=debug makes it crash,
 * PYTHONHASHSEED=x makes it end, PYTHONINSPECT and others change what it does. What the dynamic linker reads (LD_*) has
 * had its effect by now and stays, so that --check can show it. */
static bool speaks_to_interpreter(const char *entry) {
    static const char *const prefixes[] = {"PYTHON", "_PYTHON", "NUITKA_"};
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        if (strncmp(entry, prefixes[i], strlen(prefixes[i])) == 0) {
            return true;
        }
    }
    return false;
}

__attribute__((constructor(AFTER_CHECK))) static void clean_environment(void) {
    char **kept = environ;
    if (environ == NULL) {
        return;
    }
    for (char **entry = environ; *entry != NULL; entry++) {
        if (!speaks_to_interpreter(*entry)) {
            *kept++ = *entry;
        }
    }
    *kept = NULL;
}
