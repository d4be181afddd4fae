/* chassis.model/1: how plugins before 0.3 offer a model. Frozen; new plugins offer chassis.model/2
 * (chassis/kind/model.h), to which the host translates this: fields are [B, T] i32, and files differ from the model
 * only in names. */
#ifndef CHASSIS_KIND_MODEL_1_H
#define CHASSIS_KIND_MODEL_1_H

#include "chassis/kind/model.h"

#define CHASSIS_MODEL_ID "chassis.model/1"

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
  /* A field of the batch: "input_ids", "positions", "document_ids", "labels", each [B, T] i32. */
  chassis_status_t* (*field)(const struct chassis_builder* b, chassis_str_t name, chassis_value_t* out);
  chassis_status_t* (*slot)(const struct chassis_builder* b, const chassis_slot_desc_t* desc, chassis_slot_t* out);
  /* Records an op; *out is its first output. */
  chassis_status_t* (*op)(const struct chassis_builder* b, const chassis_op_desc_t* desc, chassis_value_t* out);
  /* Names a value for the next block. "loss" (scalar sum) is minimised; "logits" is what generation reads. */
  chassis_status_t* (*output)(const struct chassis_builder* b, chassis_str_t name, chassis_value_t value);
  /* A chain of blocks, in program order; blocks[i] is the type of block i. "{i}" in prefix is the block's index:
   * "model.layers.{i}". */
  chassis_status_t* (*chain)(const struct chassis_builder* b, chassis_str_t name, chassis_str_t prefix,
                             const chassis_block_t* blocks, uint32_t num_blocks);
} chassis_builder_t;
#define CHASSIS_BUILDER_V1_SIZE 88u

typedef struct chassis_model {
  uint32_t struct_size;
  uint32_t reserved0;
  /* [control] Gets the model's config.json, or the table [model] config as JSON. Refuses what the family cannot do, by
   * name. Counts each unknown key (chassis.log/1 count) with the key in single quotes in the message: the host shows
   * those from a file, and refuses those that the user wrote in the table. Called once, before all others. */
  chassis_status_t* (*configure)(struct chassis_instance* self, chassis_str_t config_json);
  /* [control] Records the program. */
  chassis_status_t* (*record)(struct chassis_instance* self, const chassis_builder_t* builder);
  /* [control] Writes config.json for an export: complete, readable by the reference implementation of the family. */
  chassis_status_t* (*config)(struct chassis_instance* self, const chassis_text_sink_t* out);
  /* [control] Disk mapping, both ways: disk_name gives a parameter's name on disk (save); parameter_name gives the
   * parameter of a name on disk (load), or an empty text to skip the tensor (a tied copy, a stored buffer). NULL: names
   * are equal. */
  chassis_status_t* (*disk_name)(struct chassis_instance* self, chassis_str_t parameter,
                                 const chassis_text_sink_t* out);
  chassis_status_t* (*parameter_name)(struct chassis_instance* self, chassis_str_t disk_name,
                                      const chassis_text_sink_t* out);
  /* [control] The longest sequence that the weights were made for (max_position_embeddings); 0: no bound. Longer
   * sequences are computed, and the host says so. NULL: not known. */
  int64_t (*max_positions)(struct chassis_instance* self);
} chassis_model_t;
#define CHASSIS_MODEL_V1_SIZE 56u

#endif
