// Checks each call of the builder when it is made, and the whole program at the end.
#include "host/graph/recording.hpp"

#include "chassis/tensor.h"
#include "host/base/error.hpp"
#include "host/graph/op_table.hpp"
#include "host/plugin/sized.hpp"
#include "host/plugin/status.hpp"
#include "host/state/shape.hpp"

namespace chassis {
namespace {

constexpr size_t kMaxBlocks = 1 << 16;  // more are a mistake, and would take hours to plan
constexpr double kMaxParameters = 0x1p56;

std::string text(chassis_str_t s) { return s.len ? std::string(s.ptr, s.len) : std::string(); }

void check_dim(const Program& program, DimId d) {
  if (d >= program.dims.size()) throw plugin_error("no dim " + std::to_string(d) + " was declared");
}

AttrValue attr_value(const chassis_attr_t& a) {
  switch (a.tag) {
    case CHASSIS_ATTR_INT:
      return a.value.i;
    case CHASSIS_ATTR_FLOAT:
      return a.value.f;
    case CHASSIS_ATTR_STRING:
      return std::string(static_cast<const char*>(a.value.list.ptr), a.value.list.len);
    case CHASSIS_ATTR_INT_LIST: {
      auto* p = static_cast<const int64_t*>(a.value.list.ptr);
      return std::vector<int64_t>(p, p + a.value.list.len);
    }
    case CHASSIS_ATTR_FLOAT_LIST: {
      auto* p = static_cast<const double*>(a.value.list.ptr);
      return std::vector<double>(p, p + a.value.list.len);
    }
    default:
      throw plugin_error("attribute '" + text(a.name) + "' has unknown tag " + std::to_string(a.tag));
  }
}

// Every input must be an output of the block before, with the same dims.
void check_chains(const Program& program) {
  if (program.chains.empty()) throw plugin_error("the model recorded no chain");
  const BlockType* before = nullptr;
  for (const Chain& chain : program.chains)
    for (uint32_t type : chain.blocks) {
      const BlockType& block = program.blocks[type];
      for (const auto& [name, value] : block.inputs) {
        const auto found = before ? before->outputs.find(name) : std::map<std::string, ValueId>::const_iterator{};
        if (!before || found == before->outputs.end())
          throw plugin_error("block '" + block.name + "' reads '" + name + "', but " +
                             (before ? "the block before, '" + before->name + "', has no such output"
                                     : std::string("there is no block before it")));
        const auto &have = before->values[found->second].dims, &want = block.values[value].dims;
        if (have != want)
          throw plugin_error("block '" + block.name + "' reads '" + name + "' as " + program.dims_text(want) +
                             ", but block '" + before->name + "' outputs " + program.dims_text(have));
        if (before->values[found->second].type != block.values[value].type)
          throw plugin_error("block '" + block.name + "' reads '" + name +
                             "' in the precision of the run, but block '" + before->name +
                             "' outputs it as f32 or i32; blocks pass on no other dtypes");
      }
      before = &block;
    }
}

// Throws unless everything that is computed from sizes later fits into 64 bits.
void check_sizes(const Program& program) {
  double total = 0.0;
  for (const Chain& chain : program.chains)
    for (uint32_t type : chain.blocks)
      for (const ParameterSlot& slot : program.blocks[type].slots) {
        const Shape shape(program.global_shape(slot));
        double elements = 1.0;
        for (int64_t size : shape) elements *= static_cast<double>(size);
        total += elements;
        if (total > kMaxParameters)
          throw config_error("the model has more than 2^56 parameters: '" + slot.name + "' of block '" +
                             program.blocks[type].name + "' is " + text(shape));
      }
}

// Throws unless full names are unique, and ties lead to an existing parameter of the same shape.
void check_parameters(const Program& program) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const Chain& chain : program.chains)
    for (size_t i = 0; i < chain.blocks.size(); ++i)
      for (const ParameterSlot& slot : program.blocks[chain.blocks[i]].slots) {
        const std::string name = chain.parameter_name(i, slot);
        if (!slot.tied_to.empty()) continue;
        if (!shapes.emplace(name, program.global_shape(slot)).second)
          throw plugin_error("parameter '" + name + "' exists twice");
      }
  for (const Chain& chain : program.chains)
    for (size_t i = 0; i < chain.blocks.size(); ++i)
      for (const ParameterSlot& slot : program.blocks[chain.blocks[i]].slots) {
        if (slot.tied_to.empty()) continue;
        const auto owner = shapes.find(slot.tied_to);
        if (owner == shapes.end())
          throw plugin_error("parameter '" + chain.parameter_name(i, slot) + "' is tied to '" + slot.tied_to +
                             "', which does not exist");
        if (owner->second != program.global_shape(slot))
          throw plugin_error("parameter '" + chain.parameter_name(i, slot) + "' is tied to '" + slot.tied_to +
                             "' of another shape");
      }
}

Error refused_op(const BlockType& block, const Op& op, const std::string& why) {
  return plugin_error("block '" + block.name + "', op " + op.id.text() + " '" + op.name + "': " + why);
}

// Reads a plugin's declaration of its own op: the dims that it mixes, and the type of its output.
GraphValueType read_declaration(const Program& program, const BlockType& block, const chassis_op_desc_t& desc, Op& op) {
  const bool declares = desc.flags != 0 || desc.num_mixed_dims != 0 || desc.output_dtype != 0;
  if (declares && !op.is_own())
    throw refused_op(block, op, "only a plugin's own op, \"domain/name\", declares mixed_dims or output_dtype");
  if (const uint32_t unknown = desc.flags & ~CHASSIS_OP_MIXES_ONLY; unknown != 0)
    throw refused_op(block, op, "the flags " + std::to_string(unknown) + " are unknown to this host");
  const bool is_complete = (desc.flags & CHASSIS_OP_MIXES_ONLY) != 0;
  if (!is_complete && desc.num_mixed_dims != 0)
    throw refused_op(block, op, "it lists mixed_dims without the flag CHASSIS_OP_MIXES_ONLY");
  if (is_complete) op.mixed_dims.emplace(desc.mixed_dims, desc.mixed_dims + desc.num_mixed_dims);
  for (DimId d : op.mixed_dims.value_or(std::vector<DimId>())) check_dim(program, d);
  switch (desc.output_dtype) {
    case 0:
      return GraphValueType::kCompute;
    case CHASSIS_DTYPE_F32:
      return GraphValueType::kFloat32;
    case CHASSIS_DTYPE_I32:
      return GraphValueType::kInt32;
    default:
      throw refused_op(block, op,
                       "the output_dtype " + std::to_string(desc.output_dtype) +
                           " is neither f32, i32 nor 0, the precision of the run");
  }
}

void check_mixed_dims(const Program& program, const BlockType& block, const Op& op) {
  if (!op.mixed_dims) return;
  for (const DimId dim : *op.mixed_dims) {
    if (dim == CHASSIS_DIM_BATCH)
      throw refused_op(block, op, "mixed_dims has B, but rows are divided into micro-batches and between ranks");
    if (!block.has_operand_with(op, dim))
      throw refused_op(block, op, "mixed_dims has '" + program.dims[dim].name + "', which no operand has");
  }
  for (const ValueId input : op.inputs)
    if (input != kAbsent)
      for (const DimId dim : block.values[input].dims)
        if (!program.dims[dim].is_of_rows() && !op.mixes(dim) && !block.values[op.outputs.front()].has(dim))
          throw refused_op(
              block, op,
              "its input has '" + program.dims[dim].name + "', which its output lacks: list it in mixed_dims");
}

class Recorder {
 public:
  Recorder() {
    program_.dims = predeclared_dims();
    table_.struct_size = sizeof(table_);
    table_.impl = this;
    table_.dim = [](auto* b, chassis_str_t name, int64_t size, chassis_dim_t* out) {
      return guarded([&] { *out = record_dim(self(b).program_, text(name), size); });
    };
    table_.bounded_dim = [](auto* b, chassis_str_t name, int64_t maximum, chassis_dim_t* out) {
      return guarded([&] { *out = record_dim(self(b).program_, text(name), maximum, DimKind::kBounded); });
    };
    table_.begin_block = [](auto* b, chassis_str_t name, chassis_block_t* out) {
      return guarded([&] { *out = self(b).begin_block(text(name)); });
    };
    table_.end_block = [](auto* b) { return guarded([&] { self(b).end_block(); }); };
    table_.input = [](auto* b, chassis_str_t name, const chassis_dim_t* dims, uint32_t n, chassis_value_t* out) {
      return guarded([&] { *out = self(b).input(text(name), {dims, dims + n}); });
    };
    table_.field = [](auto* b, chassis_str_t name, uint32_t dtype, const chassis_dim_t* dims, uint32_t n,
                      chassis_value_t* out) {
      return guarded([&] { *out = self(b).field(text(name), dtype, {dims, dims + n}); });
    };
    table_.slot = [](auto* b, const chassis_slot_desc_t* desc, chassis_slot_t* out) {
      return guarded([&] { *out = self(b).slot(read_struct(desc, "the description of a parameter")); });
    };
    table_.op = [](auto* b, const chassis_op_desc_t* desc, chassis_value_t* out) {
      return guarded([&] { *out = self(b).op(read_struct(desc, "the description of an op")); });
    };
    table_.output = [](auto* b, chassis_str_t name, chassis_value_t value) {
      return guarded([&] { self(b).output(text(name), value); });
    };
    table_.chain = [](auto* b, chassis_str_t name, chassis_str_t prefix, const chassis_block_t* blocks, uint32_t n) {
      return guarded([&] { self(b).chain(text(name), text(prefix), {blocks, blocks + n}); });
    };
  }

  const chassis_builder_t* table() const { return &table_; }

  Program finish() {
    if (open_) throw plugin_error("block '" + block().name + "' was begun but not ended");
    check_program(program_);
    return std::move(program_);
  }

 private:
  static Recorder& self(const chassis_builder_t* b) { return *static_cast<Recorder*>(b->impl); }

  uint32_t begin_block(std::string name) {
    if (open_) throw plugin_error("block '" + name + "' begins inside block '" + block().name + "'");
    program_.blocks.emplace_back().name = std::move(name);
    open_ = true;
    return static_cast<uint32_t>(program_.blocks.size() - 1);
  }

  void end_block() {
    if (block().outputs.empty()) throw plugin_error("block '" + block().name + "' has no output");
    open_ = false;
  }

  ValueId input(const std::string& name, std::vector<DimId> dims) {
    for (DimId d : dims) check_dim(d);
    if (block().inputs.count(name)) return block().inputs[name];
    const ValueId id = block().add_value({name, std::move(dims), GraphValueType::kCompute, {}});
    block().inputs[name] = id;
    return id;
  }

  ValueId field(const std::string& name, uint32_t dtype, std::vector<DimId> dims) {
    for (DimId d : dims) check_dim(d);
    const std::string which = "block '" + block().name + "', field '" + name + "': ";
    if (dtype != CHASSIS_DTYPE_I32 && dtype != CHASSIS_DTYPE_F32)
      throw plugin_error(which + "the dtype " + std::to_string(dtype) + " is neither i32 nor f32");
    const Field field{dtype == CHASSIS_DTYPE_I32 ? GraphValueType::kInt32 : GraphValueType::kFloat32, dims};
    const auto [known, is_new] = program_.fields.emplace(name, field);
    if (!is_new && known->second != field)
      throw plugin_error(which + "it is " + program_.field_text(field) + " here, but " +
                         program_.field_text(known->second) + " in an earlier declaration");
    if (block().fields.count(name)) return block().fields[name];
    const ValueId id = block().add_value({name, std::move(dims), field.type, {}});
    block().fields[name] = id;
    return id;
  }

  SlotId slot(const chassis_slot_desc_t& desc) { return block().add_slot(record_slot(program_, block(), desc)); }

  ValueId op(const chassis_op_desc_t& desc) {
    Op op = record_op(program_, block(), desc);
    const ValueId out = op.outputs.front();
    block().ops.push_back(std::move(op));
    return out;
  }

  void output(std::string name, ValueId value) {
    if (value >= block().values.size())
      throw plugin_error("output '" + name + "' names value " + std::to_string(value) + ", which does not exist");
    block().outputs[std::move(name)] = value;
  }

  void chain(std::string name, std::string prefix, std::vector<uint32_t> blocks) {
    if (blocks.empty()) throw plugin_error("chain '" + name + "' has no block");
    for (uint32_t b : blocks)
      if (b >= program_.blocks.size())
        throw plugin_error("chain '" + name + "' names block type " + std::to_string(b) + ", which does not exist");
    if (blocks.size() > 1 && prefix.find("{i}") == std::string::npos)
      throw plugin_error("chain '" + name + "' has " + std::to_string(blocks.size()) + " blocks, but its prefix '" +
                         prefix + "' has no {i}");
    if (blocks.size() > kMaxBlocks)
      throw config_error("chain '" + name + "' has " + std::to_string(blocks.size()) + " blocks; the maximum is " +
                         std::to_string(kMaxBlocks));
    program_.chains.push_back({std::move(name), std::move(prefix), std::move(blocks)});
  }

  void check_dim(DimId d) const { chassis::check_dim(program_, d); }

  BlockType& block() {
    if (!open_) throw plugin_error("nothing can be recorded outside begin_block and end_block");
    return program_.blocks.back();
  }

  Program program_;
  bool open_ = false;
  chassis_builder_t table_{};
};

}  // namespace

DimId record_dim(Program& program, std::string name, int64_t size, DimKind kind) {
  if (size < 1) throw plugin_error("dim '" + name + "' has size " + std::to_string(size) + ", expected at least 1");
  if (auto known = program.find_dim(name)) {
    if ((kind == DimKind::kBounded) != (program.dims[*known].kind == DimKind::kBounded))
      throw plugin_error("dim '" + name + "' is declared both with a maximum and without one");
    if (program.dims[*known].size == size) return *known;
    throw plugin_error("dim '" + name + "' is declared with size " + std::to_string(program.dims[*known].size) +
                       " and again with " + std::to_string(size));
  }
  program.dims.push_back({std::move(name), size, kind});
  return static_cast<DimId>(program.dims.size() - 1);
}

ParameterSlot record_slot(const Program& program, const BlockType& block, const chassis_slot_desc_t& desc) {
  ParameterSlot slot;
  slot.name = text(desc.name);
  for (uint32_t i = 0; i < desc.num_axes; ++i) {
    slot.axes.emplace_back(desc.axes[i].dims, desc.axes[i].dims + desc.axes[i].num_dims);
    for (DimId d : slot.axes.back()) check_dim(program, d);
  }
  const std::string which = "block '" + block.name + "', parameter '" + slot.name + "': ";
  for (const auto& axis : slot.axes)
    for (const DimId dim : axis)
      if (!program.dims[dim].is_fixed())
        throw plugin_error(which + "it has the dim '" + program.dims[dim].name + "', whose size is not fixed");
  if (desc.role < CHASSIS_ROLE_WEIGHT || desc.role > CHASSIS_ROLE_ROUTER)
    throw plugin_error(which + "the role " + std::to_string(desc.role) + " is not valid; roles are 1 to 6");
  if (desc.init < CHASSIS_INIT_ZEROS || desc.init > CHASSIS_INIT_UNIFORM)
    throw plugin_error(which + "the init " + std::to_string(desc.init) + " is not valid; inits are 1 to 4");
  if (!(desc.lr_scale >= 0.0 && desc.lr_scale <= 1e6))
    throw plugin_error(which + "lr_scale is " + std::to_string(desc.lr_scale) + ", expected a number from 0 to 1e6");
  slot.role = desc.role;
  slot.init = desc.init;
  slot.init_std = desc.init_std;
  slot.tied_to = text(desc.tied_to);
  slot.lr_scale = desc.lr_scale == 0.0 ? 1.0 : desc.lr_scale;
  for (const ParameterSlot& other : block.slots)
    if (other.name == slot.name)
      throw plugin_error("block '" + block.name + "' declares parameter '" + slot.name + "' twice");
  return slot;
}

Op record_op(const Program& program, BlockType& block, const chassis_op_desc_t& desc) {
  Op op;
  op.id = OpId(text(desc.id));
  op.name = desc.name.len ? text(desc.name) : op.id.text();
  op.inputs.assign(desc.inputs, desc.inputs + desc.num_inputs);
  while (!op.inputs.empty() && op.inputs.back() == kAbsent) op.inputs.pop_back();
  for (ValueId v : op.inputs)
    if (v != kAbsent && v >= block.values.size())
      throw plugin_error("block '" + block.name + "', op '" + op.name + "': there is no value " + std::to_string(v));
  op.params.assign(desc.params, desc.params + desc.num_params);
  for (SlotId s : op.params)
    if (s >= block.slots.size())
      throw plugin_error("block '" + block.name + "', op '" + op.name + "': there is no parameter " +
                         std::to_string(s));
  for (uint32_t i = 0; i < desc.num_attrs; ++i)
    op.attrs.emplace_back(text(desc.attrs[i].name), attr_value(desc.attrs[i]));
  std::vector<DimId> dims(desc.output_dims, desc.output_dims + desc.num_output_dims);
  for (DimId d : dims) check_dim(program, d);
  const GraphValueType own_type = read_declaration(program, block, desc, op);
  infer_outputs(program, block, op, dims, own_type);
  check_mixed_dims(program, block, op);
  return op;
}

void check_program(const Program& program) {
  check_chains(program);
  check_parameters(program);
  check_sizes(program);
}

Program record_program(const std::function<chassis_status_t*(const chassis_builder_t*)>& record) {
  Recorder recorder;
  throw_if_failed(record(recorder.table()), "recording the model");
  return recorder.finish();
}

}  // namespace chassis
