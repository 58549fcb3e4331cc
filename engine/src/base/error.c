#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void l3_error_clear(l3_error *err) {
    if (err != NULL) {
        memset(err, 0, sizeof *err);
    }
}

l3_status l3_fail(l3_error *err, l3_status status, const char *format, ...) {
    if (err != NULL) {
        va_list args;
        err->status = (int32_t)status;
        err->os_errno = 0;
        va_start(args, format);
        vsnprintf(err->message, sizeof err->message, format, args);
        va_end(args);
    }
    return status;
}

l3_status l3_fail_errno(l3_error *err, l3_status status, int os_errno, const char *format, ...) {
    if (err != NULL) {
        va_list args;
        size_t used;
        err->status = (int32_t)status;
        err->os_errno = os_errno;
        va_start(args, format);
        vsnprintf(err->message, sizeof err->message, format, args);
        va_end(args);
        used = strlen(err->message);
        snprintf(err->message + used, sizeof err->message - used, ": %s", strerror(os_errno));
    }
    return status;
}

uint32_t l3_abi_version(void) { return L3_ABI_VERSION; }

const char *l3_version(void) { return "ling3 0.1.0"; }

const char *l3_status_name(int32_t status) {
    switch (status) {
    case L3_OK: return "ok";
    case L3_E_ARG: return "argument";
    case L3_E_IO: return "io";
    case L3_E_FORMAT: return "format";
    case L3_E_UNSUPPORTED: return "unsupported";
    case L3_E_MEMORY: return "memory";
    case L3_E_CONTEXT: return "context";
    case L3_E_CANCELLED: return "cancelled";
    case L3_E_INTERNAL: return "internal";
    default: return "unknown";
    }
}
