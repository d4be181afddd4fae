// One parameter of a recorded program: how it is described, and the tensors of this rank.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "host/compile/quant_plugin.hpp"
#include "host/graph/program.hpp"
#include "host/service/tensor.hpp"
#include "host/state/descriptor.hpp"
#include "host/state/shape.hpp"

namespace chassis {

// One of the tensors in which a quantized parameter is stored.
struct StoredComponent {
  Descriptor descriptor;
  std::vector<int64_t> local_shape;  // shape that ops read on this rank
  Tensor value;                      // whole, as ops read it; empty while it is not gathered
  Tensor shard;                      // stored by this rank
  Tensor staged;                     // while the parameter is loaded: the shard in the dtype of the first encoding
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
  bool of_objective = false;  // the head that an objective added
  bool offloaded = false;  // the shard, its gradient and its optimizer states lie in host memory
  bool pinned = false;     // shard and gradient are page-locked there if the run's device is CUDA

  Tensor value;     // read by ops, in the precision of the run; empty while it is not gathered
  Tensor shard;     // stored, loaded and saved by this rank: fp32 if it is trained, else in the precision of the run.
                    // Shares memory with value where nothing divides or casts
  Tensor gradient;  // gradient of value, fp32; empty before the first backward
  bool gradient_written = false;  // written in this step; an unwritten gradient counts as zero
  // The shard's gradient, summed over the data-parallel ranks, which the optimizer reads; empty: it reads `gradient`.
  Tensor reduced;
  bool owned = true;  // this rank, of all that store the shard, counts it in norms

  // A quantized parameter is frozen and has no value, shard or gradient, but components.
  std::shared_ptr<const QuantizedStorage> storage;
  std::vector<StoredComponent> components;

  // True if the layout pass has divided what ops read along this axis.
  bool is_divided_along(std::string_view axis) const;
  bool is_quantized() const { return storage != nullptr; }
  bool is_whole() const { return is_quantized() ? components.front().value && components.back().value : !!value; }
  const Tensor& stored() const { return shard; }
  // The tensors in which it is stored: one, or one for each component.
  std::vector<Tensor> all_stored() const;
  // The gradient that the optimizer reads; empty if nothing was written.
  Tensor step_gradient() const { return reduced ? reduced : gradient_written ? gradient : Tensor(); }
};

inline std::vector<int64_t> sizes_of(const Shape& shape) { return {shape.begin(), shape.end()}; }

// Fills `values` with elements [index, index + values.size()) of a parameter with a normal or uniform init, before they
// are scaled. They depend only on seed, name and index.
void fill_random(const Parameter& p, int64_t index, std::span<float> values, uint64_t seed);

}  // namespace chassis
