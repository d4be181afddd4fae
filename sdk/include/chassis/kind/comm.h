/* chassis.comm_backend/1, kind "comm": carries out collectives over groups of ranks. The host checks arguments,
 * compares the calls of ranks that wait for each other, applies deadlines and watches for failed ranks; a backend only
 * moves bytes. */
#ifndef CHASSIS_KIND_COMM_H
#define CHASSIS_KIND_COMM_H

#include "chassis/comm.h"
#include "chassis/status.h"

#define CHASSIS_COMM_BACKEND_ID "chassis.comm_backend/1"

/* The rendezvous that the ranks of one group share; each group has its own keys. All [any], thread-safe. */
typedef struct chassis_store {
  uint32_t struct_size;
  uint32_t reserved0;
  void* impl;
  chassis_status_t* (*set)(const struct chassis_store* s, chassis_str_t key, chassis_str_t value);
  /* Blocks until the key exists: DEADLINE_EXCEEDED after timeout_ns, ABORTED if a rank failed. Calls `take` once with
   * the value, borrowed. */
  chassis_status_t* (*get)(const struct chassis_store* s, chassis_str_t key, uint64_t timeout_ns,
                           void (*take)(void* context, chassis_str_t value), void* context);
  /* Adds to a counter that starts at 0; *out is the new value. */
  chassis_status_t* (*add)(const struct chassis_store* s, chassis_str_t key, int64_t amount, int64_t* out);
} chassis_store_t;
#define CHASSIS_STORE_V1_SIZE 40u

typedef struct chassis_comm_group_desc {
  uint32_t struct_size;
  uint32_t size;            /* ranks in the group */
  uint32_t rank;            /* this one's, 0 … size - 1 */
  uint32_t device_type;     /* CHASSIS_DEVICE_…, of the memory */
  int32_t device_index;
  uint32_t reserved0;
  chassis_str_t name;       /* "dp_shard", unique in the run; may be used in keys and file names */
  const chassis_store_t* store; /* lives as long as the group; NULL for a backend that moves nothing */
  uint64_t timeout_ns;          /* for forming the group; also for a call, if the backend needs its own timeout */
  chassis_str_t host;       /* an address of this machine that the other ranks can reach */
} chassis_comm_group_desc_t;
#define CHASSIS_COMM_GROUP_DESC_V1_SIZE 72u

/* Defined by the backend. */
typedef struct chassis_backend_group chassis_backend_group_t;
typedef struct chassis_backend_work chassis_backend_work_t;

/* Properties. */
#define CHASSIS_COMM_MOVES_NOTHING 1u /* serves any world in one process, buffers may be NULL; for plans and tests */
#define CHASSIS_COMM_ROUNDS_HALVES 2u /* sums of half types are rounded at each addition */

/* The host does not use a group again after a call has failed. A status may carry the fact "peer": the rank in the
 * group that is gone. */
typedef struct chassis_comm_backend {
  uint32_t struct_size;
  uint32_t properties;
  /* [control] NULL if the backend can serve memory of this device here; else UNIMPLEMENTED with the reason. */
  chassis_status_t* (*supports)(struct chassis_instance* self, uint32_t device_type, int32_t device_index);
  /* [control][all-ranks] (all ranks of the group) Blocks until all have called or desc->timeout_ns has passed. */
  chassis_status_t* (*create_group)(struct chassis_instance* self, const chassis_comm_group_desc_t* desc,
                                    CHASSIS_OWNED chassis_backend_group_t** out);
  /* [control] Called after the group's last work is released. */
  void (*destroy_group)(struct chassis_instance* self, CHASSIS_STOLEN chassis_backend_group_t* group);
  /* [step][all-ranks] Starts num_calls calls as one; does not block. The works of a group are carried out in order.
   * `stream` is a CUDA stream or NULL: the calls begin after the work already queued on it. `calls` and what it points
   * to are borrowed; the buffers must stay valid until the work is done. Ranks whose calls do not match may wait for
   * each other forever: the host ends the wait and reports both ranks' calls. Such calls must not end the process. */
  chassis_status_t* (*start)(struct chassis_instance* self, chassis_backend_group_t* group,
                             const chassis_collective_t* const* calls, uint32_t num_calls, void* stream,
                             CHASSIS_OWNED chassis_backend_work_t** out);
  /* [step] Blocks the caller until the work is done. After timeout_ns it returns DEADLINE_EXCEEDED and the work
   * continues; the caller may wait again. */
  chassis_status_t* (*wait)(struct chassis_instance* self, chassis_backend_work_t* work, uint64_t timeout_ns);
  /* [step] Whatever is queued on `stream` from now on begins after the work; does not block. NULL if not offered: the
   * host calls wait instead. */
  chassis_status_t* (*wait_on_stream)(struct chassis_instance* self, chassis_backend_work_t* work, void* stream);
  /* [any] 1 if done or failed, 0 if not yet. */
  int32_t (*done)(struct chassis_instance* self, chassis_backend_work_t* work);
  /* [any] Called after wait, or before it to give up the group. When it returns, the backend no longer touches the
   * buffers. */
  void (*release)(struct chassis_instance* self, CHASSIS_STOLEN chassis_backend_work_t* work);
  /* [any] Ends work in flight as far as the backend can, so that waits return; the group is not used again. */
  void (*abort)(struct chassis_instance* self, chassis_backend_group_t* group);
} chassis_comm_backend_t;
#define CHASSIS_COMM_BACKEND_V1_SIZE 80u

#endif
