/* Lets the program start when its own file has another place by then, or is gone.
 *
 * Nuitka's start code resolves the name that /proc/self/exe leads to, and aborts where it cannot. An update of the
 * program under a running one, which then starts a child of itself, makes that happen: the name ends in " (deleted)". So
 * does a folder that the user may not look into. Nothing in the program depends on where it lies, so its name as the
 * kernel gives it will do. The linker leads calls of realpath() here (--wrap).
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *__real_realpath(const char *path, char *resolved);
char *__wrap_realpath(const char *path, char *resolved);

static bool is_own(const char *path) {
    char own[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);
    if (n <= 0) {
        return false;
    }
    own[n] = '\0';
    return strcmp(own, path) == 0;
}

char *__wrap_realpath(const char *path, char *resolved) {
    char *found = __real_realpath(path, resolved);
    if (found != NULL || path == NULL || !is_own(path)) {
        return found;
    }
    /* Own names are shorter than PATH_MAX, which is what callers with a buffer must have. */
    return resolved != NULL ? strcpy(resolved, path) : strdup(path);
}
