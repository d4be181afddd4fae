// Matrix products in host memory, for chassis.gemm/1.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "chassis/service/gemm.h"
#include "host/service/product.hpp"

namespace chassis {

// How a product of two bf16 matrices into fp32 is computed.
enum class Bf16Method {
  kTiles,    // by multiply(), without copies of whole matrices
  kNative,   // by LibTorch's bf16 product, without copies
  kWidened,  // by a product of fp32 copies
};

// Why gemm() cannot run a problem; the code is CHASSIS_OK if it can.
struct GemmRefusal {
  int32_t code = CHASSIS_OK;
  std::string reason;
};
GemmRefusal refusal_of(const chassis_gemm_problem_t& problem);

// The fastest method for this shape on this CPU.
Bf16Method bf16_method(const chassis_gemm_problem_t& problem);
// Whether this LibTorch exports a bf16 product.
bool has_native_bf16();

// The problem as a Product, with factors of T and an fp32 c.
template <typename T>
Product<T> product_of(const chassis_gemm_problem_t& problem);

// [step] Requires a problem without a refusal.
void gemm(const chassis_gemm_problem_t& problem, Bf16Method method);
uint64_t gemm_scratch_bytes(const chassis_gemm_problem_t& problem, Bf16Method method);

// Divides problems among threads: for each a list, with about as many operations as the others. Long problems are
// divided by rows of c. Empty if there is too little for all threads; each problem is then best run by all of them.
std::vector<std::vector<chassis_gemm_problem_t>> divide(std::span<const chassis_gemm_problem_t> problems,
                                                        int num_threads);

}  // namespace chassis
