// The recorded program: chains of blocks, each block type a list of ops over named dims. Pure data, as the model plugin
// recorded it or a rewrite changed it, without devices, providers or plugins.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "chassis/kind/model.h"
#include "host/base/batch_fields.hpp"
#include "host/graph/dims.hpp"
#include "host/graph/op_id.hpp"
#include "host/state/dtype.hpp"

namespace chassis {

using ValueId = uint32_t;
using SlotId = uint32_t;
inline constexpr uint32_t kAbsent = CHASSIS_ABSENT;

using AttrValue = std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<double>>;
using OpAttrs = std::vector<std::pair<std::string, AttrValue>>;

enum class GraphValueType : uint32_t {
  kCompute,  // the precision of the run
  kInt32,    // ids, labels, positions
  kFloat32,  // losses, scores: at least f32, so f64 where a program is computed in f64
};

// How one mesh axis divides a value.
struct Sharding {
  enum class Kind { kReplicate, kShard, kPartial };
  Kind kind = Kind::kReplicate;
  DimId dim = 0;          // for kShard
  bool is_chunk = false;  // in a ring: also divided along T, holding the part of one of the ranks
  bool operator==(const Sharding&) const = default;
};

struct GraphValue {
  std::string name;
  std::vector<DimId> dims;
  GraphValueType type = GraphValueType::kCompute;
  std::vector<Sharding> sharding;  // by axis of the layout; empty: replicated
  bool has(DimId dim) const;
  bool operator==(const GraphValue&) const = default;
};
Dtype dtype_of(const GraphValue& value, Dtype compute);

class QuantizedStorage;

// A parameter of a block type. The parameter table has its tensor in each unit.
struct ParameterSlot {
  std::string name;
  std::vector<std::vector<DimId>> axes;
  uint32_t role = CHASSIS_ROLE_WEIGHT;
  uint32_t init = CHASSIS_INIT_ZEROS;
  double init_std = 0.0;
  std::string tied_to;
  double lr_scale = 1.0;                               // factor of the learning rate
  bool frozen = false;                                 // set by an adapter: not trained, whatever [freeze] says
  bool added = false;                                  // added by an adapter; files of the model do not have it
  std::vector<std::string> shared_by;                  // other modules whose added ops depend on it, as in `name`
  bool of_objective = false;                           // the head that an objective added: always trained
  std::string storage;                                 // scheme of a quantized parameter; empty: plain
  std::shared_ptr<const QuantizedStorage> components;  // how a quant plugin stores it; NULL: in one tensor
  std::vector<Sharding> sharding;                      // by axis of the layout
  std::vector<std::string> partial_over;               // axes whose ranks each compute a part of its gradient
  bool has(DimId dim) const;
  bool operator==(const ParameterSlot&) const = default;
};

struct Op {
  OpId id;
  std::string name;
  std::vector<ValueId> inputs;  // kAbsent where left out
  std::vector<SlotId> params;
  std::vector<ValueId> outputs;
  OpAttrs attrs;
  // For a plugin's own op: the dims that it mixes, as in chassis_op_desc_t. Not given: all but B.
  std::optional<std::vector<DimId>> mixed_dims = {};
  // For an op with which an adapter replaces a value: the index of the input that is this value, which readers of the
  // output read where the adapter is left out. kAbsent: the op does not read it.
  std::optional<uint32_t> bypass = {};
  bool is_detached = false;  // its inputs get no gradient from it
  // Adds a term that only training minimises: elsewhere readers of its output read its first input.
  bool is_training_term = false;

  const OpSpec& spec() const { return id.spec(); }
  CommOp comm() const { return id.comm(); }
  bool is_collective() const { return id.is_collective(); }
  bool is_own() const { return id.is_own(); }  // a plugin's own op
  bool mixes(DimId dim) const;                 // for a plugin's own op
  const AttrValue* attr(std::string_view key) const;
  int64_t attr_int(std::string_view key, int64_t fallback) const;
  // The length of row from which the op computes all positions otherwise, as LongRoPE does; 0: none.
  int64_t changes_at_length() const;
  bool operator==(const Op&) const = default;
};

// A field that the batch must have.
struct Field {
  GraphValueType type = GraphValueType::kInt32;
  std::vector<DimId> dims;
  bool operator==(const Field&) const = default;
};

struct BlockType {
  std::string name;
  std::vector<GraphValue> values;
  std::vector<ParameterSlot> slots;
  std::vector<Op> ops;
  std::map<std::string, ValueId> inputs;  // from the block before
  std::map<std::string, ValueId> fields;  // from the batch
  std::map<std::string, ValueId> outputs;

  bool has_operand_with(const Op& op, DimId dim) const;  // inputs, parameters and outputs
  // True if a plugin's own op mixes the dim or has it only in its output, so that a part of the operands is not enough.
  bool needs_all_of(const Op& op, DimId dim) const;
  // The first op of a plugin that needs all positions of a row; NULL if there is none.
  const Op* op_over_positions() const;
  ValueId add_value(GraphValue value);
  SlotId add_slot(ParameterSlot slot);
  bool operator==(const BlockType&) const = default;
};

struct Chain {
  std::string name;
  std::string prefix;            // may contain "{i}"
  std::vector<uint32_t> blocks;  // block type of each position

  std::string prefix_of(size_t index) const;
  // "model.layers.3.self_attn.q_proj.weight"
  std::string parameter_name(size_t index, const ParameterSlot& slot) const;
};

struct Program {
  std::vector<GraphDim> dims;
  std::vector<BlockType> blocks;
  std::vector<Chain> chains;
  std::map<std::string, Field> fields;  // fields that any block reads
  std::vector<std::string> left_out;    // parameters of the model that the objective does not need; not read from files

  // The last block of the last chain, which has the outputs of the program; NULL if there are no chains.
  BlockType* last_block();
  const BlockType* last_block() const;
  std::optional<DimId> find_dim(std::string_view name) const;
  int64_t dim_product(const std::vector<DimId>& ids) const;
  bool is_logits(const GraphValue& value) const;               // has the dim "vocab"
  std::string dims_text(const std::vector<DimId>& ids) const;  // "[B, T, heads=6, patches≤512]"
  std::string field_text(const Field& field) const;            // "i32 [B, T]"
  std::vector<int64_t> global_shape(const ParameterSlot& slot) const;
  size_t num_units() const;                     // blocks of all chains
  std::vector<std::string> unit_names() const;  // "embed", "layers.3"
};

// True if batches give the field in the type and with the dims that the program takes.
bool is_given(const Program& program, const Field& field, const BatchFieldSpec& spec);
// As batches give it: "f32 [patches, channels]".
std::string field_text(const BatchFieldSpec& spec);
// All batch_fields(): "input_ids, labels, each i32 [B, T]".
std::string batch_fields_text();

// For a plugin's own op: "mixes ffn and T", "mixes no dim", "mixes all dims, since it declares none".
std::string mixed_dims_text(const Program& program, const Op& op);

}  // namespace chassis
