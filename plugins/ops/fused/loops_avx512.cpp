#define FUSED_LOOPS kAvx512
#define FUSED_NAME "AVX-512"
#include "loops_body.hpp"
