/* What the portable program found out about itself before `main`. */
#ifndef L3_NATIVE_START_H
#define L3_NATIVE_START_H

#include <stdint.h>

/* The last bytes of a finished file, one line of text with lower-case hexadecimal numbers. bundle/payload.py writes it,
 * and launcher/payload/file.py reads it too.
 *
 *     0  "MNSEAL1 "
 *     8  length of the whole file, 16 digits and a space
 *    25  length of the ELF part, which the payload follows, 16 digits and a space
 *    42  where the payload's directory (of the zip format) starts, 16 digits and a space
 *    59  SHA-256 of everything before this place, 64 digits and a line feed
 */
#define L3_SEAL_BYTES 124u
#define L3_SEAL_HASHED 59u /* of the seal, the part that the digest covers */
#define L3_SEAL_MAGIC "MNSEAL1 "

typedef struct l3_start {
    uint64_t file_bytes;
    uint64_t elf_bytes;
    uint64_t directory_offset;
    uint64_t nanoseconds; /* that the check took */
    uint8_t sha256[32];
} l3_start;

/* A program whose check fails does not get so far that anybody could ask. */
const l3_start *l3_start_facts(void);

#endif
