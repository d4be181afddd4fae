#define FUSED_LOOPS kAvx2
#define FUSED_NAME "AVX2"
#include "loops_body.hpp"
