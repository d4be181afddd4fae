/* chassis.adapter/1, kind "adapter": adds parameters and ops to a recorded model and says which of its parameters are
 * trained, as LoRA does (Hu et al. 2021). The host offers every parameter and then every op of the model, block by
 * block; the plugin sees no tensor except in merge(). Blocks that it extends in the same way remain one block type.
 *
 * Order of calls: configure; parameter for the whole model; extend for the whole model; finish. The others may be
 * called at any time after that. Recorded parameters are frozen unless parameter() says otherwise; those that the
 * plugin adds are trained. */
#ifndef CHASSIS_KIND_ADAPTER_H
#define CHASSIS_KIND_ADAPTER_H

#include "chassis/kind/model.h"

#define CHASSIS_ADAPTER_ID "chassis.adapter/1"

/* A parameter of the model. Parameter and module names are those of the model's files, where they differ. */
typedef struct chassis_adapter_parameter {
  uint32_t struct_size;
  uint32_t role;        /* CHASSIS_ROLE_… */
  chassis_str_t name;   /* "model.layers.3.self_attn.q_proj.weight" */
  const int64_t* sizes; /* whole, undivided */
  uint64_t num_dims;
  /* The op that reads it, as extend() would get it: a bias is the second parameter of a linear. Empty if none. */
  chassis_str_t module; /* "model.layers.3.self_attn.q_proj" */
  chassis_str_t op;     /* "linear" */
  int64_t layer;        /* index of its block in a chain with {i}; else -1 */
  /* Names of the slots that are tied to this parameter: "lm_head.weight". */
  const chassis_str_t* tied;
  uint64_t num_tied;
} chassis_adapter_parameter_t;
#define CHASSIS_ADAPTER_PARAMETER_V1_SIZE 96u

/* One axis of a parameter, with its whole size. */
typedef struct chassis_adapter_axis {
  const chassis_dim_t* dims;
  uint64_t num_dims;
  int64_t size;
} chassis_adapter_axis_t;

/* An op of the model that has parameters, in one block. Values and dims are those of the builder in the same call. */
typedef struct chassis_adapter_op {
  uint32_t struct_size;
  uint32_t role;         /* of its first parameter: CHASSIS_ROLE_HEAD is the projection to the vocabulary */
  chassis_str_t op;      /* "linear" */
  chassis_str_t name;    /* "q_proj" */
  chassis_str_t block;   /* the block type: "layer" */
  chassis_str_t chain;   /* "layers" */
  chassis_str_t module;  /* name of its first parameter without the last part: "model.layers.3.self_attn.q_proj" */
  int64_t layer;         /* index of its block in a chain with {i}; else -1 */
  chassis_value_t input; /* the first */
  chassis_value_t output;
  const chassis_dim_t* input_dims;
  const chassis_dim_t* output_dims;
  uint32_t num_input_dims;
  uint32_t num_output_dims;
  const chassis_adapter_axis_t* weight_axes; /* of the first parameter: a linear has [out, in], a grouped_linear
                                                [experts, out, in] */
  uint32_t num_weight_axes;
  uint32_t has_bias;   /* a linear or norm with a second parameter */
  uint32_t num_joined; /* number of ops, this one included, whose weights are one tensor in files, such as 3 for
                          qkv_proj; they share the module */
  uint32_t reserved0;
  /* Full name of its first parameter in the program: "model.layers.3.mlp.experts.up_proj.weight". It differs from the
   * name that `module` begins where files divide, join or rename the parameter. */
  chassis_str_t parameter;
  chassis_value_t experts; /* the second input of a grouped_linear, [B, T, k] i32; else CHASSIS_ABSENT */
  uint32_t num_experts_dims;
  const chassis_dim_t* experts_dims;
} chassis_adapter_op_t;
#define CHASSIS_ADAPTER_OP_V1_SIZE 184u

/* Records into one block, during one call of extend(). Ops read inputs and the output of the op, values recorded in the
 * call, and values recorded in earlier calls for ops of the same block, so that several ops can share a parameter. */
typedef struct chassis_adapter_builder {
  uint32_t struct_size;
  uint32_t reserved0;
  void* impl;
  /* Offers dim, slot and op; its other functions return FAILED_PRECONDITION. Slot names are relative to the op's
   * module: "lora_A.weight" becomes "model.layers.3.self_attn.q_proj.lora_A.weight". Roles and inits as in model.h. */
  const chassis_builder_t* record;
  /* [control] The op reads `value` instead of its first input. `value` must have the same dims and must not depend on
   * the op's output. */
  chassis_status_t* (*replace_input)(const struct chassis_adapter_builder* b, chassis_value_t value);
  /* [control] All readers of the op's output read `value` instead, except ops recorded in this call. Same dims. */
  chassis_status_t* (*replace_output)(const struct chassis_adapter_builder* b, chassis_value_t value);
} chassis_adapter_builder_t;
#define CHASSIS_ADAPTER_BUILDER_V1_SIZE 40u

/* A parameter that the plugin added, with its values; or a tensor in files, without. */
typedef struct chassis_adapter_tensor {
  uint32_t struct_size;
  uint32_t num_dims;
  chassis_str_t name; /* as in extend(): "lora_A.weight"; in files(): "model.layers.3.mlp.experts.lora_A.weight" */
  const int64_t* sizes;
  const float* values; /* whole, row-major; NULL in files() */
} chassis_adapter_tensor_t;
#define CHASSIS_ADAPTER_TENSOR_V1_SIZE 40u

/* A box of a parameter of an op that extend() has extended: rows and columns of a weight [out, in], or of one expert of
 * a weight [experts, out, in]; a parameter of one dim has one column. */
typedef struct chassis_adapter_merge {
  uint32_t struct_size;
  uint32_t num_tensors;
  chassis_str_t module;
  chassis_str_t parameter; /* the rest of its name: "weight" */
  int64_t row_begin, num_rows;
  int64_t column_begin, num_columns;
  float* values; /* num_rows × num_columns, row-major, written in place */
  /* All that the plugin added to this op, and to earlier ops where this one's ops read a value that depends on it. */
  const chassis_adapter_tensor_t* const* tensors;
  int64_t expert;     /* which one; 0 without experts */
  chassis_str_t name; /* full name, as in chassis_adapter_op: "model.layers.3.mlp.experts.up_proj.weight" */
} chassis_adapter_merge_t;
#define CHASSIS_ADAPTER_MERGE_V1_SIZE 112u

/* A part of a parameter that the plugin added, and its place in a tensor of the adapter's files. Dim k of the tensor is
 * dim dims[k] of the parameter; along the dims of the parameter that `dims` leaves out, the part has size 1. */
typedef struct chassis_adapter_part {
  uint32_t struct_size;
  uint32_t num_dims;       /* of the parameter */
  chassis_str_t parameter; /* full name: "model.layers.3.mlp.experts.up_proj.lora_B.weight" */
  const int64_t* begin;
  const int64_t* end;
  chassis_str_t tensor;        /* its name in files: "model.layers.3.mlp.experts.lora_B.weight" */
  const int64_t* tensor_sizes; /* whole */
  const int64_t* tensor_begin; /* where the part begins */
  const uint32_t* dims;
  uint32_t num_tensor_dims;
  uint32_t reserved0;
} chassis_adapter_part_t;
#define CHASSIS_ADAPTER_PART_V1_SIZE 88u

/* [control] Receives the places of parameters in files; everything passed is copied. The parts of a parameter must
 * cover each of its elements once. A parameter without a part is a tensor of its shape, whose name is that of the
 * module in files and its name in extend(). */
typedef struct chassis_adapter_files {
  uint32_t struct_size;
  uint32_t num_tensors;
  void* impl;
  const chassis_adapter_tensor_t* const* tensors; /* of files that are read; none if files are written */
  chassis_str_t config_json;                      /* the model's config.json */
  chassis_status_t* (*part)(const struct chassis_adapter_files* files, const chassis_adapter_part_t* part);
} chassis_adapter_files_t;
#define CHASSIS_ADAPTER_FILES_V1_SIZE 48u

/* The base model, as described in an adapter's configuration file. */
typedef struct chassis_adapter_base {
  uint32_t struct_size;
  uint32_t reserved0;
  chassis_str_t path;        /* model.path; empty if the model has random weights */
  chassis_str_t config_json; /* the model's config.json */
} chassis_adapter_base_t;
#define CHASSIS_ADAPTER_BASE_V1_SIZE 40u

typedef struct chassis_adapter {
  uint32_t struct_size;
  uint32_t reserved0;
  /* [control] Gets the text of adapter_config.json in [adapter] path; empty without a path. Called once, before all
   * others. Refuses what the plugin cannot do, by name, and what contradicts an option that the user wrote. */
  chassis_status_t* (*configure)(struct chassis_instance* self, chassis_str_t config_json);
  /* [control] Sets *trained to 1 if this parameter of the model is trained. Tied slots are offered once. NULL: all are
   * frozen. */
  chassis_status_t* (*parameter)(struct chassis_instance* self, const chassis_adapter_parameter_t* parameter,
                                 uint32_t* trained);
  /* [control] Records the additions to this op, if any. */
  chassis_status_t* (*extend)(struct chassis_instance* self, const chassis_adapter_op_t* op,
                              const chassis_adapter_builder_t* builder);
  /* [control] Called after the whole model was offered; refuses options that matched nothing. NULL: nothing to
   * refuse. */
  chassis_status_t* (*finish)(struct chassis_instance* self);
  /* [control] Writes adapter_config.json for the files of this adapter: a JSON object. The program reads two of its
   * keys, which are PEFT's: "peft_type", the id of this member in upper or lower case, from which it finds the plugin
   * for a directory, and "base_model_name_or_path", which is base->path. */
  chassis_status_t* (*config)(struct chassis_instance* self, const chassis_adapter_base_t* base,
                              const chassis_text_sink_t* out);
  /* [any] Applies the adapter to a part of a parameter, so that the model without the adapter's ops computes the same
   * result. Several threads may call it. NULL: the adapter cannot be merged. */
  chassis_status_t* (*merge)(struct chassis_instance* self, const chassis_adapter_merge_t* merge);
  /* [control] Declares how files of the adapter hold the parameters that extend() added. Refuses files in which the
   * places of a parameter are ambiguous. NULL: each is a tensor of its own. */
  chassis_status_t* (*files)(struct chassis_instance* self, const chassis_adapter_files_t* files);
} chassis_adapter_t;
#define CHASSIS_ADAPTER_V1_SIZE 64u

#endif
