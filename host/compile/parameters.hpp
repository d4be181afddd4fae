// The parameters of a recorded program: one entry for each tensor that exists, found by name or by (unit, slot).
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "host/compile/layout.hpp"
#include "host/compile/quant_plugin.hpp"
#include "host/graph/program.hpp"
#include "host/service/tensor.hpp"
#include "host/state/descriptor.hpp"
#include "host/state/layout.hpp"

namespace chassis {

// One of the tensors in which a quantized parameter is stored.
struct StoredComponent {
  Descriptor descriptor;
  std::vector<int64_t> local_shape;  // shape that ops read on this rank
  Tensor value;                      // whole, as ops read it; empty while it is not gathered
  Tensor shard;                      // stored by this rank
  Tensor staged;                     // while the parameter is loaded: the shard in the dtype of the first encoding
};

// A run of elements that a rank stores, consecutive both in the parameter and in the rank's shard.
struct LocalRun {
  int64_t begin = 0;  // offset of the first element, row-major in the parameter
  int64_t local = 0;  // its offset in the rank's shard
  int64_t count = 0;
};

struct Parameter {
  std::string name;
  Descriptor descriptor;             // if quantized, that of its elements, with its components
  std::vector<int64_t> local_shape;  // whole, as ops read it on this rank; padded where a split is uneven
  size_t num_layout_placements = 0;  // the descriptor's placements that divide what ops read; they come first
  uint32_t role = CHASSIS_ROLE_WEIGHT;
  uint32_t init = CHASSIS_INIT_ZEROS;
  double init_std = 0.0;
  double lr_scale = 1.0;
  Granularity granularity;  // cuts allowed to strategies. The descriptor has the same, except for a matrix that the
                            // layout pass divided and that one of the ranks with a part steps whole
  std::vector<std::string> partial_over;  // axes over which its gradient is still to be summed; see Slot
  bool trainable = true;
  bool is_here = true;     // false: only pipeline stages of other ranks read it, and this one stores nothing of it
  bool added = false;      // added by an adapter
  bool offloaded = false;  // the shard, its gradient and its optimizer states lie in host memory
  bool pinned = false;     // shard and gradient are page-locked there if that helps the run's device

  Tensor value;     // read by ops, in the precision of the run; empty while it is not gathered
  Tensor shard;     // stored, loaded and saved by this rank: fp32 if it is trained, else in the precision of the run.
                    // Shares memory with value where nothing divides or casts
  Tensor gradient;  // gradient of value, fp32; empty before the first backward
  bool gradient_written = false;  // written in this step; an unwritten gradient counts as zero
  // The shard's gradient, summed over the data-parallel ranks, which the optimizer reads; empty: it reads `gradient`.
  Tensor reduced;
  bool owned = true;  // this rank, of all that store the shard, counts it in norms

  // A quantized parameter is frozen and has no value, shard or gradient, but components.
  std::shared_ptr<const QuantStorage> storage;
  std::vector<StoredComponent> components;

  bool is_quantized() const { return storage != nullptr; }
  bool is_whole() const { return is_quantized() ? components.front().value && components.back().value : !!value; }
  const Tensor& stored() const { return shard; }
  // The tensors in which it is stored: one, or one for each component.
  std::vector<Tensor> all_stored() const;
  // The gradient that the optimizer reads; empty if nothing was written.
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
  // layout holds the same values. Then calls update_values(). kAdded: only parameters that an adapter added.
  enum class Which { kAll, kAdded };
  void initialize(uint64_t seed, Which which = Which::kAll);
  // value = cast(shard), where they are two tensors of the same shape. Strategies update the divided ones.
  void update_values();
  // Quantizes new values: start_encoding(), then encode() for all of this rank's elements, in parts that begin at
  // multiples of a block, then finish_components(). `begin` counts the elements of this rank.
  void start_encoding(Parameter& p) const;
  void encode(Parameter& p, int64_t begin, std::span<const float> values) const;
  // `whole` returns a staged component of the whole parameter.
  using WholeStaged = std::function<Tensor(const Parameter& p, size_t component)>;
  void finish_components(Parameter& p, const WholeStaged& whole) const;
  // Call after components were read. Takes the rest from the text that was stored with them, if there is one. Throws if
  // either holds an invalid value.
  void verify_components(Parameter& p, const std::string& state) const;
  // Allocates and releases the components of one quantized parameter in host memory, zeroed, for programs that do not
  // allocate() the table.
  void allocate_components(Parameter& p);
  static void release_components(Parameter& p);
  // Decodes this rank's elements from `begin` on, which must be in host memory.
  void decode(const Parameter& p, int64_t begin, std::span<float> values) const;
  // The text that files hold in addition to the components. `dtype` is that of the values before quantization.
  static std::string state_text(const Parameter& p, Dtype dtype);
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
  std::vector<LocalRun> local_runs(const Parameter& p) const;
  static QuantPart part_of(const Parameter& p, const std::vector<Tensor>& components, const LocalRun& run);
  std::vector<int64_t> whole_component(const Parameter& p, size_t i) const;
  void allocate_component(Parameter& p, size_t i, Device home, Device device, bool pinned);
  void initialize_quantized(Parameter& p, uint64_t seed);

  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::vector<std::vector<Parameter*>> units_;
  Dtype compute_ = Dtype::f32;
  MeshShape mesh_;
  int rank_ = 0;
};

}  // namespace chassis
