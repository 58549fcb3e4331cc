/* Makes AddressSanitizer see what is read outside the parts of a mapped package: behind its end lies forbidden memory,
 * and so do the gaps between parts once they are poisoned. Link with -Wl,--wrap=mmap -Wl,--wrap=munmap. */
#ifndef TESTS_GUARDED_MAPPING_H
#define TESTS_GUARDED_MAPPING_H

#include "ling3.h"

/* Forbids the gaps between sections and trunk extents; header and directory stay open. */
void poison_gaps(const l3_package *package);
/* Forbids the gaps between the MTP extents, where the engine has mapped them. */
void poison_mtp_gaps(const l3_engine *engine);

#endif
