/* Hashes pieces of a file with one implementation of SHA-256.
 *     sha256_driver                  prints the names of the implementations that can run here
 *     sha256_driver NAME FILE        reads "offset length shift step" per line from stdin; prints a digest for each
 *     sha256_driver --file FILE      hashes the file as the library's users do; prints digest and length
 * A piece is copied into a block of just its size, so that a sanitizer sees every byte that is read too many. It
 * starts `shift` bytes after an aligned address and is fed in parts of `step` bytes, or at once where that is 0. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/sha256.h"
#include "ling3.h"

static void print_digest(const uint8_t digest[32]) {
    for (size_t i = 0; i < 32; i++) {
        printf("%02x", digest[i]);
    }
}

static int list(void) {
    static const char *const names[] = {"sha-ni", "armv8", "scalar"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (l3_sha256_find(names[i]) != NULL) {
            puts(names[i]);
        }
    }
    return 0;
}

static int hash_file(const char *path) {
    uint8_t digest[32];
    uint64_t length;
    l3_error err;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    l3_status status = l3_sha256_fd(fd, NULL, NULL, digest, &length, &err);
    if (fd >= 0) {
        close(fd);
    }
    if (status != L3_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    print_digest(digest);
    printf(" %llu\n", (unsigned long long)length);
    return 0;
}

static uint8_t *read_whole(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    uint8_t *data = NULL;
    long end;
    if (file == NULL) {
        return NULL;
    }
    if (fseek(file, 0, SEEK_END) == 0 && (end = ftell(file)) > 0) {
        *size = (size_t)end;
        data = malloc(*size);
        rewind(file);
        if (data != NULL && fread(data, 1, *size, file) != *size) {
            free(data);
            data = NULL;
        }
    }
    fclose(file);
    return data;
}

static int hash_piece(const l3_sha256_variant *variant, const uint8_t *piece, size_t length, size_t shift,
                      size_t step) {
    l3_sha256 hash;
    uint8_t digest[32];
    uint8_t *block = malloc(shift + length > 0 ? shift + length : 1);
    if (block == NULL) {
        return 1;
    }
    memcpy(block + shift, piece, length);
    l3_sha256_init_with(&hash, variant);
    for (size_t at = 0; at < length;) {
        size_t n = step > 0 && step < length - at ? step : length - at;
        l3_sha256_update(&hash, block + shift + at, n);
        at += n;
    }
    l3_sha256_final(&hash, digest);
    free(block);
    print_digest(digest);
    putchar('\n');
    return 0;
}

int main(int argc, char **argv) {
    const l3_sha256_variant *variant;
    size_t size = 0;
    size_t offset, length, shift, step;
    uint8_t *data;
    int failed = 0;
    if (argc == 1) {
        return list();
    }
    if (argc != 3) {
        return 2;
    }
    if (strcmp(argv[1], "--file") == 0) {
        return hash_file(argv[2]);
    }
    variant = l3_sha256_find(argv[1]);
    data = read_whole(argv[2], &size);
    if (variant == NULL || data == NULL) {
        fprintf(stderr, "no implementation %s, or nothing in %s\n", argv[1], argv[2]);
        free(data);
        return 2;
    }
    while (!failed && scanf("%zu %zu %zu %zu", &offset, &length, &shift, &step) == 4) {
        failed = offset > size || length > size - offset || hash_piece(variant, data + offset, length, shift, step);
    }
    free(data);
    return failed;
}
