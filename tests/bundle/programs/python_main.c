/* An interpreter with the engine, the start-up check and `_l3` inside, as the product has them. */
#include <Python.h>

int main(int argc, char **argv) { return Py_BytesMain(argc, argv); }
