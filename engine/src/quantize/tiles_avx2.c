/* The kernels for processors with AVX2. */
#define L3_TILES_NAME "avx2"
#define L3_TILES_TABLE l3_tiles_avx2
#include "quantize/tiles_body.h"
