#define TILES kAvx512
#define TILES_NAME "AVX-512"
#define TILES_VECTOR_BYTES 64
#define TILES_VECTORS 4
#include "tiles_body.hpp"
