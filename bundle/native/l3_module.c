/* The built-in module `_l3`: what the program found out about itself before `main`.
 *
 * It makes itself known to the interpreter before that starts, so the interpreter's own table of built-in modules is not
 * touched. launcher/payload/built_in.py is its only reader; it recognises the portable program by this module.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "start.h"

static PyObject *start(PyObject *module, PyObject *unused) {
    const l3_start *s = l3_start_facts();
    (void)module;
    (void)unused;
    return Py_BuildValue("(KKKKy#)", (unsigned long long)s->file_bytes, (unsigned long long)s->elf_bytes,
                         (unsigned long long)s->directory_offset, (unsigned long long)s->nanoseconds,
                         (const char *)s->sha256, (Py_ssize_t)sizeof s->sha256);
}

static PyMethodDef functions[] = {
    {"start", start, METH_NOARGS,
     "start() -> (bytes of the file, bytes of its ELF part, offset of the payload's directory, nanoseconds that the check "
     "took, SHA-256 of the file up to its digest)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_l3",
    .m_size = 0,
    .m_methods = functions,
};

static PyObject *make(void) { return PyModuleDef_Init(&definition); }

/* After the constructors of start.c. */
__attribute__((constructor(110))) static void register_module(void) {
    /* Without memory for one table entry the interpreter could not start either. */
    (void)PyImport_AppendInittab("_l3", make);
}
