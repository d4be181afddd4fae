#define TILES kBaseline
#define TILES_NAME "baseline"
#define TILES_VECTOR_BYTES 16
#define TILES_VECTORS 2
#include "tiles_body.hpp"
