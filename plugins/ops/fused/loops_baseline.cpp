#define FUSED_LOOPS kBaseline
#define FUSED_NAME "baseline"
#include "loops_body.hpp"
