/* chassis.optimizer/1, kind "optimizer": a state schema and a step over many tensors at once. The host owns the states,
 * shards and saves them by role; lr, weight_decay and max_grad_norm are the host's keys. */
#ifndef CHASSIS_KIND_OPTIMIZER_H
#define CHASSIS_KIND_OPTIMIZER_H

#include "chassis/status.h"
#include "chassis/tensor.h"

#define CHASSIS_OPTIMIZER_ID "chassis.optimizer/1"

#define CHASSIS_STATE_LIKE_PARAMETER 1u /* same shape */
#define CHASSIS_STATE_SCALAR 2u         /* one element, which must not depend on the parameter's elements */
#define CHASSIS_STATE_PER_BLOCK 3u      /* one value for each `block` row-major elements; the last may cover fewer */

/* Where a state may be cut, and with it its parameter, gradient and other states: the coarsest granularity counts. */
#define CHASSIS_GRANULARITY_ELEMENT 1u  /* may be cut between any two elements */
#define CHASSIS_GRANULARITY_BLOCK 2u    /* only at multiples of block elements; pieces have one dim */
#define CHASSIS_GRANULARITY_MATRIX 3u   /* not at all: one rank has the whole tensor and steps it for all */

/* One state per parameter, zero at the start. */
typedef struct chassis_state_desc {
  uint32_t struct_size;
  uint32_t dtype;
  chassis_str_t role; /* "exp_avg": names it on disk, "<parameter>.exp_avg" */
  uint32_t shape;     /* CHASSIS_STATE_… */
  uint32_t granularity;
  int64_t block;
} chassis_state_desc_t;
#define CHASSIS_STATE_DESC_V1_SIZE 40u

/* A step over num_tensors parameters. All tensors of one index have the same shape, except states whose shape is not
 * LIKE_PARAMETER; params and grads are fp32. */
typedef struct chassis_optimizer_step {
  uint32_t struct_size;
  uint32_t num_tensors;
  int64_t step;              /* 1 for the first */
  double lr;
  double grad_scale;         /* multiply gradients by this first: clipping, unscaling */
  const chassis_tensor_t* params; /* updated in place */
  const chassis_tensor_t* grads;  /* may be overwritten */
  const chassis_tensor_t* states; /* num_states per tensor: states[i * num_states + j] */
  /* Per tensor; 0 where decay does not apply. Decoupled from the update, as in AdamW: p ← p − lr · weight_decay · p.
   * `chassis plugins check` compares two steps; adding decay to the gradient gives the same result only for plain
   * gradient descent without momentum. */
  const double* weight_decay;
  const double* lr_scale;         /* per tensor; NULL: all 1 */
  void* stream;                   /* the CUDA stream to queue on; NULL on the CPU */
  void* workspace;                /* what workspace_bytes() asked for, on the tensors' device, 64-byte aligned */
  uint64_t workspace_bytes;
} chassis_optimizer_step_t;
#define CHASSIS_OPTIMIZER_STEP_V1_SIZE 96u

typedef struct chassis_optimizer {
  uint32_t struct_size;
  uint32_t reserved0;
  /* [control] Static for the instance. */
  uint32_t (*num_states)(struct chassis_instance* self);
  /* [control] i < num_states; valid as long as the instance. */
  const chassis_state_desc_t* (*state)(struct chassis_instance* self, uint32_t i);
  /* [step] Same inputs give the same bits with any number of threads. */
  chassis_status_t* (*step)(struct chassis_instance* self, const chassis_optimizer_step_t* step);
  /* [control] Bytes of scratch for a step over tensors of these numbers of elements. NULL: none. */
  uint64_t (*workspace_bytes)(struct chassis_instance* self, const int64_t* num_elements, uint32_t num_tensors);
} chassis_optimizer_t;
#define CHASSIS_OPTIMIZER_V1_SIZE 40u

#endif
