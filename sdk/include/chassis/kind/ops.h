/* chassis.ops/1, kind "ops": computes nodes of the program. A member that claims only attention may also be named in
 * [attention].
 *
 * Order of calls for a node: claim → infer → create_kernel → (forward → backward_inputs, backward_params)* →
 * destroy_kernel. The host matches `patterns` over the recorded ops, longest first; the first provider in the user's
 * order that claims a node gets it. All providers that "auto" compares are asked, and the cheapest gets the node. So
 * infer may be asked about a node that another provider then gets. `chassis check --graph` shows refusals and costs. */
#ifndef CHASSIS_KIND_OPS_H
#define CHASSIS_KIND_OPS_H

#include "chassis/op.h"
#include "chassis/status.h"

#define CHASSIS_OPS_ID "chassis.ops/1"

#define CHASSIS_COMPONENT_COLUMN 1u       /* files hold it as one column: [values, 1] */
#define CHASSIS_COMPONENT_NOT_IN_FILES 2u /* files of the model do not have it as a tensor */

/* One of the tensors in which a quantized parameter is stored; see chassis/kind/quant.h. It is one-dimensional, and has
 * unit_values for every unit_elements row-major elements of the parameter, even for a last unit with fewer elements. */
typedef struct chassis_component {
  uint32_t struct_size;
  uint32_t dtype;
  chassis_str_t suffix;  /* appended to the parameter's name: ".absmax"; "" for the first */
  int64_t unit_elements; /* 0: num_values for the whole parameter, which every rank has */
  int64_t unit_values;
  int64_t num_values;    /* if unit_elements is 0 */
  uint32_t staged_dtype; /* what encode() writes, if finish() makes the stored values from it; else 0 */
  uint32_t flags;        /* CHASSIS_COMPONENT_… */
} chassis_component_t;
#define CHASSIS_COMPONENT_V1_SIZE 56u

/* A value or parameter as one node sees it, with this rank's sizes. A quantized parameter has the shape of its
 * elements, and the dtype in which ops compute. */
typedef struct chassis_operand {
  uint32_t struct_size;
  uint32_t dtype;
  uint32_t num_dims;
  uint32_t needs_grad;        /* inputs and params: 1 if its gradient is wanted */
  const int64_t* local_shape; /* B, T and bounded dims as planned; calls may have others */
  const chassis_str_t* dims;  /* names; for params "heads*head_dim" */
  /* Only for a quantized parameter, else none. Its op has the attribute storage, which says how to read them. */
  uint64_t num_components;
  const chassis_component_t* const* components;
  /* For a quantized parameter of which local_shape is only a part: the sizes of the whole parameter, and
   * where the part begins in each dim. Else NULL. Only with CHASSIS_STORAGE_DIVISIBLE (chassis/kind/quant.h). */
  const int64_t* whole_shape;
  const int64_t* begin;
} chassis_operand_t;
#define CHASSIS_OPERAND_V1_SIZE 64u

/* One recorded op inside a node; operands are indexes into the node's operand table, CHASSIS_ABSENT if left out. */
typedef struct chassis_op_view {
  uint32_t struct_size;
  uint32_t num_attrs;
  chassis_str_t id;
  const chassis_attr_t* attrs;
  const uint32_t* inputs;
  const uint32_t* params;
  const uint32_t* outputs;
  uint32_t num_inputs;
  uint32_t num_params;
  uint32_t num_outputs;
  uint32_t reserved0;
} chassis_op_view_t;
#define CHASSIS_OP_VIEW_V1_SIZE 72u

#define CHASSIS_NODE_TRAINING 1u /* backward will be called */

/* One op, or a run of ops that a pattern matched. inputs/params/outputs list what enters and leaves the node as a
 * whole, in the order in which calls pass tensors. For a single op they are its own. */
typedef struct chassis_node {
  uint32_t struct_size;
  uint32_t flags;     /* CHASSIS_NODE_… */
  chassis_str_t name; /* "layers.q_proj": for messages */
  uint32_t device_type;
  int32_t device_index;
  const chassis_operand_t* const* operands;
  const chassis_op_view_t* const* ops;
  const uint32_t* inputs;
  const uint32_t* params;
  const uint32_t* outputs;
  uint32_t num_operands;
  uint32_t num_ops;
  uint32_t num_inputs;
  uint32_t num_params;
  uint32_t num_outputs;
  uint32_t reserved0;
} chassis_node_t;
#define CHASSIS_NODE_V1_SIZE 96u

typedef struct chassis_saved {
  uint32_t dtype;
  uint32_t num_dims;
  int64_t sizes[6];
} chassis_saved_t;

/* The host allocates outputs and passes them non-NULL; else the provider makes them. */
#define CHASSIS_KERNEL_HOST_OUTPUTS 1u
/* backward_inputs adds to a grad_inputs[i] that is passed non-NULL; else the host adds. */
#define CHASSIS_KERNEL_ADDS_GRAD_INPUTS 2u
/* The kernel has no backward: the host differentiates forward with LibTorch's autograd. Forward must call only ATen. */
#define CHASSIS_KERNEL_COMPOSED 4u
/* Loss nodes: offers forward_backward, so that gradients are computed while the logits exist. */
#define CHASSIS_KERNEL_FORWARD_BACKWARD 8u
/* The host passes workspace_…_bytes of infer in chassis_call.workspace; else the kernel allocates them itself. */
#define CHASSIS_KERNEL_HOST_WORKSPACE 16u
/* For attention with key_part: saved 0 is log_sum, as chassis/op.h describes. */
#define CHASSIS_KERNEL_LOG_SUM 32u
/* For a run of ops: the kernel also writes the values between them that something else reads; they are outputs of the
 * node. Without this flag a node with such an output is offered to the next provider. */
#define CHASSIS_KERNEL_INNER_OUTPUTS 64u

/* One way in which the blocks of threads of an attention kernel divide the work: each computes `queries` queries
 * together, and reads `keys` keys at a time. Both are greater than 0. The bytes are those of one block of threads,
 * static and dynamic together; 0: it uses no shared memory. */
typedef struct chassis_tile {
  uint32_t queries;
  uint32_t keys;
  uint64_t shared_forward_bytes;
  uint64_t shared_backward_bytes; /* the most that any kernel of backward uses */
} chassis_tile_t;

/* The resources that running the node needs; `plan` adds them up and the executor checks them. Bytes are those at the
 * node's local shapes. */
typedef struct chassis_infer {
  uint32_t struct_size;
  uint32_t flags;             /* CHASSIS_KERNEL_… */
  uint32_t keeps_inputs;      /* bit i: backward reads inputs[i]; bits beyond the inputs are ignored */
  uint32_t keeps_outputs;     /* bit i: backward reads outputs[i] */
  uint32_t num_saved;         /* further tensors from forward to backward, at most 4 */
  uint32_t overwrites_inputs; /* bit i: output 0 may take the memory of inputs[i] if this is its last use; needs
                                 HOST_OUTPUTS */
  chassis_saved_t saved[4];
  uint64_t workspace_forward_bytes;
  uint64_t workspace_backward_bytes;
  /* The tiles that the provider has for the node, at most 64. STATIC, or owned by the instance and unchanged until its
   * next infer: the host copies them. If the tile that the kernel will use needs more shared memory than the device
   * gives a block of threads, in forward or in a backward that will be called, the node counts as refused; the reason
   * names both numbers and the tiles that fit. Without tiles nothing is compared. */
  const chassis_tile_t* tiles;
  uint32_t num_tiles;
  uint32_t tile; /* index of the one that the kernel will use; 0 without tiles */
} chassis_infer_t;
#define CHASSIS_INFER_V1_SIZE 280u

#define CHASSIS_CALL_TRAINING 1u /* saved[] will be read by a backward */

/* Arguments of a call; arrays follow the node's order. Handles are borrowed unless stated otherwise. Shapes are those
 * of the tensors themselves. Gradients have the dtype of their value, parameter gradients are fp32.
 *
 * Every tensor passed in is contiguous. Every tensor returned (outputs, saved, grad_inputs) is a handle that the
 * provider owns: new, or retained; never a borrowed one, nor one handle in two places. Outputs and gradients are
 * contiguous, of the dtype and shape of their value, and outputs have their own memory, not that of an input or
 * parameter. The host checks all of this at every call and names the provider. */
typedef struct chassis_call {
  uint32_t struct_size;
  uint32_t flags; /* CHASSIS_CALL_… */
  /* NULL for an absent optional (no document_ids: one document per row); backward: NULL unless kept. */
  const chassis_tensor_t* inputs;
  const chassis_tensor_t* params; /* NULL for an absent optional; for a quantized one, its first component */
  /* forward: filled by the kernel, OWNED by the host; those non-NULL on entry are written in place.
   * backward: NULL unless kept, borrowed. */
  chassis_tensor_t* outputs;
  chassis_tensor_t* saved;              /* forward: NULL on entry, then OWNED, num_saved of infer; backward: borrowed */
  const chassis_tensor_t* grad_outputs; /* backward; NULL = zero */
  /* backward_inputs: one per input, OWNED by the host. Non-NULL on entry: add to it. Left NULL: no gradient. */
  chassis_tensor_t* grad_inputs;
  const uint8_t* needs_grad_inputs;
  /* backward_params: fp32 buffers of the host, one per param; NULL: not wanted. Written if grad_params_beta[i] is 0,
   * added to if it is 1. */
  const chassis_tensor_t* grad_params;
  const float* grad_params_beta;
  /* attention with a key-value cache, and ops with query_part: position in the row of the first query; keys start at 0.
   * Otherwise 0. */
  int64_t query_offset;
  void* stream; /* the CUDA stream to queue on; NULL on the CPU */
  /* HOST_WORKSPACE: scratch on the node's device, 64-byte aligned, of undefined content, until the call returns; NULL
   * if infer asked for none. */
  void* workspace;
  uint64_t workspace_bytes; /* at least what infer asked for; proportionally more for more rows or positions */
  /* For ops with random bits; see dropout in chassis/op.h. random_key differs for every step, unit and op, and is the
   * same in forward, in a repeated forward and in backward. Row b of the call is row first_row + b of the step. */
  uint64_t random_key;
  int64_t first_row;
  /* One per param: all components of a quantized one, in the order of its operand; NULL for the others. */
  const chassis_tensor_t* const* components;
  /* For attention with key_part: position of the first key, and the number of positions of the row. */
  int64_t key_offset;
  int64_t num_positions;
} chassis_call_t;
#define CHASSIS_CALL_V1_SIZE 152u

typedef struct chassis_ops {
  uint32_t struct_size;
  uint32_t num_patterns;
  /* Static: op ids joined by '+', such as "linear", "add+rms_norm". */
  const chassis_str_t* patterns;
  /* [control] NULL: claimed, and *cost is an estimate in nanoseconds (0 or less: unknown) of forward and, in training,
   * of backward, on the node's device with the host's threads; the same node always costs the same. UNIMPLEMENTED:
   * refused, with the reason as text ("head_dim 80 is not a multiple of 16"). Any other status is an error, and so is a
   * cost of NaN. An attribute that the provider does not know must be a reason to refuse: it changes the result. */
  chassis_status_t* (*claim)(struct chassis_instance* self, const chassis_node_t* node, double* cost);
  /* [control] Pure. The host passes `out` zeroed, with struct_size set. */
  chassis_status_t* (*infer)(struct chassis_instance* self, const chassis_node_t* node, chassis_infer_t* out);
  /* [control] `node` is borrowed for the call; copy what the kernel needs. */
  chassis_status_t* (*create_kernel)(struct chassis_instance* self, const chassis_node_t* node,
                                     CHASSIS_OWNED void** kernel);
  void (*destroy_kernel)(struct chassis_instance* self, CHASSIS_STOLEN void* kernel);
  /* [step] Runs with autograd off (on for COMPOSED). May be called again for recompute: the same inputs must give the
   * same bits. */
  chassis_status_t* (*forward)(struct chassis_instance* self, void* kernel, chassis_call_t* call);
  /* [step] NULL if COMPOSED, or if no input can have a gradient. Called before backward_params, or alone. */
  chassis_status_t* (*backward_inputs)(struct chassis_instance* self, void* kernel, chassis_call_t* call);
  /* [step] NULL if the node has no params. */
  chassis_status_t* (*backward_params)(struct chassis_instance* self, void* kernel, chassis_call_t* call);
  /* [step] FORWARD_BACKWARD only: forward with grad_outputs already known; also fills grad_inputs and grad_params. */
  chassis_status_t* (*forward_backward)(struct chassis_instance* self, void* kernel, chassis_call_t* call);
} chassis_ops_t;
#define CHASSIS_OPS_V1_SIZE 80u

#endif
