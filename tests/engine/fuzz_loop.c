/* A small coverage-guided fuzzer for targets with libFuzzer's interface, where libFuzzer is not installed.
 *
 *   fuzz_loop ROUNDS SEED LAST INPUT...
 *
 * Mutates inputs, keeps those that take a way through the engine that none has taken before, and ends after ROUNDS
 * inputs: equal arguments do equal work. The input in use always lies in the file LAST, also after a crash.
 * Prints one line: rounds, inputs that the target took, features found by the given inputs, features found in all,
 * inputs kept. The engine is to be compiled with -fsanitize-coverage=trace-pc, this file is not. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAP (1u << 16)
#define MAX_INPUT (1u << 17)
#define MAX_KEPT 4096u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed);
void __sanitizer_cov_trace_pc(void);

typedef struct input {
    uint8_t *data;
    size_t size;
    int taken; /* what the target returned */
} input;

static uint8_t hits[MAP];    /* how often each place was passed in this run */
static uint8_t known[MAP];   /* bit i: some run passed this place about 2^i times */
static input kept[MAX_KEPT];
static size_t kept_count;
static uint8_t *last; /* [MAX_INPUT], shared with the file LAST */

void __sanitizer_cov_trace_pc(void) {
    /* relative, so that a program loaded elsewhere does the same */
    uintptr_t place = (uintptr_t)__builtin_return_address(0) - (uintptr_t)LLVMFuzzerTestOneInput;
    uint8_t *count = &hits[(place ^ (place >> 16)) % MAP];
    *count = (uint8_t)(*count + (*count < 255));
}

/* Whether the last run did something new, and remembers it. */
static unsigned learn(void) {
    unsigned found = 0;
    for (size_t i = 0; i < MAP; i++) {
        if (hits[i] != 0) {
            uint8_t feature = (uint8_t)(1u << (31 - __builtin_clz(hits[i])));
            found += (known[i] & feature) == 0;
            known[i] |= feature;
        }
    }
    return found;
}

static int run(const uint8_t *data, size_t size) {
    memcpy(last, data, size);
    memset(hits, 0, sizeof hits);
    return LLVMFuzzerTestOneInput(data, size);
}

static void keep(const uint8_t *data, size_t size, int taken) {
    uint8_t *copy = malloc(size);
    if (copy == NULL || kept_count == MAX_KEPT) {
        free(copy);
        return;
    }
    memcpy(copy, data, size);
    kept[kept_count++] = (input){copy, size, taken};
}

static uint64_t random_state;

static uint32_t next(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}

static void load(const char *path) {
    static uint8_t data[MAX_INPUT];
    FILE *file = fopen(path, "rb");
    size_t size = file != NULL ? fread(data, 1, sizeof data, file) : 0;
    if (size == 0 || size == sizeof data) {
        fprintf(stderr, "%s cannot be read or has more than %u bytes\n", path, MAX_INPUT);
        exit(2);
    }
    fclose(file);
    keep(data, size, 1);
}

static void open_last(const char *path) {
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || ftruncate(file, MAX_INPUT) != 0) {
        perror(path);
        exit(2);
    }
    last = mmap(NULL, MAX_INPUT, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (last == MAP_FAILED) {
        perror(path);
        exit(2);
    }
}

/* Half of the time one of the newest, which are the furthest from what is known; mostly one that was taken, because a
 * refused one hides whatever else is wrong with it. */
static const input *pick(void) {
    size_t recent = kept_count < 32 ? kept_count : 32;
    size_t index = 0;
    for (int attempt = 0; attempt < 6; attempt++) {
        index = next() % 2 == 0 ? kept_count - 1 - next() % recent : next() % kept_count;
        if (kept[index].taken) {
            break;
        }
    }
    return &kept[index];
}

int main(int argc, char **argv) {
    static uint8_t data[MAX_INPUT];
    unsigned long rounds;
    unsigned long taken = 0;
    unsigned seeds = 0;
    unsigned features;
    if (argc < 5) {
        fprintf(stderr, "usage: fuzz_loop ROUNDS SEED LAST INPUT...\n");
        return 2;
    }
    rounds = strtoul(argv[1], NULL, 10);
    random_state = strtoul(argv[2], NULL, 10);
    open_last(argv[3]);
    for (int i = 4; i < argc; i++) {
        load(argv[i]);
    }
    for (size_t i = 0; i < kept_count; i++) {
        if (run(kept[i].data, kept[i].size) == 0) {
            fprintf(stderr, "%s is not accepted\n", argv[4 + i]);
            return 2;
        }
        seeds += learn();
    }
    features = seeds;
    for (unsigned long round = 0; round < rounds; round++) {
        const input *parent = pick();
        size_t size = parent->size;
        unsigned found;
        int result;
        memcpy(data, parent->data, size);
        size = LLVMFuzzerCustomMutator(data, size, sizeof data, next());
        result = run(data, size);
        taken += result != 0;
        found = learn();
        if (found > 0) {
            features += found;
            keep(data, size, result);
        }
    }
    printf("%lu %lu %u %u %zu\n", rounds, taken, seeds, features, kept_count);
    while (kept_count > 0) {
        free(kept[--kept_count].data);
    }
    return 0;
}
