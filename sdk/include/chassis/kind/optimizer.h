/* chassis.optimizer/1, kind "optimizer": the states of each parameter, and a step over many tensors at once. The host
 * owns the states, shards and saves them by role; lr, weight_decay and max_grad_norm are the host's keys. */
#ifndef CHASSIS_KIND_OPTIMIZER_H
#define CHASSIS_KIND_OPTIMIZER_H

#include "chassis/status.h"
#include "chassis/tensor.h"

#define CHASSIS_OPTIMIZER_ID "chassis.optimizer/1"

#define CHASSIS_STATE_LIKE_PARAMETER 1u /* same shape */
#define CHASSIS_STATE_SCALAR 2u         /* one element, which must not depend on the parameter's elements */
#define CHASSIS_STATE_PER_BLOCK 3u      /* one value for each `block` row-major elements; the last may cover fewer */

/* The places where a state, and with it its parameter, gradient and other states, may be cut: the coarsest granularity
 * counts. Each granularity goes with each shape, but a PER_BLOCK state is never cut inside a block, whatever its
 * granularity. */
#define CHASSIS_GRANULARITY_ELEMENT 1u  /* may be cut between any two elements */
#define CHASSIS_GRANULARITY_BLOCK 2u    /* only at multiples of block elements; pieces have one dim */
#define CHASSIS_GRANULARITY_MATRIX 3u   /* nowhere: one rank has the whole tensor and steps it for all */

/* A parameter that is trained. */
typedef struct chassis_optimizer_parameter {
  uint32_t struct_size;
  uint32_t role; /* CHASSIS_ROLE_… of chassis/kind/model.h */
  chassis_str_t name;
  const int64_t* global_shape; /* num_dims sizes of the whole parameter, the same on all ranks */
  uint32_t num_dims;
  uint32_t num_boxes; /* 0 in states(), which is called before parameters are divided */
  /* The elements of the whole parameter that this rank steps, in the order of the tensors of a step, which may have
   * padding after them: for each box, num_dims begins, then num_dims ends. */
  const int64_t* boxes;
} chassis_optimizer_parameter_t;
#define CHASSIS_OPTIMIZER_PARAMETER_V1_SIZE 48u

/* One state of a parameter. */
typedef struct chassis_state_desc {
  uint32_t struct_size;
  uint32_t dtype;
  chassis_str_t role; /* "exp_avg": names it on disk, "<parameter>.exp_avg"; letters, digits and '_', at most 128 */
  uint32_t shape;     /* CHASSIS_STATE_… */
  uint32_t granularity;
  int64_t block;
  double initial; /* value of every element before the first step */
} chassis_state_desc_t;
#define CHASSIS_STATE_DESC_V1_SIZE 48u

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
  const chassis_tensor_t* states; /* those of the first tensor, then those of the second, … */
  /* Per tensor; 0 where decay does not apply. Decoupled from the update, as in AdamW: p ← p − lr · weight_decay · p,
   * before the update or after it. `chassis plugins check` compares two steps; adding decay to the gradient gives the
   * same result only for plain gradient descent without momentum. */
  const double* weight_decay;
  const double* lr_scale;         /* per tensor; NULL: all 1 */
  void* stream;                   /* the CUDA stream to queue on; NULL on the CPU */
  void* workspace;                /* what workspace_bytes() asked for, on the tensors' device, 64-byte aligned */
  uint64_t workspace_bytes;
  const uint32_t* num_states;                             /* per tensor */
  const chassis_optimizer_parameter_t* const* parameters; /* per tensor */
  /* One fp32 value on the tensors' device, another factor of the gradients; NULL: 1. */
  chassis_tensor_t device_grad_scale;
  void* impl;
  /* [step][all-ranks] With CHASSIS_OPTIMIZER_SUMS; else NULL. Sums over all trained parameters, each
   * element counted once, whichever ranks have it: `values` has num_values for each tensor of the step, from this
   * rank's elements; `sums` gets num_values, the same bits on every rank. Blocks. Every rank calls it equally often,
   * even one without tensors. The caller returns an error unchanged. */
  chassis_status_t* (*sum_over_parameters)(const struct chassis_optimizer_step* step, const double* values,
                                           uint32_t num_values, double* sums);
} chassis_optimizer_step_t;
#define CHASSIS_OPTIMIZER_STEP_V1_SIZE 136u

/* step() calls sum_over_parameters. The host then calls step() once per step on every rank, with all tensors of the
 * rank (num_tensors = 0 where it has none), and refuses whatever would need more calls. */
#define CHASSIS_OPTIMIZER_SUMS 1u

typedef struct chassis_optimizer {
  uint32_t struct_size;
  uint32_t reserved0;
  /* [control] The states of a parameter: *num_states of them, with the struct_size of the first as stride; valid as
   * long as the instance. They may depend on role, name and global shape only, so that all ranks agree in every mesh.
   */
  chassis_status_t* (*states)(struct chassis_instance* self, const chassis_optimizer_parameter_t* parameter,
                              const chassis_state_desc_t** states, uint32_t* num_states);
  /* [step] Same inputs give the same bits with any number of threads. It must not communicate, except through
   * sum_over_parameters, since different meshes give a rank different tensors to step. */
  chassis_status_t* (*step)(struct chassis_instance* self, const chassis_optimizer_step_t* step);
  /* [control] Bytes of scratch for a step over these parameters. NULL: none. */
  uint64_t (*workspace_bytes)(struct chassis_instance* self, const chassis_optimizer_parameter_t* const* parameters,
                              uint32_t num_parameters);
  uint32_t flags; /* CHASSIS_OPTIMIZER_… */
  uint32_t reserved1;
  /* [control] Refuses, with the reason, a device (CHASSIS_DEVICE_…) whose tensors step() cannot update: asked before
   * step 1 about each device on which this rank stores parameters. NULL: all devices. */
  chassis_status_t* (*supports)(struct chassis_instance* self, uint32_t device_type, int32_t device_index);
} chassis_optimizer_t;
#define CHASSIS_OPTIMIZER_V1_SIZE 48u

#endif
