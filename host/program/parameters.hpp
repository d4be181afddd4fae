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

namespace chassis {

struct Parameter {
  std::string name;
  Descriptor descriptor;
  std::vector<int64_t> local_shape;  // this rank's part, padded where the split is uneven
  uint32_t role = CHASSIS_ROLE_WEIGHT;
  uint32_t init = CHASSIS_INIT_ZEROS;
  double init_std = 0.0;
  bool trainable = true;

  Tensor value;     // what ops read, in the precision of the run
  Tensor master;    // fp32: what the optimizer updates; the same tensor as value if the run computes in fp32
  // The stored one: master if there is one.
  const Tensor& stored() const { return master ? master : value; }
  Tensor gradient;  // fp32; none before the first backward
  bool gradient_written = false;  // in this step; an unwritten gradient counts as zero
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

  // Decides the stored dtype of every parameter: fp32 masters for what is trained, else the precision of the run.
  void set_precision(Dtype compute);
  // Creates values and masters on the device; contents are undefined.
  void allocate(Device device);
  // Fills masters and values from the counter-based generator: what a parameter gets depends on seed and name alone.
  void initialize(uint64_t seed);
  // value = cast(master), where they are two tensors.
  void publish_masters();
  void start_step();  // gradients count as zero again

 private:
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::vector<std::vector<Parameter*>> units_;
  Dtype compute_ = Dtype::f32;
};

}  // namespace chassis
