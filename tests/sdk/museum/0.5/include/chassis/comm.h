/* A collective as plugins request it from the host (chassis/service/comm.h) and the host from a backend
 * (chassis/kind/comm.h): pointers, counts and a dtype; no tensors. */
#ifndef CHASSIS_COMM_H
#define CHASSIS_COMM_H

#include "chassis/abi.h"
#include "chassis/tensor.h"

/* N is the number of ranks, r is a rank. Every rank of the group makes the same calls in the same order, except SENDs
 * and RECVs: a rank makes only its own, and may have none. */
#define CHASSIS_COMM_ALL_GATHER 1u     /* recv[r * count …] = send[0 … count) of rank r */
#define CHASSIS_COMM_REDUCE_SCATTER 2u /* recv[0 … count) = reduction over the ranks of send[own rank * count …] */
#define CHASSIS_COMM_ALL_REDUCE 3u     /* recv[0 … count) = reduction over the ranks of send */
#define CHASSIS_COMM_ALL_TO_ALL 4u     /* recv[r * count …] = send[own rank * count …] of rank r */
#define CHASSIS_COMM_BROADCAST 5u      /* recv[0 … count) = send of rank peer */
#define CHASSIS_COMM_SEND 6u           /* to another rank, peer; in the same batch as its RECV, in any order */
#define CHASSIS_COMM_RECV 7u           /* from rank peer: its n-th SEND to this rank matches the n-th RECV from it */
#define CHASSIS_COMM_BARRIER 8u        /* done when all ranks have started it */

/* Results are the same bits on every rank. Half types are added in fp32 and rounded once, unless the backend says
 * otherwise (CHASSIS_COMM_ROUNDS_HALVES). */
#define CHASSIS_REDUCE_SUM 1u
#define CHASSIS_REDUCE_AVG 2u /* the sum, divided by N; floating types only */
#define CHASSIS_REDUCE_MAX 3u /* undefined for NaNs */

/* One call. send and recv point into memory of the group's device and stay valid and untouched until the work has been
 * waited for. They do not overlap, but may be equal for ALL_REDUCE and BROADCAST; ALL_GATHER's send may be its own part
 * of recv, and REDUCE_SCATTER's recv its own part of send. Pointers that a call does not use are NULL; pointers to
 * empty buffers may be. */
typedef struct chassis_collective {
  uint32_t struct_size;
  uint32_t op;
  uint32_t dtype;  /* CHASSIS_DTYPE_…; reductions take floating types and i32, i64; BARRIER none, 0 */
  uint32_t reduce; /* CHASSIS_REDUCE_…; 0 where nothing is reduced */
  const void* send;
  void* recv;
  uint64_t count; /* elements, as above */
  /* For unequal parts, packed without gaps: N counts each; NULL for equal parts. ALL_GATHER: counts[r] is what rank r
   * sends. REDUCE_SCATTER: counts[r] is what rank r receives. ALL_TO_ALL: this rank sends counts[r] to rank r and
   * receives recv_counts[r] from it. */
  const uint64_t* counts;
  const uint64_t* recv_counts;
  int32_t peer; /* rank in the group */
  uint32_t reserved0;
  chassis_str_t name; /* "layers.3": for messages and the divergence detector; the same on all ranks */
} chassis_collective_t;
#define CHASSIS_COLLECTIVE_V1_SIZE 80u

#endif
