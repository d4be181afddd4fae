// A quant plugin in use (chassis.quant/1), and how it stores one parameter.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "chassis/kind/quant.h"
#include "host/plugin/instance.hpp"
#include "host/state/descriptor.hpp"

namespace chassis {

class QuantizedStorage;

class QuantPlugin {
 public:
  // The instance must outlive it and all storages. Throws a plugin error if it offers no quant or no ops, or lacks a
  // required function.
  explicit QuantPlugin(Instance& instance);

  Instance& instance() const { return *instance_; }
  std::string id() const { return instance_->id(); }
  // Must be called once, before all others. Returns true if the model's files hold components.
  bool configure(const std::string& quantization_config) const;
  // Returns NULL if the parameter stays as it is. `this` must not move while the result lives.
  std::shared_ptr<const QuantizedStorage> storage(const chassis_quant_parameter_t& parameter) const;
  void finish_model() const;
  // "quantization_config" for config.json, if the plugin writes one.
  bool has_config() const { return table_.config != nullptr; }
  std::string config() const;

 private:
  friend class QuantizedStorage;
  Instance* instance_;
  chassis_quant_t table_{};
};

// Consecutive row-major elements of a parameter, and the addresses of their components.
struct QuantizedPart {
  const Shape& shape;  // shape of the parameter
  FlatRange elements;
  std::vector<void*> components;  // NULL where a call does not use them
};

class QuantizedStorage {
 public:
  // Throws a plugin error if the description is not valid for a parameter of this shape.
  QuantizedStorage(const QuantPlugin& plugin, const chassis_quant_storage_t& raw, const std::string& parameter,
                   const Shape& shape);

  // The plugin's description: equal for parameters that are stored alike.
  const chassis_quant_storage_t* described_by() const { return raw_; }
  const std::string& scheme() const { return scheme_; }
  const std::string& state_suffix() const { return state_suffix_; }
  // With suffixes, units and forms; `staged` and flags are those of raw().
  const std::vector<Component>& components() const { return components_; }
  // True if each index of dim 0 is stored as a parameter of its own; else the parameter is its only slice.
  bool is_sliced() const { return is_sliced_; }
  int64_t num_slices() const { return num_slices_; }
  // The shape and the components of one slice.
  Shape slice_shape(const Shape& shape) const;
  Component slice_component(size_t i) const;
  const chassis_component_t& raw(size_t i) const { return described_[i]; }
  const chassis_component_t* const* raw_components() const { return raw_->components; }
  bool is_staged(size_t i) const { return described_[i].staged_dtype != 0; }
  // True if ops can compute with parts of the parameter.
  bool is_divisible() const { return is_divisible_; }
  // A parameter may be cut at multiples of this number of elements.
  int64_t block_elements() const { return block_elements_; }
  // The offset, in values, of component i's first value for elements from `begin` on.
  int64_t value_offset(size_t i, int64_t begin) const;
  // The number of values of component i, which must have units, for `count` elements.
  int64_t num_values(size_t i, int64_t count) const;

  // These work as in chassis_quant_t, slice by slice; finish() makes the components without units of all slices.
  void encode(const QuantizedPart& part, std::span<const float> values) const;
  void finish(const QuantizedPart& part, std::span<const void* const> staged) const;
  void decode(const QuantizedPart& part, std::span<float> values) const;
  void verify(const QuantizedPart& part) const;
  // For one slice of a part that is the whole parameter.
  std::string write_state(const QuantizedPart& whole, int64_t slice, Dtype dtype) const;
  void read_state(const QuantizedPart& whole, int64_t slice, const std::string& text) const;

 private:
  chassis_quant_part_t part_of(const QuantizedPart& part) const;
  // The addresses of a part's components for its elements from `begin` on, which lie in this slice. `encodes`: they are
  // in their staged dtypes.
  std::vector<void*> in_slice(const QuantizedPart& part, int64_t slice, int64_t begin, bool encodes) const;
  // Calls visit(part of a slice, its first element in the parameter) for each slice that has elements of the part.
  template <class Visit>
  void for_each_slice(const QuantizedPart& part, bool encodes, Visit&& visit) const;

  const QuantPlugin& plugin_;
  const chassis_quant_storage_t* raw_;
  std::string scheme_, state_suffix_;
  std::vector<Component> components_;
  std::vector<chassis_component_t> described_;
  bool is_divisible_ = false, is_sliced_ = false;
  int64_t num_slices_ = 1;
  int64_t block_elements_ = 1;
};

}  // namespace chassis
