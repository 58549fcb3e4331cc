#include "text/unicode.h"

#include <unicode/uchar.h>

l3_char_class l3_char_class_of(uint32_t code_point) {
    if ((code_point >= 0x09 && code_point <= 0x0d) || code_point == 0x85) {
        return L3_CHAR_SPACE; /* the only white space among the control characters */
    }
    switch (u_charType((UChar32)code_point)) {
    case U_UPPERCASE_LETTER:
    case U_LOWERCASE_LETTER:
    case U_TITLECASE_LETTER:
    case U_MODIFIER_LETTER:
    case U_OTHER_LETTER:
        return L3_CHAR_LETTER;
    case U_DECIMAL_DIGIT_NUMBER:
    case U_LETTER_NUMBER:
    case U_OTHER_NUMBER:
        return L3_CHAR_NUMBER;
    case U_SPACE_SEPARATOR:
    case U_LINE_SEPARATOR:
    case U_PARAGRAPH_SEPARATOR:
        return L3_CHAR_SPACE;
    default:
        return L3_CHAR_OTHER;
    }
}
