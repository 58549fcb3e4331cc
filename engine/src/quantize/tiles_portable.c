/* The kernels in the instructions that every processor of the target has. */
#define L3_TILES_NAME "portable"
#define L3_TILES_TABLE l3_tiles_portable
#include "quantize/tiles_body.h"
