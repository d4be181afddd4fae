// Encodes on load, and gathers the whole-parameter data that double quantization needs.
#include "host/save/quantized_load.hpp"

#include <map>
#include <string>

#include "host/base/error.hpp"
#include "host/checkpoint/reshard.hpp"
#include "host/save/component_load.hpp"
#include "host/state/composite.hpp"

namespace chassis {
namespace {

Descriptor encoded_component(const Descriptor& parameter, const QuantizedStorage& storage, size_t i) {
  Descriptor out = component_descriptor(parameter, storage.components()[i]);
  if (storage.is_staged(i)) out.dtype = static_cast<Dtype>(storage.raw(i).staged_dtype);
  return out;
}

}  // namespace

bool has_components(const CheckpointReader& reader, const LoadTensor& plain) {
  const DiskTensor* const found = reader.find(plain.all_parts().front().disk_name);
  return found != nullptr && !is_float(found->dtype);
}

void refuse_components(const Session& session, const CheckpointReader& reader,
                       const std::function<std::string(const Parameter& p)>& name_of) {
  if (session.quant() != nullptr) return;
  for (const auto& p : session.parameters().all())
    if (const DiskTensor* const found = reader.find(name_of(*p)); found != nullptr && !is_float(found->dtype))
      throw storage_error("'" + reader.path() + "': " + found->name + " is " + std::string(dtype_name(found->dtype)) +
                          " " + text(found->global_shape) + ", and there is no [quant]")
          .hint(reader.manifest() != nullptr
                    ? "add [quant] with the keys of the run that wrote it, which are in its resolved.toml"
                    : "add [quant] with the plugin that reads it");
}

void QuantizedLoad::add(Parameter& p, LoadTensor plain, std::vector<LoadTensor>& out) {
  if (has_components(reader_, plain)) return add_components(p, plain, out);
  const ParameterTable& parameters = parameters_;
  if (const DiskTensor* const found = reader_.find(plain.all_parts().front().disk_name)) {
    refuse_codes_in(*found, p);
    if (first_values_.empty()) first_values_ = found->name;
    refuse_mixture();
  }
  plain.take_block = p.storage->block_elements();
  plain.take = [&parameters, &p, path = reader_.path()](int64_t begin, std::span<const float> values) {
    try {
      parameters.quantized().encode(p, begin, values);
    } catch (const Error& cause) {
      // Values that cannot be encoded, such as NaN, mean that the file is damaged.
      const ExitCode code = cause.code() == ExitCode::kConfig ? ExitCode::kStorage : cause.code();
      throw Error(code, "'" + path + "': parameter '" + p.name + "': " + cause.message()).hint(cause.hint_text());
    }
  };
  out.push_back(std::move(plain));
}

void QuantizedLoad::start(const std::vector<LoadTensor>& tensors) {
  for (const LoadTensor& tensor : tensors)
    if (tensor.take) QuantizedParameters::start_encoding(*parameters_.find(tensor.descriptor.fqn));
}

// Some trainers keep codes in floating-point tensors.
void QuantizedLoad::refuse_codes_in(const DiskTensor& found, const Parameter& p) const {
  for (const Component& c : p.storage->components())
    if (!c.suffix.empty() && reader_.find(found.name + c.suffix) != nullptr)
      throw storage_error("'" + reader_.path() + "': " + found.name + " is " + std::string(dtype_name(found.dtype)) +
                          text(found.global_shape) + " with " + c.suffix +
                          " beside it: codes in a tensor of floats, and only those in " +
                          std::string(dtype_name(p.storage->components().front().dtype)) + " are read")
          .hint("save the model again with its codes in such a tensor");
}

// Throws a storage error that says so if a file's companion tensor would fit another block size.
void QuantizedLoad::compare_blocks(const DiskTensor& found, const Component& c, int64_t elements) const {
  const int64_t units = numel(found.global_shape) / c.unit_values;
  if (c.unit_elements < 2 || units < 1 || numel(found.global_shape) % c.unit_values != 0) return;
  int64_t block = 1;
  while (block < elements && (elements + block - 1) / block > units) block *= 2;
  if (block == c.unit_elements || (elements + block - 1) / block != units) return;
  if ((elements + c.unit_elements - 1) / c.unit_elements == units) return;
  throw storage_error("'" + reader_.path() + "': " + found.name + " has " + std::to_string(units) + " values for " +
                      std::to_string(elements) + " elements, one for each " + std::to_string(block) +
                      ", and [quant] stores one for each " + std::to_string(c.unit_elements))
      .hint("set the size of blocks in [quant] to " + std::to_string(block));
}

// Checkpoints of runs hold all slices in one tensor, without texts.
void QuantizedLoad::add_components(Parameter& p, const LoadTensor& plain, std::vector<LoadTensor>& out) {
  const std::vector<StoredPart> parts = plain.all_parts();
  const Shape& shape = p.descriptor.global_shape;
  const bool in_one = parts.size() == 1 && parts.front() == StoredPart::whole(parts.front().disk_name, shape);
  const std::vector<std::string> names =
      in_one ? std::vector<std::string>{parts.front().disk_name} : slice_names(p, parts);
  if (names.empty())
    throw storage_error(
        "'" + reader_.path() + "': " + parts.front().disk_name +
        " is quantized, and the model joins or transposes it; only separate weights can be read this way");
  const std::string state = p.storage->state_suffix();
  const bool has_texts = !state.empty() && (reader_.manifest() == nullptr || reader_.find(names.front() + state));
  for (const std::string& name : names)
    if (has_texts && reader_.find(name + state) == nullptr && reader_.find(name) != nullptr)
      throw storage_error("'" + reader_.path() + "': " + name + " is " +
                          std::string(dtype_name(reader_.find(name)->dtype)) + " and has no " + name + state +
                          ", which says how it is quantized");
  if (has_texts && in_one && p.storage->is_sliced())
    throw storage_error("'" + reader_.path() + "': " + names.front() + state +
                        " says how one matrix is quantized, and " + p.name + " has " +
                        std::to_string(p.storage->num_slices()));
  for (size_t i = 0; i < p.components.size(); ++i) {
    const Component& component = p.storage->components()[i];
    const bool in_state = (p.storage->raw(i).flags & CHASSIS_COMPONENT_NOT_IN_FILES) != 0 && has_texts;
    if (!in_state && in_one)
      out.push_back(load_component(reader_, plain.descriptor, component, names.front() + component.suffix));
    if (!in_state && !in_one) {
      Descriptor stored = component_descriptor(plain.descriptor, component);
      std::vector<StoredPart> where = slice_parts(p, i, stored, names);
      out.push_back({std::move(stored), "", std::move(where)});
    }
    for (const std::string& name : names) {
      names_.insert(name + component.suffix);
      if (const DiskTensor* const found = reader_.find(name + component.suffix); i > 0 && found != nullptr)
        compare_blocks(*found, component, numel(in_one ? shape : p.storage->slice_shape(shape)));
    }
  }
  for (const std::string& name : names)
    if (const DiskTensor* const text = has_texts ? reader_.find(name + state) : nullptr) add_state(p, *text, out);
  read_.push_back(&p);
  refuse_mixture();
}

void QuantizedLoad::add_state(const Parameter& p, const DiskTensor& text, std::vector<LoadTensor>& out) {
  constexpr int64_t kMostBytes = 1 << 16;
  const int64_t num_bytes = numel(text.global_shape);
  if (text.dtype != Dtype::u8 || num_bytes == 0 || num_bytes > kMostBytes)
    throw storage_error("'" + reader_.path() + "': " + text.name + " is " + std::string(dtype_name(text.dtype)) +
                        chassis::text(text.global_shape) + ", expected a text of u8 with 1 to " +
                        std::to_string(kMostBytes) + " bytes");
  states_[text.name] =
      Tensor::zeros(std::vector<int64_t>(text.global_shape.begin(), text.global_shape.end()), Dtype::u8);
  states_of_[&p].push_back(text.name);
  out.push_back({Descriptor::plain(text.name, Dtype::u8, text.global_shape), text.name});
}

void QuantizedLoad::refuse_mixture() const {
  if (first_values_.empty() || read_.empty()) return;
  throw storage_error("'" + reader_.path() + "': " + first_values_ + " is " +
                      std::string(dtype_name(reader_.find(first_values_)->dtype)) + ", while " + read_.front()->name +
                      " is quantized; what a quantized model stores as values stays as it is")
      .hint("name its module in the list of modules that are not quantized, in the model's config.json");
}

std::vector<Descriptor> stored_tensors(const ParameterTable& parameters, const Descriptor& parameter) {
  const Parameter* p = parameters.find(parameter.fqn);
  if (p == nullptr || !p->is_quantized()) return {parameter};
  std::vector<Descriptor> out;
  for (const Component& component : p->storage->components()) out.push_back(component_descriptor(parameter, component));
  return out;
}

std::vector<Descriptor> encoded_tensors(const ParameterTable& parameters, const LoadTensor& loaded) {
  if (!loaded.take) return {loaded.descriptor};
  const Parameter& p = *parameters.find(loaded.descriptor.fqn);
  std::vector<Descriptor> out;
  for (size_t i = 0; i < p.components.size(); ++i)
    if (p.storage->components()[i].unit_elements != 0)
      out.push_back(encoded_component(loaded.descriptor, *p.storage, i));
  return out;
}

LocalTensors QuantizedLoad::local(LocalTensors plain) const {
  std::map<std::string, std::pair<const Parameter*, size_t>> by_name;
  for (const auto& p : parameters_.all())
    for (size_t i = 0; i < p->components.size(); ++i)
      by_name[p->name + p->storage->components()[i].suffix] = {p.get(), i};
  return [this, plain = std::move(plain), by_name = std::move(by_name)](const Descriptor& tensor, int rank) -> Tensor {
    if (const auto state = states_.find(tensor.fqn); state != states_.end()) return state->second;
    const auto found = by_name.find(tensor.fqn);
    if (found == by_name.end()) return plain(tensor, rank);
    const StoredComponent& component = found->second.first->components[found->second.second];
    return as_described(component.staged ? component.staged : component.shard, tensor, parameters_.mesh(), rank);
  };
}

void QuantizedLoad::finish(const std::vector<LoadTensor>& tensors, const BucketPair& buckets) {
  for (const LoadTensor& tensor : tensors) {
    if (!tensor.take) continue;
    const Descriptor& logical = tensor.descriptor;
    parameters_.quantized().finish(*parameters_.find(logical.fqn), [&](const Parameter& p, size_t i) {
      const Tensor& own = p.components[i].staged;
      const Descriptor divided = encoded_component(logical, *p.storage, i);
      if (session_ == nullptr || session_->mesh().world_size() == 1) return own;
      const Descriptor whole = Descriptor::plain(divided.fqn, divided.dtype, divided.global_shape);
      const Tensor all =
          Tensor::zeros(std::vector<int64_t>(whole.global_shape.begin(), whole.global_shape.end()), divided.dtype);
      const ReshardTensor move[] = {{Layout(divided, session_->mesh()), Layout(whole, session_->mesh())}};
      ReshardRequest request;
      request.tensors = move;
      request.options = {static_cast<int64_t>(buckets.bucket_bytes()), true};
      request.from = [&](const Descriptor&, int) { return own; };
      request.to = [&](const Descriptor&, int) { return all; };
      request.device = session_->device();  // of the buffers; what is staged is on the CPU
      reshard(request, session_->ranks().communicator);
      return all;
    });
  }
  for (Parameter* p : read_) {
    std::vector<std::string> states;
    for (const std::string& name : states_of_[p]) {
      const Tensor& text = states_.at(name);
      states.emplace_back(text.data_as<char>(), static_cast<size_t>(text.num_elements()));
    }
    try {
      parameters_.quantized().verify(*p, states);
    } catch (const Error& cause) {
      throw storage_error("'" + reader_.path() + "': parameter '" + p->name + "': " + cause.message());
    }
  }
}

}  // namespace chassis
