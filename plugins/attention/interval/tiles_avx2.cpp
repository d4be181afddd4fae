#define TILES kAvx2
#define TILES_NAME "AVX2"
#define TILES_VECTOR_BYTES 32
#define TILES_VECTORS 2
#include "tiles_body.hpp"
