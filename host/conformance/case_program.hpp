// Programs of one block for the tests of ops providers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host/graph/op_table.hpp"

namespace chassis {

// One block under test: inputs by name, parameters, and the op or ops.
class CaseProgram {
 public:
  // kTokens is not a multiple of a vector or tile size; kManyTokens is more than the tiles of most kernels have.
  static constexpr int64_t kTokens = 13, kManyTokens = 521;

  explicit CaseProgram(std::string name) {
    program_.dims = predeclared_dims();
    program_.blocks.emplace_back().name = std::move(name);
    program_.chains.push_back({"case", "", {0}});
  }

  DimId dim(const char* name, int64_t size) {
    program_.dims.push_back({name, size});
    return static_cast<DimId>(program_.dims.size() - 1);
  }
  ValueId input(const char* name, std::vector<DimId> dims) {
    dims.insert(dims.begin(), {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME});
    return block().inputs[name] = block().add_value({name, std::move(dims), GraphValueType::kCompute, {}});
  }
  ValueId field(const char* name, std::vector<DimId> dims = {}) {
    dims.insert(dims.begin(), {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME});
    return block().fields[name] = block().add_value({name, std::move(dims), GraphValueType::kInt32, {}});
  }
  ValueId field(const char* name, DimId last) {
    return block().fields[name] =
               block().add_value({name, {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME, last}, GraphValueType::kInt32, {}});
  }
  SlotId slot(std::string name, std::vector<std::vector<DimId>> axes) {
    ParameterSlot slot;
    slot.name = std::move(name);
    slot.axes = std::move(axes);
    return block().add_slot(std::move(slot));
  }
  SlotId frozen_slot(std::string name, std::vector<std::vector<DimId>> axes) {
    const SlotId id = slot(std::move(name), std::move(axes));
    block().slots[id].frozen = true;
    return id;
  }
  ValueId op(const char* id, std::vector<ValueId> inputs, std::vector<SlotId> params = {}, OpAttrs attrs = {},
             std::vector<DimId> output_dims = {}) {
    Op op{OpId(id), id, std::move(inputs), std::move(params), {}, std::move(attrs)};
    infer_outputs(program_, block(), op, output_dims);
    block().ops.push_back(op);
    return op.outputs[0];
  }
  CaseProgram& output(const std::string& name, ValueId value) {
    block().outputs[name] = value;
    return *this;
  }
  // Output i of the last op.
  ValueId result(size_t i) const { return program_.blocks[0].ops.back().outputs[i]; }
  const Program& program() const { return program_; }
  // The number of tokens in a row when the program runs.
  int64_t num_tokens() const { return num_tokens_; }
  CaseProgram& large() {
    num_tokens_ = kManyTokens;
    block().name += ", large";
    return *this;
  }
  CaseProgram& one_token() {
    num_tokens_ = 1;
    block().name += ", one token in a row";
    return *this;
  }

 private:
  BlockType& block() { return program_.blocks[0]; }
  Program program_;
  int64_t num_tokens_ = kTokens;
};

// A program with the ops of a pattern such as "rms_norm+linear", each of which reads the result of the one before. If
// `keeps_all`, the results of all ops are outputs, so that a provider cannot leave them out. Returns nothing if an op
// cannot stand at its place in the pattern, or has no reference, such as a plugin's own op.
std::optional<CaseProgram> pattern_case(const std::vector<std::string>& pattern, bool keeps_all);

}  // namespace chassis
