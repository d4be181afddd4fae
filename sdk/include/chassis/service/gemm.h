/* chassis.gemm/1: matrix products in host memory, by the fastest library that the host has for the processor. */
#ifndef CHASSIS_SERVICE_GEMM_H
#define CHASSIS_SERVICE_GEMM_H

#include "chassis/abi.h"
#include "chassis/status.h"
#include "chassis/tensor.h"

#define CHASSIS_GEMM_ID "chassis.gemm/1"

#define CHASSIS_GEMM_TRANSPOSE_A 1u /* a holds the transposed A: k rows of m elements */
#define CHASSIS_GEMM_TRANSPOSE_B 2u /* b holds the transposed B: n rows of k elements */

/* C[m, n] = alpha · A[m, k] · B[k, n] + beta · C[m, n]. Row-major; rows begin ld… elements apart, at least the length
 * of a row. Products are summed in fp32 and rounded once if C is bf16. C is not read if beta is 0, A and B are not read
 * if k is 0, and nothing happens if C has no elements. */
typedef struct chassis_gemm_problem {
  uint32_t struct_size;
  uint32_t flags;   /* CHASSIS_GEMM_… */
  uint32_t a_dtype; /* each of the three is F32 or BF16 */
  uint32_t b_dtype;
  uint32_t c_dtype;
  uint32_t device_type; /* of all three */
  int64_t m, n, k;
  int64_t lda, ldb, ldc;
  const void* a; /* BORROWED, like b and c; c overlaps neither */
  const void* b;
  void* c;
  float alpha, beta;
} chassis_gemm_problem_t;
#define CHASSIS_GEMM_PROBLEM_V1_SIZE 104u

typedef struct chassis_gemm {
  uint32_t struct_size;
  uint32_t reserved0;
  void* impl;
  /* [step] Blocks until C is complete; computes on the host's threads. The same problem gives the same bits on the same
   * machine with the same number of threads. INVALID_ARGUMENT: invalid sizes, leading dimensions, pointers or flags; C
   * is unchanged. UNIMPLEMENTED: other dtypes, or a device other than the CPU (use chassis.dispatch/1, aten::addmm). */
  chassis_status_t* (*run)(const struct chassis_gemm* g, const chassis_gemm_problem_t* problem);
  /* [any] Bytes of memory that run needs for this problem while it runs; pointers are ignored. */
  uint64_t (*scratch_bytes)(const struct chassis_gemm* g, const chassis_gemm_problem_t* problem);
  /* [step] As run for each of the problems, in no order; no C may overlap a matrix of another problem. Threads compute
   * whole problems, or rows of long ones, side by side, which for many small problems is faster than one after another.
   * `problems` is an array; its stride is the struct_size of the first. The same array gives the same bits on the same
   * machine with the same number of threads; they may differ from those of run. If a problem is refused, no C has
   * changed. */
  chassis_status_t* (*run_many)(const struct chassis_gemm* g, const chassis_gemm_problem_t* problems,
                                uint32_t num_problems);
  /* [any] Bytes of memory that run_many needs for these problems while it runs; pointers are ignored. */
  uint64_t (*many_scratch_bytes)(const struct chassis_gemm* g, const chassis_gemm_problem_t* problems,
                                 uint32_t num_problems);
} chassis_gemm_t;
#define CHASSIS_GEMM_V1_SIZE 48u

#endif
