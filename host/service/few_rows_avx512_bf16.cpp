// Compiled for x86-64-v4 with the products of pairs of bf16 values; other processors have the plain loops, which
// nothing calls.
#include "host/service/few_rows_loops.hpp"

namespace chassis {

FewRowsLoops few_rows_avx512_bf16() {
#ifdef __AVX512BF16__
  return {columns<Fp32<16>, 4>, columns<PairedBf16, 4>};
#else
  return {columns<Fp32<16>, 4>, columns<WidenedBf16<16>, 4>};
#endif
}

}  // namespace chassis
