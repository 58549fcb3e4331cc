/* The character classes that the pre-split of text needs. */
#ifndef L3_TEXT_UNICODE_H
#define L3_TEXT_UNICODE_H

#include <stdint.h>

typedef enum l3_char_class {
    L3_CHAR_OTHER = 0,
    L3_CHAR_LETTER = 1, /* general category L */
    L3_CHAR_NUMBER = 2, /* general category N */
    L3_CHAR_SPACE = 3   /* property White_Space */
} l3_char_class;

/* OTHER for what is no character (surrogates, above U+10FFFF). */
l3_char_class l3_char_class_of(uint32_t code_point);

#endif
