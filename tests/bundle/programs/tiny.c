/* A program that shows its environment and what it found out about itself before main. Asked to wait, it says that
 * it is there, and waits for a signal. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "start.h"

extern char **environ;

int main(int count, char **words) {
    const l3_start *s = l3_start_facts();
    if (count > 1 && strcmp(words[1], "wait") == 0) {
        (void)puts("waiting");
        (void)fflush(stdout);
        for (;;) {
            (void)pause();
        }
    }
    for (char **entry = environ; *entry != NULL; entry++) {
        printf("environment %s\n", *entry);
    }
    printf("start %llu %llu %llu %llu ", (unsigned long long)s->file_bytes, (unsigned long long)s->elf_bytes,
           (unsigned long long)s->directory_offset, (unsigned long long)s->nanoseconds);
    for (size_t i = 0; i < sizeof s->sha256; i++) {
        printf("%02x", s->sha256[i]);
    }
    printf("\n");
    return 0;
}
