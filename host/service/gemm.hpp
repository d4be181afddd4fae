// Products of matrices in host memory.
#pragma once

#include <cstdint>
#include <string>

#include "chassis/service/gemm.h"

namespace chassis {

// How a product of two bf16 matrices into fp32 is computed.
enum class Bf16Way {
  kLibrary,  // by the library's own product of bf16, which reads them as they lie
  kWidened,  // by a product in fp32, of copies
};

// Why gemm() would refuse it: a status code and the reason in words. Of what may be run the code is CHASSIS_OK.
struct GemmRefusal {
  int32_t code = CHASSIS_OK;
  std::string reason;
};
GemmRefusal refusal_of(const chassis_gemm_problem_t& problem);

// The faster way for this shape on this processor.
Bf16Way bf16_way(const chassis_gemm_problem_t& problem);
// Whether this LibTorch exports such a product.
bool has_bf16_library();

// [step] A problem without refusal.
void gemm(const chassis_gemm_problem_t& problem, Bf16Way way);
uint64_t gemm_scratch_bytes(const chassis_gemm_problem_t& problem, Bf16Way way);

}  // namespace chassis
