/* chassis.quant/1, kind "quant": stores parameters of a model in fewer bits. The plugin says which parameters, says in
 * which components each is stored, and converts values to components and back; the host divides, moves, saves and loads
 * components as bytes. Quantized parameters are not trained. The instance also offers chassis.ops/1 for the ops that
 * read them, which carry the attribute storage; plugins in [kernels] are asked first.
 *
 * Order of calls: configure, then parameter for the whole model, then finish_model. The others may be called at any
 * time after that. */
#ifndef CHASSIS_KIND_QUANT_H
#define CHASSIS_KIND_QUANT_H

#include "chassis/kind/model.h"
#include "chassis/kind/ops.h"

#define CHASSIS_QUANT_ID "chassis.quant/1"

/* A parameter of the model. Names are those of the model's files, where they differ; that of the first tensor if files
 * hold it in several, as they do experts. */
typedef struct chassis_quant_parameter {
  uint32_t struct_size;
  uint32_t role;        /* CHASSIS_ROLE_… */
  chassis_str_t name;   /* "model.layers.3.self_attn.q_proj.weight" */
  chassis_str_t module; /* "model.layers.3.self_attn.q_proj" */
  chassis_str_t op;     /* the op that reads it: "linear" or, for the linears of experts, "grouped_linear" */
  const int64_t* sizes; /* whole, undivided */
  uint64_t num_dims;
  uint32_t is_added;    /* by an adapter */
  uint32_t num_tied;    /* slots that share it */
  uint32_t num_readers; /* ops that read it */
  uint32_t reserved0;
} chassis_quant_parameter_t;
#define CHASSIS_QUANT_PARAMETER_V1_SIZE 88u

/* Ops that read the parameter also compute with a part of it: some of its rows, or the same columns of every row. They
 * read its place in chassis_operand.begin if components without unit_elements depend on it. Without this flag an axis
 * that divides the computation cannot divide the parameter. */
#define CHASSIS_STORAGE_DIVISIBLE 1u

/* Each index of dim 0, such as an expert, is stored as a parameter of its own, which has the other dims: the functions
 * below get parts of one such slice, with its sizes, and num_values of a component without unit_elements is that of one
 * slice. Operands of ops have the components of all slices, in order. No unit reaches into the next slice. Files that
 * have a tensor for each slice have its components under the name of that tensor. */
#define CHASSIS_STORAGE_SLICES 2u

/* How one parameter is stored. Valid as long as the instance. All components but those without unit_elements are cut
 * between units, so that a rank has exactly the units of its elements of the parameter, in their order; the parameter
 * is cut at multiples of all unit_elements. */
typedef struct chassis_quant_storage {
  uint32_t struct_size;
  uint32_t num_components; /* at least 1; the first has unit_elements, and the suffix "" */
  chassis_str_t scheme;    /* "bnb4/nf4": the value of the attribute storage of ops that read the parameter */
  const chassis_component_t* const* components;
  /* Files also hold the u8 text of write_state() under the parameter's name and this suffix; empty: they do not. */
  chassis_str_t state_suffix;
  uint32_t flags; /* CHASSIS_STORAGE_… */
  uint32_t reserved0;
} chassis_quant_storage_t;
#define CHASSIS_QUANT_STORAGE_V1_SIZE 56u

/* Consecutive row-major elements of a parameter, which begin at a unit of every component, and end at one or at the end
 * of the parameter; and the components of these elements. */
typedef struct chassis_quant_part {
  uint32_t struct_size;
  uint32_t value_dtype; /* F32, BF16 or F16 */
  const chassis_quant_storage_t* storage;
  const int64_t* sizes; /* of the whole parameter, or of the slice */
  uint64_t num_sizes;
  int64_t begin, count;
  void* values; /* count of them */
  /* By component: the units of these elements, or all values of one without unit_elements. */
  void* const* components;
  /* finish(): the same in their staged dtypes, of the whole parameter; NULL for components without one. */
  const void* const* staged;
} chassis_quant_part_t;
#define CHASSIS_QUANT_PART_V1_SIZE 72u

typedef struct chassis_quant {
  uint32_t struct_size;
  uint32_t reserved0;
  /* [control] Gets the object "quantization_config" of the model's config.json; empty without one. Refuses what the
   * plugin cannot do, by name, and what contradicts an option that the user wrote. Sets *is_stored to 1 if the model's
   * files hold components. */
  chassis_status_t* (*configure)(struct chassis_instance* self, chassis_str_t config_json, uint32_t* is_stored);
  /* [control] Sets *storage, or leaves it NULL: the parameter stays as it is. */
  chassis_status_t* (*parameter)(struct chassis_instance* self, const chassis_quant_parameter_t* parameter,
                                 const chassis_quant_storage_t** storage);
  /* [control] Called after the whole model was offered; refuses options that matched nothing. NULL: nothing to
   * refuse. */
  chassis_status_t* (*finish_model)(struct chassis_instance* self);
  /* [any] Reads values; writes the components that have unit_elements, in their staged dtypes, and gets NULL for the
   * others. Their previous contents are undefined, and each of the part's units is written in full. INVALID_ARGUMENT
   * names the first value that is NaN or infinite by its index in the parameter. Parts may be encoded in any order; the
   * same values give the same bytes on every processor. */
  chassis_status_t* (*encode)(struct chassis_instance* self, const chassis_quant_part_t* part);
  /* [any] Called when the whole parameter is encoded: reads `staged`; writes the part's units of components that have a
   * staged dtype, and the components without unit_elements. values is NULL. NULL: there are no such components. */
  chassis_status_t* (*finish)(struct chassis_instance* self, const chassis_quant_part_t* part);
  /* [any] Reads components; writes values. */
  chassis_status_t* (*decode)(struct chassis_instance* self, const chassis_quant_part_t* part);
  /* [any] DATA_LOSS names the first impossible value of a component, such as an absmax that is NaN, infinite or
   * negative, and its element. NULL: all values are possible. */
  chassis_status_t* (*verify)(struct chassis_instance* self, const chassis_quant_part_t* part);
  /* [any] Writes the text that files hold under state_suffix, from the components without unit_elements; the others and
   * values are NULL. `value_dtype` is that of the model's files before it was quantized. */
  chassis_status_t* (*write_state)(struct chassis_instance* self, const chassis_quant_part_t* part,
                                   const chassis_text_sink_t* out);
  /* [any] Refuses a text that contradicts the storage or the sizes, by key; writes the components that files do not
   * have. Arguments as in write_state; value_dtype is ignored. */
  chassis_status_t* (*read_state)(struct chassis_instance* self, const chassis_quant_part_t* part, chassis_str_t text);
  /* [control] Writes the object "quantization_config" for the config.json of a model that is stored in this way. */
  chassis_status_t* (*config)(struct chassis_instance* self, const chassis_text_sink_t* out);
} chassis_quant_t;
#define CHASSIS_QUANT_V1_SIZE 88u

#endif
