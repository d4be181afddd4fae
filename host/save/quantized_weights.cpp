// Loads, changes and quantizes one parameter at a time.
#include "host/save/quantized_weights.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>
#include <utility>

#include "host/base/error.hpp"
#include "host/save/component_load.hpp"
#include "host/save/load.hpp"
#include "host/save/quantized_load.hpp"
#include "host/state/composite.hpp"

namespace chassis {
namespace {

constexpr int64_t kChangedElements = 1 << 20;  // elements changed at a time
constexpr uint64_t kReadBytes = 8 << 20;       // size of each bucket
constexpr size_t kMostHeld = 3;                // gate, up and down

}  // namespace

QuantizedWeights::QuantizedWeights(Session& session, CheckpointReader& reader, const ModelDirectory& directory)
    : reader_(reader),
      directory_(directory),
      buckets_(kReadBytes),
      parameters_(session.program(), session.compiled().layout()) {}

QuantizedWeights::~QuantizedWeights() = default;

Parameter& QuantizedWeights::own(const Parameter& p) const { return *parameters_.find(p.name); }

LoadTensor QuantizedWeights::plain(const Parameter& p) const { return directory_.load_tensor(own(p).descriptor); }

bool QuantizedWeights::is_stored(const Parameter& p) const {
  return p.is_quantized() && directory_.has(p) && has_components(reader_, plain(p));
}

void QuantizedWeights::add_wanted(const Parameter& p, std::vector<LoadTensor>& wanted) {
  if (!is_stored(p)) {
    LoadTensor values = plain(p);
    if (const DiskTensor* const found = reader_.find(values.all_parts().front().disk_name))
      QuantizedLoad(parameters_, nullptr, reader_).refuse_codes_in(*found, own(p));
    values.descriptor.components.clear();
    wanted.push_back(std::move(values));
    return;
  }
  const size_t first = wanted.size();
  QuantizedLoad(parameters_, nullptr, reader_).add(own(p), plain(p), wanted);
  for (size_t i = first; i < wanted.size(); ++i) names_.insert(wanted[i].disk_name);
}

// Makes room for it among those that are held.
void QuantizedWeights::allocate(Parameter& p) {
  if (held_.size() == kMostHeld) {
    QuantizedParameters::release(*held_.front());
    held_.erase(held_.begin());
  }
  parameters_.quantized().allocate(p);
}

Parameter& QuantizedWeights::hold(Parameter& p) {
  if (const auto found = std::ranges::find(held_, &p); found != held_.end()) {
    std::rotate(found, found + 1, held_.end());
    return p;
  }
  allocate(p);
  read(p);
  if (change_) change(p);
  held_.push_back(&p);
  return p;
}

void QuantizedWeights::read(Parameter& p) {
  LoadOptions options;
  options.skip = [](const std::string&) { return true; };  // the others were checked together
  options.hashed = [](const Descriptor&) { return true; };
  const LocalTensors others = [](const Descriptor& tensor, int) -> Tensor {
    throw Error(ExitCode::kInternal, "no tensor for '" + tensor.fqn + "'");
  };
  const LoadState state{parameters_, parameters_.mesh(), others, buckets_};
  const Loaded loaded = load_into(state, {.reader = reader_, .tensors = {plain(p)}, .options = std::move(options)});
  if (read_.insert(p.name).second) std::ranges::copy(loaded.result.hashed, std::back_inserter(hashed_));
}

// Works in place: the old components of a part are decoded before the part is encoded.
void QuantizedWeights::change(Parameter& p) {
  const Shape& shape = p.descriptor.global_shape;
  const int64_t columns = numel(shape) / std::max<int64_t>(1, shape[0]);
  const int64_t unit = p.storage->block_elements() / std::gcd(p.storage->block_elements(), columns);
  const int64_t step = std::max(unit, kChangedElements / std::max<int64_t>(1, columns) / unit * unit);
  std::vector<float> values;
  QuantizedParameters::start_encoding(p);
  for (int64_t row = 0; row < shape[0]; row += step) {
    Box rows = Box::whole(shape);
    rows.begin[0] = row;
    rows.end[0] = std::min(shape[0], row + step);
    values.resize(static_cast<size_t>(numel(rows)));
    parameters_.quantized().decode(p, row * columns, values);
    change_(p, rows, values);
    parameters_.quantized().encode(p, row * columns, values);
  }
  parameters_.quantized().finish(p, [](const Parameter& q, size_t i) { return q.components[i].staged; });
}

void QuantizedWeights::decode(const Parameter& p, int64_t begin, std::span<float> values) {
  parameters_.quantized().decode(hold(own(p)), begin, values);
}

std::vector<SaveTensor> QuantizedWeights::saved_tensors(const Parameter& given, const std::vector<std::string>& names,
                                                        Dtype dtype) {
  Parameter& p = own(given);
  const QuantizedStorage& storage = *p.storage;
  const std::vector<Component>& components = storage.components();
  std::vector<SaveTensor> out;
  const bool has_text = !storage.state_suffix().empty();
  for (size_t i = 0; i < components.size(); ++i) {
    const bool in_text = has_text && (storage.raw(i).flags & CHASSIS_COMPONENT_NOT_IN_FILES) != 0;
    if (in_text) continue;
    Descriptor stored = component_descriptor(p.descriptor, components[i]);
    saved_[stored.fqn] = {&p, i};
    std::vector<StoredPart> parts = slice_parts(p, i, stored, names);
    const Dtype stored_dtype = stored.dtype;
    out.push_back({std::move(stored), names.front() + components[i].suffix, stored_dtype, std::move(parts)});
  }
  bool depends_on_values = is_stored(p);
  for (size_t i = 0; i < components.size(); ++i) depends_on_values |= storage.is_staged(i);
  if (depends_on_values) {
    hold(p);
  } else {
    allocate(p);
    parameters_.quantized().finish(p, {});
  }
  for (size_t i = 0; i < components.size(); ++i)
    if (components[i].unit_elements == 0) kept_[p.name + components[i].suffix] = p.components[i].shard;
  for (size_t slice = 0; has_text && slice < names.size(); ++slice) {
    const std::string text = QuantizedParameters::state_text(p, static_cast<int64_t>(slice), dtype);
    const Tensor bytes = Tensor::empty(std::vector<int64_t>{std::ssize(text)}, Dtype::u8);
    std::memcpy(bytes.data(), text.data(), text.size());
    const std::string name = names[slice] + storage.state_suffix();
    kept_[name] = bytes;
    out.push_back(SaveTensor::plain(Descriptor::plain(name, Dtype::u8, Shape{std::ssize(text)})));
  }
  if (!depends_on_values) QuantizedParameters::release(p);
  return out;
}

Tensor QuantizedWeights::saved(const Descriptor& tensor) {
  if (const auto kept = kept_.find(tensor.fqn); kept != kept_.end()) return kept->second;
  const Saved& found = saved_.at(tensor.fqn);
  return hold(*found.parameter).components[found.component].shard;
}

PartSource QuantizedWeights::source() {
  return from_tensors([this](const Descriptor& tensor, int) { return saved(tensor); });
}

}  // namespace chassis
