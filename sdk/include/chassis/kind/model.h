/* chassis.model/1, kind "model": records once what a model family computes, and declares how files hold its parameters.
 *
 * A model is a list of chains; a chain is a sequence of blocks, each of a recorded block type. The blocks of a chain,
 * and the chains, are joined by the names of their outputs and inputs ("hidden"). Model code uses no sizes that a
 * strategy may divide, only names of dims whose logical sizes it declares once. */
#ifndef CHASSIS_KIND_MODEL_H
#define CHASSIS_KIND_MODEL_H

#include "chassis/op.h"
#include "chassis/status.h"

#define CHASSIS_MODEL_ID "chassis.model/1"

typedef uint32_t chassis_dim_t;   /* from builder.dim */
typedef uint32_t chassis_value_t; /* within the block being recorded */
typedef uint32_t chassis_slot_t;  /* within the block being recorded */
typedef uint32_t chassis_block_t; /* a block type */

/* Predeclared dims. */
#define CHASSIS_DIM_BATCH 0u /* B: rows of a micro-batch */
#define CHASSIS_DIM_TIME 1u  /* T: positions of a row */

/* One axis of a parameter: the row-major product of its dims. */
typedef struct chassis_axis {
  const chassis_dim_t* dims;
  uint64_t num_dims;
} chassis_axis_t;

#define CHASSIS_ROLE_WEIGHT 1u /* of a linear */
#define CHASSIS_ROLE_BIAS 2u
#define CHASSIS_ROLE_NORM 3u /* gain of a norm */
#define CHASSIS_ROLE_EMBEDDING 4u
#define CHASSIS_ROLE_HEAD 5u   /* output projection to the vocabulary */
#define CHASSIS_ROLE_ROUTER 6u /* logits of experts; never quantized */

#define CHASSIS_INIT_ZEROS 1u
#define CHASSIS_INIT_ONES 2u
#define CHASSIS_INIT_NORMAL 3u  /* mean 0, deviation init_std */
#define CHASSIS_INIT_UNIFORM 4u /* from -init_std to init_std; for adapters only */

/* A parameter of a block. Its full name is the block's prefix, ".", and name; with an empty prefix, only the name. */
typedef struct chassis_slot_desc {
  uint32_t struct_size;
  uint32_t num_axes;
  chassis_str_t name; /* "self_attn.q_proj.weight" */
  const chassis_axis_t* axes;
  uint32_t role; /* CHASSIS_ROLE_… */
  uint32_t init; /* CHASSIS_INIT_… */
  double init_std;
  /* Full name of the parameter that this slot shares; empty if it shares none. Shapes must agree; the parameter is
   * stored and saved once, under that name. */
  chassis_str_t tied_to;
  double lr_scale; /* the learning rate is multiplied by it; 0 counts as 1 */
} chassis_slot_desc_t;
#define CHASSIS_SLOT_DESC_V1_SIZE 72u

/* For a plugin's own op: mixed_dims lists every dim that it mixes; if the list is empty, it mixes none. */
#define CHASSIS_OP_MIXES_ONLY 1u

typedef struct chassis_op_desc {
  uint32_t struct_size;
  uint32_t num_inputs;
  chassis_str_t id;              /* see chassis/op.h */
  chassis_str_t name;            /* "q_proj": for graphs and messages */
  const chassis_value_t* inputs; /* CHASSIS_ABSENT where left out */
  const chassis_slot_t* params;
  const chassis_attr_t* attrs;
  const chassis_dim_t* output_dims; /* linear, embedding: dims after [B, T]; grouped_linear: dims after
                                       those of the experts; top_experts, slice, concat: the last
                                       dim; reshape and plugin ops: all dims;
                                       others: ignored, chassis/op.h has their rules */
  uint32_t num_params;
  uint32_t num_attrs;
  uint32_t num_output_dims;
  uint32_t reserved0;
  /* For a plugin's own op; others must leave these zero. A dim is mixed if an element of the output depends
   * on elements of the inputs at other indices of that dim. Along a dim that is not mixed, the op computes any part of
   * its output from the same part of its inputs and parameters; an output without T is then the sum over the positions,
   * where positions past the end of a row have zeros, and labels of -100. Without MIXES_ONLY, all dims but B are mixed.
   * B is never mixed: rows are divided into micro-batches, and an output without B is the sum over the rows. An axis of
   * the mesh divides what the op reads and writes only along dims that are not mixed. Along other dims the op gets
   * whole values, except that an axis of positions ("cp") is refused; where T is mixed, generation computes the whole
   * row for each token. */
  const chassis_dim_t* mixed_dims;
  uint32_t num_mixed_dims;
  uint32_t flags;        /* CHASSIS_OP_… */
  uint32_t output_dtype; /* CHASSIS_DTYPE_F32 for a loss; CHASSIS_DTYPE_I32; 0: the precision of the run */
  uint32_t reserved1;
} chassis_op_desc_t;
#define CHASSIS_OP_DESC_V1_SIZE 112u

/* All [control]. Everything passed is copied. Errors name the block, op and dims. */
typedef struct chassis_builder {
  uint32_t struct_size;
  uint32_t reserved0;
  void* impl;
  /* A dim of the model with its logical, undivided size: "heads", "head_dim", "ffn", "vocab", "hidden". */
  chassis_status_t* (*dim)(const struct chassis_builder* b, chassis_str_t name, int64_t size, chassis_dim_t* out);
  /* Records a block type until end_block. */
  chassis_status_t* (*begin_block)(const struct chassis_builder* b, chassis_str_t name, chassis_block_t* out);
  chassis_status_t* (*end_block)(const struct chassis_builder* b);
  /* The previous block's output of this name. */
  chassis_status_t* (*input)(const struct chassis_builder* b, chassis_str_t name, const chassis_dim_t* dims,
                             uint32_t num_dims, chassis_value_t* out);
  /* A field of the batch. dtype: i32 or f32. The same in every block. A batch has only the fields that the model
   * declares; a field that the data cannot provide is refused by name. Provided are "input_ids", "positions",
   * "document_ids" and "labels", each [B, T] i32. */
  chassis_status_t* (*field)(const struct chassis_builder* b, chassis_str_t name, uint32_t dtype,
                             const chassis_dim_t* dims, uint32_t num_dims, chassis_value_t* out);
  chassis_status_t* (*slot)(const struct chassis_builder* b, const chassis_slot_desc_t* desc, chassis_slot_t* out);
  /* Records an op; *out is its first output. */
  chassis_status_t* (*op)(const struct chassis_builder* b, const chassis_op_desc_t* desc, chassis_value_t* out);
  /* Names a value for the next block. The last block outputs "logits" [B, T, vocab], and "hidden" [B, T, H], which its
   * head reads; or, of a sequence-classification head, "scores" [B, T, labels] f32 of every position. The host adds
   * what a run minimises, so "loss" is refused. A loss of the model's own is "aux_loss", a scalar f32 that is a sum
   * over tokens; it is added to their cross entropy. */
  chassis_status_t* (*output)(const struct chassis_builder* b, chassis_str_t name, chassis_value_t value);
  /* A chain of blocks, in program order; blocks[i] is the type of block i. "{i}" in prefix is the block's index:
   * "model.layers.{i}". */
  chassis_status_t* (*chain)(const struct chassis_builder* b, chassis_str_t name, chassis_str_t prefix,
                             const chassis_block_t* blocks, uint32_t num_blocks);
  /* A dim whose size differs between micro-batches: it is the number of entries in the fields that begin with this dim.
   * Plans use `maximum`, and a micro-batch with more is refused. Parameters do not have it, and no axis of the mesh
   * divides it. */
  chassis_status_t* (*bounded_dim)(const struct chassis_builder* b, chassis_str_t name, int64_t maximum,
                                   chassis_dim_t* out);
} chassis_builder_t;
#define CHASSIS_BUILDER_V1_SIZE 96u

/* Receives a text that is borrowed for the call. */
typedef struct chassis_text_sink {
  uint32_t struct_size;
  uint32_t reserved0;
  void* impl;
  void (*text)(const struct chassis_text_sink* sink, chassis_str_t text);
} chassis_text_sink_t;
#define CHASSIS_TEXT_SINK_V1_SIZE 24u

/* Elements of a parameter: in dim k, sizes[k] indexes from begin[k] on, or all up to the end if sizes[k] is 0. Dims
 * from num_dims on are whole. */
typedef struct chassis_disk_part {
  uint32_t struct_size;
  uint32_t num_dims;       /* of begin and sizes */
  chassis_str_t parameter; /* full name */
  const int64_t* begin;
  const int64_t* sizes;
} chassis_disk_part_t;
#define CHASSIS_DISK_PART_V1_SIZE 40u

/* A tensor on disk: parts of parameters joined along one dim, in order, and then permuted. "{i}" in its name and in
 * those of its parameters stands for one number: the rule applies to every number for which its first parameter
 * exists. */
typedef struct chassis_disk_rule {
  uint32_t struct_size;
  uint32_t num_parts;
  chassis_str_t name; /* on disk */
  const chassis_disk_part_t* const* parts;
  uint32_t join_dim;    /* of the parts; ignored for a single part */
  uint32_t num_dims;    /* of the tensor on disk; 0: the parts' dims in their order */
  const uint32_t* dims; /* dim k on disk is dim dims[k] of the joined parts; a dim that is left out has size 1 */
} chassis_disk_rule_t;
#define CHASSIS_DISK_RULE_V1_SIZE 48u

/* A tensor that files contain and that is not trained, such as a mask or stored frequencies. */
typedef struct chassis_literal {
  uint32_t struct_size;
  uint32_t dtype; /* CHASSIS_DTYPE_… */
  chassis_str_t name;
  const int64_t* sizes;
  uint64_t num_dims;
  const void* data; /* row-major */
} chassis_literal_t;
#define CHASSIS_LITERAL_V1_SIZE 48u

/* All [control]. Everything passed is copied. A parameter that no rule names is a tensor of the same name and shape.
 * Once the rules of a parameter cover it, further ones are another form in which files may hold it. Files are read in
 * the form that they have; exports have that of the files from which the run started, or the first. After all
 * declarations the host proves that every element of every parameter is in exactly one tensor of each of its forms, and
 * that no name is used twice. "*" in a pattern stands for any text; a pattern may have one. */
typedef struct chassis_disk_sink {
  uint32_t struct_size;
  uint32_t reserved0;
  void* impl;
  chassis_status_t* (*tensor)(const struct chassis_disk_sink* sink, const chassis_disk_rule_t* rule);
  /* Written with these bytes and this dtype whatever export.dtype is. Files that are loaded may lack it; if present, it
   * must have this shape; its values are not read. */
  chassis_status_t* (*literal)(const struct chassis_disk_sink* sink, const chassis_literal_t* literal);
  /* Tensors whose names match may be in files; they are not read, and never written. */
  chassis_status_t* (*skip)(const struct chassis_disk_sink* sink, chassis_str_t pattern);
  /* Files may use a name that matches `pattern` instead of `name`; "*" in `name` is the text that "*" matched. */
  chassis_status_t* (*alias)(const struct chassis_disk_sink* sink, chassis_str_t pattern, chassis_str_t name);
} chassis_disk_sink_t;
#define CHASSIS_DISK_SINK_V1_SIZE 48u

/* A fact of a refusal by configure (status_add): a key of config.json that is at fault, as a dotted path. The host
 * shows where the user wrote it: of several, the first on the command line, or else the first. */
#define CHASSIS_FACT_CONFIG_KEY "config key"

typedef struct chassis_model {
  uint32_t struct_size;
  uint32_t reserved0;
  /* [control] Gets the model's config.json, or the table [model] config as JSON. Refuses what the family cannot do, by
   * name, with CHASSIS_FACT_CONFIG_KEY. Counts each unknown key (chassis.log/1 count) under "config key <key>", a
   * dotted path: the host shows those from a file, and refuses those that the user wrote in the table. Called once,
   * before all others. */
  chassis_status_t* (*configure)(struct chassis_instance* self, chassis_str_t config_json);
  /* [control] Records the program. */
  chassis_status_t* (*record)(struct chassis_instance* self, const chassis_builder_t* builder);
  /* [control] Writes config.json for an export: complete, readable by the reference implementation of the family. */
  chassis_status_t* (*config)(struct chassis_instance* self, const chassis_text_sink_t* out);
  /* [control] Declares how files of the family hold the parameters, for loading and for export. NULL: each is a tensor
   * of the same name and shape. */
  chassis_status_t* (*disk_mapping)(struct chassis_instance* self, const chassis_disk_sink_t* sink);
  /* [control] The longest sequence that the weights were made for (max_position_embeddings); 0: no bound. Longer
   * sequences are computed, and the host says so. NULL: not known. */
  int64_t (*max_positions)(struct chassis_instance* self);
} chassis_model_t;
#define CHASSIS_MODEL_V1_SIZE 48u

#endif
