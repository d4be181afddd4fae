// The parameters of a recorded program: one entry for each tensor that exists, found by name or by (unit, slot).
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "host/compile/layout.hpp"
#include "host/compile/parameter.hpp"
#include "host/compile/quantized_parameters.hpp"
#include "host/graph/program.hpp"
#include "host/service/tensor.hpp"
#include "host/state/layout.hpp"
#include "host/state/mesh_shape.hpp"

namespace chassis {

class ParameterTable {
 public:
  // Entries without tensors. A tied slot leads to the parameter it is tied to.
  ParameterTable(const Program& program, const ProgramLayout& layout);

  const std::vector<std::unique_ptr<Parameter>>& all() const { return parameters_; }
  Parameter* find(std::string_view name) const;
  // Units count the blocks of all chains in program order.
  Parameter& at(size_t unit, SlotId slot) const { return *units_[unit][slot]; }
  const std::vector<Parameter*>& of_unit(size_t unit) const { return units_[unit]; }

  int64_t num_elements(bool trainable_only) const;

  // Decides the stored dtype of every parameter: fp32 for what is trained, else the precision of the run.
  void set_precision(Dtype compute);
  Dtype compute() const { return compute_; }
  // Creates shards on the device, and values where they are not gathered; contents are undefined, padding is zero.
  void allocate(Device device);
  // Fills the shards from the counter-based generator: an element depends only on seed, name and index, so that any
  // layout holds the same values. Then calls update_values(). kAdded: only parameters that an adapter added.
  enum class Which { kAll, kAdded };
  void initialize(uint64_t seed, Which which = Which::kAll);
  // value = cast(shard), where they are two tensors of the same shape. Strategies update the divided ones.
  void update_values();
  // Encodes and decodes quantized parameters for this rank, one at a time. The table must outlive it.
  QuantizedParameters quantized() const { return {mesh_, rank_}; }
  void start_step();  // gradients count as zero again

  // Sets the mesh that divides the shards, and this rank. Call before allocate. Default: rank 0 of the program's own
  // axes.
  void place(MeshShape mesh, int rank);
  // [control] Frees this rank's tensors, so that place() and allocate() can follow for another rank. A parameter of
  // which this rank stores nothing keeps its empty shard.
  void release();
  const MeshShape& mesh() const { return mesh_; }
  int rank() const { return rank_; }

 private:
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::vector<std::vector<Parameter*>> units_;
  Dtype compute_ = Dtype::f32;
  MeshShape mesh_;
  int rank_ = 0;
};

}  // namespace chassis
