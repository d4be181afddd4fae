// The tensors of quantized parameters: allocates, encodes, finishes, verifies and decodes what a rank stores of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "host/compile/parameter.hpp"
#include "host/service/tensor.hpp"
#include "host/state/mesh_shape.hpp"

namespace chassis {

// One rank of a mesh, for which parameters are encoded. All functions take parameters that are quantized. New values
// are quantized by start_encoding(), then encode() for all of this rank's elements, in parts that begin at multiples of
// a block, then finish().
class QuantizedParameters {
 public:
  // The mesh must outlive it.
  QuantizedParameters(const MeshShape& mesh, int rank) : mesh_(mesh), rank_(rank) {}

  // Creates the components on the device `home`, zeroed, and their values on `device` where they are not gathered. By
  // default in host memory, for programs that do not allocate the whole table.
  void allocate(Parameter& p, Device home = {}, Device device = {}, bool pinned = false) const;
  static void release(Parameter& p);
  // Fills the components with the initial values of the parameter; see ParameterTable::initialize().
  void initialize(Parameter& p, uint64_t seed) const;

  static void start_encoding(Parameter& p);
  // `begin` counts the elements of this rank.
  void encode(Parameter& p, int64_t begin, std::span<const float> values) const;
  // `whole` returns a staged component of the whole parameter.
  using WholeStaged = std::function<Tensor(const Parameter& p, size_t component)>;
  void finish(Parameter& p, const WholeStaged& whole) const;
  // Call after components were read. Takes the rest from the texts that were stored with them, one for each slice, if
  // there are some. Throws if components or texts hold an invalid value.
  void verify(Parameter& p, std::span<const std::string> states) const;
  // Decodes this rank's elements from `begin` on, which must be in host memory.
  void decode(const Parameter& p, int64_t begin, std::span<float> values) const;
  // The text that files hold in addition to the components of a slice. `dtype` is that of the values before
  // quantization.
  static std::string state_text(const Parameter& p, int64_t slice, Dtype dtype);

 private:
  void allocate_component(Parameter& p, size_t i, Device home, Device device, bool pinned) const;

  const MeshShape& mesh_;
  int rank_;
};

}  // namespace chassis
