// Calls the functions of a quant plugin, and checks how it describes components.
#include "host/compile/quant_plugin.hpp"

#include <algorithm>
#include <numeric>
#include <set>

#include "chassis/kind/ops.h"
#include "host/base/error.hpp"
#include "host/plugin/sized.hpp"
#include "host/plugin/status.hpp"
#include "host/plugin/text_sink.hpp"

namespace chassis {

QuantPlugin::QuantPlugin(Instance& instance)
    : instance_(&instance), table_(instance.interface<chassis_quant_t>(CHASSIS_QUANT_ID)) {
  instance.require(CHASSIS_QUANT_ID, {{"configure", table_.configure != nullptr},
                                      {"parameter", table_.parameter != nullptr},
                                      {"encode", table_.encode != nullptr},
                                      {"decode", table_.decode != nullptr}});
  instance.interface<chassis_ops_t>(CHASSIS_OPS_ID);
}

bool QuantPlugin::configure(const std::string& quantization_config) const {
  uint32_t is_stored = 0;
  instance_->call("configure",
                  [&](auto* self) { return table_.configure(self, str_of(quantization_config), &is_stored); });
  return is_stored != 0;
}

std::shared_ptr<const QuantizedStorage> QuantPlugin::storage(const chassis_quant_parameter_t& parameter) const {
  const chassis_quant_storage_t* raw = nullptr;
  instance_->call("parameter", [&](auto* self) { return table_.parameter(self, &parameter, &raw); });
  if (raw == nullptr) return nullptr;
  return std::make_shared<QuantizedStorage>(*this, *raw, std::string(view_of(parameter.name)),
                                            Shape(std::span(parameter.sizes, parameter.num_dims)));
}

void QuantPlugin::finish_model() const {
  if (table_.finish_model != nullptr)
    instance_->call("finish_model", [&](auto* self) { return table_.finish_model(self); });
}

std::string QuantPlugin::config() const {
  if (!has_config()) throw plugin_error(instance_->label() + " writes no quantization_config");
  TextSink sink;
  instance_->call("config", [&](auto* self) { return table_.config(self, sink.get()); });
  return sink.take();
}

QuantizedStorage::QuantizedStorage(const QuantPlugin& plugin, const chassis_quant_storage_t& raw,
                                   const std::string& parameter, const Shape& shape)
    : plugin_(plugin), raw_(&raw) {
  const chassis_quant_storage_t storage = read_struct(&raw, "the storage of '" + parameter + "'");
  const auto refuse = [&](const std::string& what) {
    return plugin_error(plugin.instance().label() + ": the storage of '" + parameter + "' " + what);
  };
  scheme_ = view_of(storage.scheme);
  state_suffix_ = view_of(storage.state_suffix);
  if (scheme_.empty()) throw refuse("has no scheme");
  if ((storage.flags & ~(CHASSIS_STORAGE_DIVISIBLE | CHASSIS_STORAGE_SLICES)) != 0)
    throw refuse("has unknown flags " + std::to_string(storage.flags));
  is_divisible_ = (storage.flags & CHASSIS_STORAGE_DIVISIBLE) != 0;
  is_sliced_ = (storage.flags & CHASSIS_STORAGE_SLICES) != 0;
  if (is_sliced_ && (shape.ndim() < 2 || numel(shape) == 0))
    throw refuse("has slices, but its shape is " + text(shape));
  if (is_sliced_) num_slices_ = shape[0];
  constexpr uint32_t kMostComponents = 16;
  if (storage.num_components == 0 || storage.num_components > kMostComponents || storage.components == nullptr)
    throw refuse("has " + std::to_string(storage.num_components) + " components, expected 1 to " +
                 std::to_string(kMostComponents));
  std::set<std::string> suffixes;
  for (uint32_t i = 0; i < storage.num_components; ++i) {
    const chassis_component_t& c =
        described_.emplace_back(read_struct(storage.components[i], "a component of '" + parameter + "'"));
    const std::string suffix(view_of(c.suffix)), name = "component " + std::to_string(i) + " '" + suffix + "'";
    if (!suffixes.insert(suffix).second || suffix.empty() != (i == 0))
      throw refuse("has " + name + "; the first has no suffix, each other one its own");
    for (const uint32_t dtype : {c.dtype, c.staged_dtype})
      if (size_bytes(static_cast<Dtype>(dtype)) == 0 && (dtype != 0 || &dtype == &c.dtype))
        throw refuse("has " + name + " of the unknown dtype " + std::to_string(dtype));
    constexpr uint32_t kFlags = CHASSIS_COMPONENT_COLUMN | CHASSIS_COMPONENT_NOT_IN_FILES;
    if ((c.flags & ~kFlags) != 0) throw refuse("has " + name + " with unknown flags " + std::to_string(c.flags));
    constexpr int64_t kMostUnit = int64_t{1} << 40;
    const bool is_divided = c.unit_elements != 0;
    if (is_divided
            ? c.unit_elements < 1 || c.unit_elements > kMostUnit || c.unit_values < 1 || c.unit_values > kMostUnit
            : i == 0 || c.num_values < 1 || c.num_values > kMostUnit)
      throw refuse("has " + name + " with units of " + std::to_string(c.unit_elements) + " elements, " +
                   std::to_string(c.unit_values) + " values, " + std::to_string(c.num_values) + " in all");
    if ((c.staged_dtype != 0 || !is_divided) && plugin.table_.finish == nullptr)
      throw plugin_error(plugin.instance().label() + ": its " + CHASSIS_QUANT_ID + " has no function finish, which " +
                         name + " of '" + parameter + "' needs: it is staged, or has no units");
    Component& component = components_.emplace_back(
        is_divided ? Component::per_unit(suffix, static_cast<Dtype>(c.dtype), c.unit_elements, c.unit_values)
                   : Component::whole(suffix, static_cast<Dtype>(c.dtype), Shape{num_slices_ * c.num_values}));
    component.form = (c.flags & CHASSIS_COMPONENT_COLUMN) != 0 ? Component::Form::kColumn : Component::Form::kVector;
    if (is_divided) block_elements_ = std::lcm(block_elements_, c.unit_elements);
    if (block_elements_ > kMostUnit) throw refuse("can be cut only at multiples of " + std::to_string(block_elements_));
  }
  if (is_sliced_ && numel(slice_shape(shape)) % block_elements_ != 0)
    throw refuse("has slices of " + std::to_string(numel(slice_shape(shape))) + " elements, which are no multiple of " +
                 std::to_string(block_elements_));
}

Shape QuantizedStorage::slice_shape(const Shape& shape) const {
  return is_sliced_ ? Shape(std::span(shape.begin() + 1, shape.end())) : shape;
}

Component QuantizedStorage::slice_component(size_t i) const {
  Component out = components_[i];
  if (out.unit_elements == 0) out.whole_shape[0] /= num_slices_;
  return out;
}

int64_t QuantizedStorage::value_offset(size_t i, int64_t begin) const {
  const Component& c = components_[i];
  return c.unit_elements == 0 ? 0 : begin / c.unit_elements * c.unit_values;
}

int64_t QuantizedStorage::num_values(size_t i, int64_t count) const {
  const Component& c = components_[i];
  return (count + c.unit_elements - 1) / c.unit_elements * c.unit_values;
}

chassis_quant_part_t QuantizedStorage::part_of(const QuantizedPart& part) const {
  chassis_quant_part_t raw{};
  raw.struct_size = sizeof raw;
  raw.value_dtype = CHASSIS_DTYPE_F32;
  raw.storage = raw_;
  raw.sizes = part.shape.begin();
  raw.num_sizes = static_cast<uint64_t>(part.shape.ndim());
  raw.begin = part.elements.offset;
  raw.count = part.elements.length;
  raw.components = part.components.data();
  return raw;
}

std::vector<void*> QuantizedStorage::in_slice(const QuantizedPart& part, int64_t slice, int64_t begin,
                                              bool encodes) const {
  std::vector<void*> out;
  for (size_t i = 0; i < part.components.size(); ++i) {
    const Component& c = components_[i];
    const Dtype dtype = encodes && is_staged(i) ? static_cast<Dtype>(described_[i].staged_dtype) : c.dtype;
    const int64_t first =
        c.unit_elements == 0 ? slice * described_[i].num_values : value_offset(i, begin - part.elements.offset);
    auto* const address = static_cast<std::byte*>(part.components[i]);
    out.push_back(address == nullptr ? nullptr : address + first * size_bytes(dtype));
  }
  return out;
}

template <class Visit>
void QuantizedStorage::for_each_slice(const QuantizedPart& part, bool encodes, Visit&& visit) const {
  if (!is_sliced_) return visit(part, part.elements.offset);
  const Shape shape = slice_shape(part.shape);
  const int64_t elements = numel(shape), end = part.elements.offset + part.elements.length;
  for (int64_t begin = part.elements.offset; begin < end;) {
    const int64_t slice = begin / elements, count = std::min(end, (slice + 1) * elements) - begin;
    visit(QuantizedPart{shape, {begin - slice * elements, count}, in_slice(part, slice, begin, encodes)}, begin);
    begin += count;
  }
}

void QuantizedStorage::encode(const QuantizedPart& part, std::span<const float> values) const {
  for_each_slice(part, true, [&](const QuantizedPart& some, int64_t begin) {
    chassis_quant_part_t raw = part_of(some);
    raw.values = const_cast<float*>(values.data() + (begin - part.elements.offset));
    plugin_.instance_->call("encode", [&](auto* self) { return plugin_.table_.encode(self, &raw); });
  });
}

void QuantizedStorage::finish(const QuantizedPart& part, std::span<const void* const> staged) const {
  if (plugin_.table_.finish == nullptr) return;
  const Shape shape = slice_shape(part.shape);
  const int64_t elements = numel(shape), begin = part.elements.offset, end = begin + part.elements.length;
  for (int64_t slice = 0; slice < num_slices_; ++slice) {
    const int64_t first = std::max(begin, slice * elements),
                  last = is_sliced_ ? std::min(end, (slice + 1) * elements) : end;
    std::vector<const void*> of_slice(staged.begin(), staged.end());
    for (size_t i = 0; i < of_slice.size(); ++i)
      if (of_slice[i] != nullptr)
        of_slice[i] = static_cast<const std::byte*>(of_slice[i]) +
                      value_offset(i, slice * elements) * size_bytes(static_cast<Dtype>(described_[i].staged_dtype));
    const FlatRange range = first < last ? FlatRange{first - slice * elements, last - first} : FlatRange{};
    const QuantizedPart some{shape, range, in_slice(part, slice, first < last ? first : begin, false)};
    chassis_quant_part_t raw = part_of(some);
    raw.staged = of_slice.data();
    plugin_.instance_->call("finish", [&](auto* self) { return plugin_.table_.finish(self, &raw); });
  }
}

void QuantizedStorage::decode(const QuantizedPart& part, std::span<float> values) const {
  for_each_slice(part, false, [&](const QuantizedPart& some, int64_t begin) {
    chassis_quant_part_t raw = part_of(some);
    raw.values = values.data() + (begin - part.elements.offset);
    plugin_.instance_->call("decode", [&](auto* self) { return plugin_.table_.decode(self, &raw); });
  });
}

void QuantizedStorage::verify(const QuantizedPart& part) const {
  if (plugin_.table_.verify == nullptr) return;
  for_each_slice(part, false, [&](const QuantizedPart& some, int64_t) {
    const chassis_quant_part_t raw = part_of(some);
    plugin_.instance_->call("verify", [&](auto* self) { return plugin_.table_.verify(self, &raw); });
  });
}

std::string QuantizedStorage::write_state(const QuantizedPart& whole, int64_t slice, Dtype dtype) const {
  CHASSIS_CHECK(plugin_.table_.write_state != nullptr, "a quant plugin with a state writes it");
  const Shape shape = slice_shape(whole.shape);
  const QuantizedPart some{shape, {0, numel(shape)}, in_slice(whole, slice, slice * numel(shape), false)};
  chassis_quant_part_t raw = part_of(some);
  raw.value_dtype = static_cast<uint32_t>(dtype);
  TextSink sink;
  plugin_.instance_->call("write_state",
                          [&](auto* self) { return plugin_.table_.write_state(self, &raw, sink.get()); });
  return sink.take();
}

void QuantizedStorage::read_state(const QuantizedPart& whole, int64_t slice, const std::string& text) const {
  if (plugin_.table_.read_state == nullptr) return;
  const Shape shape = slice_shape(whole.shape);
  const QuantizedPart some{shape, {0, numel(shape)}, in_slice(whole, slice, slice * numel(shape), false)};
  const chassis_quant_part_t raw = part_of(some);
  plugin_.instance_->call("read_state",
                          [&](auto* self) { return plugin_.table_.read_state(self, &raw, str_of(text)); });
}

}  // namespace chassis
