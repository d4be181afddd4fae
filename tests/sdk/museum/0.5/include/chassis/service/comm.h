/* chassis.comm/1: collectives over groups of ranks, named by mesh axes. Calls that differ between ranks, or that a rank
 * never makes, end in an error that names both ranks' calls, not in a hang. Failures are ABORTED: another rank failed,
 * the ranks' calls differ, or a rank did not call within [comm] timeout_s; the message says which. */
#ifndef CHASSIS_SERVICE_COMM_H
#define CHASSIS_SERVICE_COMM_H

#include "chassis/comm.h"
#include "chassis/status.h"

#define CHASSIS_COMM_ID "chassis.comm/1"

typedef struct chassis_comm_group chassis_comm_group_t; /* owned by the host, valid for the run */
typedef struct chassis_comm_work chassis_comm_work_t;

typedef struct chassis_comm {
  uint32_t struct_size;
  uint32_t reserved0;
  void* impl;
  /* [control][all-ranks] The ranks that differ from this one only on these mesh axes; no axes: all ranks. The same
   * axes give the same group. A group of one rank is legal: its collectives copy. NOT_FOUND for an unknown axis. */
  chassis_status_t* (*group)(const struct chassis_comm* s, const chassis_str_t* axes, uint32_t num_axes,
                             const chassis_comm_group_t** out);
  /* [any] */
  uint32_t (*size)(const chassis_comm_group_t* group);
  uint32_t (*rank)(const chassis_comm_group_t* group);
  /* [step][all-ranks] (all ranks of the group) Starts the calls as one. FAILED_PRECONDITION for an invalid call. */
  chassis_status_t* (*start)(const struct chassis_comm* s, const chassis_comm_group_t* group,
                             const chassis_collective_t* const* calls, uint32_t num_calls,
                             CHASSIS_OWNED chassis_comm_work_t** out);
  /* [step] Blocks until the results may be read: by the host on the CPU, by the current stream on CUDA. Releases the
   * work, also on failure. */
  chassis_status_t* (*wait)(const struct chassis_comm* s, CHASSIS_STOLEN chassis_comm_work_t* work);
  /* [step] 1 if wait would not block. */
  int32_t (*done)(const struct chassis_comm* s, chassis_comm_work_t* work);
  /* [step][all-ranks] (all ranks of the run) Each rank passes its status, or NULL; it is stolen. Returns NULL on all
   * ranks, or on all ranks the error of the lowest rank that has one, naming that rank. */
  chassis_status_t* (*agree)(const struct chassis_comm* s, chassis_str_t what, CHASSIS_STOLEN chassis_status_t* mine);
} chassis_comm_t;
#define CHASSIS_COMM_V1_SIZE 72u

#endif
