/* What the portable program found out about itself before `main`. */
#ifndef L3_NATIVE_START_H
#define L3_NATIVE_START_H

#include <stdint.h>

/* The last bytes of a finished file, little-endian. bundle/payload.py writes them and launcher/payload.py reads them too.
 *
 *    0  magic
 *    8  length of the whole file
 *   16  length of the ELF part, which the payload follows
 *   24  where the payload's directory (of the zip format) starts
 *   32  SHA-256 of everything before this place
 */
#define L3_SEAL_BYTES 64u
#define L3_SEAL_HASHED 32u /* of the seal, the part that the digest covers */
#define L3_SEAL_MAGIC "MNSEAL1\n"

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
