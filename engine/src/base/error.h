/* Filling a caller-owned l3_error. */
#ifndef L3_BASE_ERROR_H
#define L3_BASE_ERROR_H

#include "ling3.h"

/* Fills *err (where there is one) and returns status. */
l3_status l3_fail(l3_error *err, l3_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The same for a failed system call: appends the text of os_errno. */
l3_status l3_fail_errno(l3_error *err, l3_status status, int os_errno, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void l3_error_clear(l3_error *err);

#endif
