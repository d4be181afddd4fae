// The parameters of a recorded program: one entry for each tensor that exists, found by name or by (unit, slot).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "host/program/layout.hpp"
#include "host/program/program.hpp"
#include "host/service/tensor.hpp"
#include "host/state/descriptor.hpp"
#include "host/state/layout.hpp"

namespace chassis {

struct Parameter {
  std::string name;
  Descriptor descriptor;
  std::vector<int64_t> local_shape;  // whole, as ops read it on this rank; padded where a split is uneven
  uint32_t role = CHASSIS_ROLE_WEIGHT;
  uint32_t init = CHASSIS_INIT_ZEROS;
  double init_std = 0.0;
  double lr_scale = 1.0;
  bool trainable = true;
  bool added = false;      // by an adapter
  bool offloaded = false;  // the shard, its gradient and its optimizer states lie in host memory
  bool pinned = false;     // shard and gradient are page-locked there if the run's device is CUDA

  Tensor value;     // what ops read, in the precision of the run; empty while it is not gathered
  Tensor shard;     // what this rank stores, loads and saves: fp32 if it is trained, else in the precision of the run.
                    // Shares memory with value where nothing divides or casts
  Tensor gradient;  // of value, fp32; empty before the first backward
  bool gradient_written = false;  // in this step; an unwritten gradient counts as zero
  // The shard's gradient, summed over the data-parallel ranks, which the optimizer reads; empty: it reads `gradient`.
  Tensor reduced;
  bool owned = true;  // of all ranks that store the shard, this one counts it in norms

  const Tensor& stored() const { return shard; }
  // What the optimizer reads; empty if nothing was written.
  Tensor step_gradient() const { return reduced ? reduced : gradient_written ? gradient : Tensor(); }
};

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
  // layout holds the same values. Then publishes. kAdded: only of parameters that an adapter added.
  enum class Which { kAll, kAdded };
  void initialize(uint64_t seed, Which which = Which::kAll);
  // value = cast(shard), where they are two tensors of the same shape. Strategies update the divided ones.
  void update_values();
  void start_step();  // gradients count as zero again

  // Sets the mesh that divides the shards, and this rank. Call before allocate. Default: rank 0 of the program's own
  // axes.
  void place(MeshShape mesh, int rank);
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
