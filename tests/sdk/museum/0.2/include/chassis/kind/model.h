/* chassis.model/1, kind "model": says what a model family computes, by recording it once.
 *
 * A model is a list of chains; a chain is a run of blocks, each of a recorded block type. Blocks of a chain, and
 * chains, are joined by the names of their outputs and inputs ("hidden"). Model code states no size that a strategy may
 * divide: only names of dims whose logical sizes it declares once. */
#ifndef CHASSIS_KIND_MODEL_H
#define CHASSIS_KIND_MODEL_H

#include "chassis/op.h"
#include "chassis/status.h"

#define CHASSIS_MODEL_ID "chassis.model/1"

typedef uint32_t chassis_dim_t;   /* from builder.dim */
typedef uint32_t chassis_value_t; /* within the block being recorded */
typedef uint32_t chassis_slot_t;  /* within the block being recorded */
typedef uint32_t chassis_block_t; /* a block type */

/* Dims that exist without declaration. */
#define CHASSIS_DIM_BATCH 0u /* B: rows of a micro-batch */
#define CHASSIS_DIM_TIME 1u  /* T: positions of a row */

/* One axis of a parameter: the row-major product of its dims. */
typedef struct chassis_axis {
  const chassis_dim_t* dims;
  uint64_t num_dims;
} chassis_axis_t;

#define CHASSIS_ROLE_WEIGHT 1u    /* of a linear */
#define CHASSIS_ROLE_BIAS 2u
#define CHASSIS_ROLE_NORM 3u      /* gain of a norm */
#define CHASSIS_ROLE_EMBEDDING 4u
#define CHASSIS_ROLE_HEAD 5u      /* output projection to the vocabulary */

#define CHASSIS_INIT_ZEROS 1u
#define CHASSIS_INIT_ONES 2u
#define CHASSIS_INIT_NORMAL 3u    /* mean 0, deviation init_std */

/* A parameter of a block. Its full name is the block's prefix, ".", name; with an empty prefix just the name. */
typedef struct chassis_slot_desc {
  uint32_t struct_size;
  uint32_t num_axes;
  chassis_str_t name; /* "self_attn.q_proj.weight" */
  const chassis_axis_t* axes;
  uint32_t role;      /* CHASSIS_ROLE_… */
  uint32_t init;      /* CHASSIS_INIT_… */
  double init_std;
  /* Full name of the parameter that this one is; empty if it is its own. Shapes must agree; it is stored and saved
   * once, under the other name. */
  chassis_str_t tied_to;
} chassis_slot_desc_t;
#define CHASSIS_SLOT_DESC_V1_SIZE 64u

typedef struct chassis_op_desc {
  uint32_t struct_size;
  uint32_t num_inputs;
  chassis_str_t id;                /* see chassis/op.h */
  chassis_str_t name;              /* "q_proj": for graphs and messages */
  const chassis_value_t* inputs;   /* CHASSIS_ABSENT where left out */
  const chassis_slot_t* params;
  const chassis_attr_t* attrs;
  const chassis_dim_t* output_dims; /* linear, embedding: dims behind [B, T]; reshape and own ops: all dims;
                                       others: ignored, their rule is in chassis/op.h */
  uint32_t num_params;
  uint32_t num_attrs;
  uint32_t num_output_dims;
  uint32_t reserved0;
} chassis_op_desc_t;
#define CHASSIS_OP_DESC_V1_SIZE 88u

/* All [control]. Everything passed is copied. Errors name the block, op and dims at fault. */
typedef struct chassis_builder {
  uint32_t struct_size;
  uint32_t reserved0;
  void* impl;
  /* A dim of the model with its logical, undivided size: "heads", "head_dim", "ffn", "vocab", "hidden". */
  chassis_status_t* (*dim)(const struct chassis_builder* b, chassis_str_t name, int64_t size, chassis_dim_t* out);
  /* Records a block type until end_block. */
  chassis_status_t* (*begin_block)(const struct chassis_builder* b, chassis_str_t name, chassis_block_t* out);
  chassis_status_t* (*end_block)(const struct chassis_builder* b);
  /* What the previous block put out under this name. */
  chassis_status_t* (*input)(const struct chassis_builder* b, chassis_str_t name, const chassis_dim_t* dims,
                             uint32_t num_dims, chassis_value_t* out);
  /* A field of the batch: "input_ids", "positions", "document_ids", "labels", each [B, T] i32. */
  chassis_status_t* (*field)(const struct chassis_builder* b, chassis_str_t name, chassis_value_t* out);
  chassis_status_t* (*slot)(const struct chassis_builder* b, const chassis_slot_desc_t* desc, chassis_slot_t* out);
  /* The op's first output. */
  chassis_status_t* (*op)(const struct chassis_builder* b, const chassis_op_desc_t* desc, chassis_value_t* out);
  /* Names a value for the next block. "loss" (scalar sum) is minimised; "logits" is what generation reads. */
  chassis_status_t* (*output)(const struct chassis_builder* b, chassis_str_t name, chassis_value_t value);
  /* A chain of blocks, in program order; blocks[i] is the type of block i. "{i}" in prefix is the block's index:
   * "model.layers.{i}". */
  chassis_status_t* (*chain)(const struct chassis_builder* b, chassis_str_t name, chassis_str_t prefix,
                             const chassis_block_t* blocks, uint32_t num_blocks);
} chassis_builder_t;
#define CHASSIS_BUILDER_V1_SIZE 88u

/* Receives a text that is borrowed for the call. */
typedef struct chassis_text_sink {
  uint32_t struct_size;
  uint32_t reserved0;
  void* impl;
  void (*text)(const struct chassis_text_sink* sink, chassis_str_t text);
} chassis_text_sink_t;
#define CHASSIS_TEXT_SINK_V1_SIZE 24u

typedef struct chassis_model {
  uint32_t struct_size;
  uint32_t reserved0;
  /* [control] The model's config.json, or the table [model] config as JSON. Refuses what the family can not do, by
   * name. Keys that it does not know it counts (chassis.log/1 count), one each, the
   * message with the key in single quotes: the host shows them for a file, and
   * refuses them where the user wrote them, in the table. Called once, before all others. */
  chassis_status_t* (*configure)(struct chassis_instance* self, chassis_str_t config_json);
  /* [control] Records the program. */
  chassis_status_t* (*record)(struct chassis_instance* self, const chassis_builder_t* builder);
  /* [control] config.json for an export: complete, readable by the reference implementation of the family. */
  chassis_status_t* (*config)(struct chassis_instance* self, const chassis_text_sink_t* out);
  /* [control] Disk mapping, both ways: the name on disk of a parameter (save), the parameter of a name on disk (load);
   * an empty text if the file's tensor is to be skipped (a tied copy, a stored buffer). NULL: names are equal. */
  chassis_status_t* (*disk_name)(struct chassis_instance* self, chassis_str_t parameter,
                                 const chassis_text_sink_t* out);
  chassis_status_t* (*parameter_name)(struct chassis_instance* self, chassis_str_t disk_name,
                                      const chassis_text_sink_t* out);
  /* [control] The longest sequence that the weights were made for (max_position_embeddings); 0: no such bound. Longer
   * ones are computed, and the host says so. NULL: not known. */
  int64_t (*max_positions)(struct chassis_instance* self);
} chassis_model_t;
#define CHASSIS_MODEL_V1_SIZE 56u

#endif
