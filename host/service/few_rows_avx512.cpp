// Compiled for x86-64-v4; other processors have the plain loops, which nothing calls.
#include "host/service/few_rows_loops.hpp"

namespace chassis {

FewRowsLoops few_rows_avx512() { return {columns<Fp32<16>, 4>, columns<WidenedBf16<16>, 4>}; }

}  // namespace chassis
