/* Makes msgspec's compiled part known to the interpreter as the built-in module `msgspec._core`.
 *
 * It is compiled from its own source with another name for its entry, since `PyInit__core` says nothing of whose it is.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyObject *PyInit_msgspec__core(void);

/* After the constructors of start.c, before `main`. */
__attribute__((constructor(111))) static void register_module(void) {
    /* Without memory for one table entry the interpreter could not start either. */
    (void)PyImport_AppendInittab("msgspec._core", PyInit_msgspec__core);
}
