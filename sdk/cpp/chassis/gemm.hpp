// Matrix products of tensors in host memory.
#pragma once

#include <algorithm>
#include <span>

#include "chassis/tensor.hpp"

CHASSIS_SDK_BEGIN

// A product of matrices of one dtype in host memory, whose sizes and addresses the caller fills in.
inline chassis_gemm_problem_t gemm_problem(uint32_t dtype) noexcept {
  chassis_gemm_problem_t problem{};
  problem.struct_size = sizeof problem;
  problem.a_dtype = problem.b_dtype = problem.c_dtype = dtype;
  problem.device_type = CHASSIS_DEVICE_CPU;
  problem.alpha = 1;
  return problem;
}

// As above, for c[m, n] = a[m, k] · b[k, n] where c may have another dtype.
inline chassis_gemm_problem_t gemm_problem(uint32_t dtype, uint32_t c_dtype, int64_t m, int64_t n, int64_t k) noexcept {
  chassis_gemm_problem_t problem = gemm_problem(dtype);
  problem.c_dtype = c_dtype;
  problem.m = m, problem.n = n, problem.k = k;
  return problem;
}

// A problem over 2-dimensional tensors whose rows or columns are dense; transposed views are not copied.
// Throws INVALID_ARGUMENT for other tensors.
inline chassis_gemm_problem_t gemm_problem(const BorrowedTensor& c, const BorrowedTensor& a, const BorrowedTensor& b,
                                           float alpha, float beta) {
  chassis_gemm_problem_t problem{};
  problem.struct_size = sizeof problem;
  const auto check = [](const BorrowedTensor& x, const char* name) {
    if (x.num_dims() != 2) throw Failure(CHASSIS_INVALID_ARGUMENT, name, " has ", x.num_dims(), " dims, expected 2");
  };
  // The leading dimension; sets the flag of a transposed matrix.
  const auto lead = [&](const BorrowedTensor& x, const char* name, uint32_t flag) {
    const int64_t rows = x.size(0), columns = x.size(1);
    if (columns <= 1 || x.stride(1) == 1) {
      if (rows <= 1 || x.stride(0) >= columns) return std::max(rows <= 1 ? columns : x.stride(0), int64_t{1});
    } else if (flag != 0 && (rows <= 1 || x.stride(0) == 1) && x.stride(1) >= rows) {
      problem.flags |= flag;
      return x.stride(1);
    }
    throw Failure(CHASSIS_INVALID_ARGUMENT, name, " has strides ", x.stride(0), " and ", x.stride(1), " for [", rows,
                  ", ", columns, "]: neither rows nor columns are dense");
  };
  check(a, "a"), check(b, "b"), check(c, "c");
  problem.a_dtype = a.dtype();
  problem.b_dtype = b.dtype();
  problem.c_dtype = c.dtype();
  problem.device_type = c.device_type();
  for (const BorrowedTensor* x : {&a, &b})
    if (!x->is_cpu()) problem.device_type = x->device_type();
  problem.m = c.size(0);
  problem.n = c.size(1);
  problem.k = a.size(1);
  if (a.size(0) != problem.m || b.size(0) != problem.k || b.size(1) != problem.n)
    throw Failure(CHASSIS_INVALID_ARGUMENT, "[", a.size(0), ", ", a.size(1), "] · [", b.size(0), ", ", b.size(1),
                  "] is not [", problem.m, ", ", problem.n, "]");
  problem.lda = lead(a, "a", CHASSIS_GEMM_TRANSPOSE_A);
  problem.ldb = lead(b, "b", CHASSIS_GEMM_TRANSPOSE_B);
  problem.ldc = lead(c, "c", 0);
  problem.a = a.view().data;
  problem.b = b.view().data;
  problem.c = c.view().data;
  problem.alpha = alpha;
  problem.beta = beta;
  return problem;
}

// [step]
inline void gemm(const Host& host, const chassis_gemm_problem_t& problem) {
  const auto& service = host.service<chassis_gemm_t>();
  host.check(service.run(&service, &problem));
}

// [step] Products of which none writes what another reads or writes: many small ones take less time than one by one.
inline void gemm(const Host& host, std::span<const chassis_gemm_problem_t> problems) {
  const auto& service = host.service<chassis_gemm_t>();
  host.check(service.run_many(&service, problems.data(), static_cast<uint32_t>(problems.size())));
}

// [step] c = alpha · a · b + beta · c; fp32 and bf16, on the CPU.
inline void gemm(const Host& host, const BorrowedTensor& c, const BorrowedTensor& a, const BorrowedTensor& b,
                 float alpha = 1, float beta = 0) {
  gemm(host, gemm_problem(c, a, b, alpha, beta));
}

// [any] Bytes of memory that a product needs while it runs; addresses are ignored.
inline uint64_t gemm_scratch_bytes(const Host& host, const chassis_gemm_problem_t& problem) {
  const auto& service = host.service<chassis_gemm_t>();
  return service.scratch_bytes(&service, &problem);
}

// [any] As above, for two dense matrices of one dtype.
inline uint64_t gemm_scratch_bytes(const Host& host, uint32_t dtype, uint32_t c_dtype, int64_t m, int64_t n,
                                   int64_t k) {
  chassis_gemm_problem_t problem = gemm_problem(dtype, c_dtype, m, n, k);
  problem.lda = k, problem.ldb = problem.ldc = n;
  return gemm_scratch_bytes(host, problem);
}

CHASSIS_SDK_END
