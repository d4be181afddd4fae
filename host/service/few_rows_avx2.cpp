// Compiled for x86-64-v3; other processors have the plain loops, which nothing calls.
#include "host/service/few_rows_loops.hpp"

namespace chassis {

FewRowsLoops few_rows_avx2() { return {columns<Fp32<8>, 2>, columns<WidenedBf16<8>, 2>}; }

}  // namespace chassis
