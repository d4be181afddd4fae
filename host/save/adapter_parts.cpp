// Records the parts that an adapter declares, and checks each.
#include "host/save/adapter_parts.hpp"

#include <algorithm>

#include "host/base/error.hpp"
#include "host/compile/disk_layout.hpp"
#include "host/plugin/sized.hpp"
#include "host/plugin/status.hpp"

namespace chassis {
namespace {

class PartRecorder {
 public:
  PartRecorder(const ParameterTable& parameters, std::span<const DiskTensor> in_files, const std::string& config)
      : parameters_(parameters) {
    for (const DiskTensor& tensor : in_files)
      tensors_.push_back({sizeof(chassis_adapter_tensor_t),
                          static_cast<uint32_t>(tensor.global_shape.ndim()),
                          {tensor.name.data(), tensor.name.size()},
                          tensor.global_shape.begin(),
                          nullptr});
    for (const auto& tensor : tensors_) pointers_.push_back(&tensor);
    files_.struct_size = sizeof files_;
    files_.num_tensors = static_cast<uint32_t>(pointers_.size());
    files_.impl = this;
    files_.tensors = pointers_.data();
    files_.config_json = {config.data(), config.size()};
    files_.part = [](const chassis_adapter_files_t* files, const chassis_adapter_part_t* part) {
      return guarded([&] {
        static_cast<PartRecorder*>(files->impl)->add(read_struct(part, "the description of a part of a parameter"));
      });
    };
  }
  PartRecorder(const PartRecorder&) = delete;
  PartRecorder& operator=(const PartRecorder&) = delete;

  const chassis_adapter_files_t& files() const { return files_; }

  std::map<std::string, std::vector<StoredPart>> finish() {
    for (const auto& [name, parts] : parts_) expect_cover(name, parameters_.find(name)->descriptor.global_shape, parts);
    return std::move(parts_);
  }

 private:
  void add(const chassis_adapter_part_t& raw) {
    const std::string name(view_of(raw.parameter));
    const Parameter* const p = parameters_.find(name);
    if (p == nullptr || !p->added) throw plugin_error("files: the adapter has added no parameter '" + name + "'");
    const Shape& shape = p->descriptor.global_shape;
    StoredPart part;
    part.disk_name = view_of(raw.tensor);
    const std::string where = "files: the part of '" + name + "' " + text(shape) + " in '" + part.disk_name + "' ";
    if (raw.num_dims != static_cast<uint32_t>(shape.ndim()) || raw.num_tensor_dims > Shape::kMaxDims)
      throw plugin_error(where + "has " + std::to_string(raw.num_dims) + " dims, and " +
                         std::to_string(raw.num_tensor_dims) + " in the tensor");
    part.box = {Shape(std::span(raw.begin, raw.num_dims)), Shape(std::span(raw.end, raw.num_dims))};
    part.disk_shape = Shape(std::span(raw.tensor_sizes, raw.num_tensor_dims));
    part.disk_begin = Shape(std::span(raw.tensor_begin, raw.num_tensor_dims));
    part.dims.assign(raw.dims, raw.dims + raw.num_tensor_dims);
    for (int k = 0; k < shape.ndim(); ++k) {
      const int64_t size = part.box.end[k] - part.box.begin[k];
      if (part.box.begin[k] < 0 || size < 1 || part.box.end[k] > shape[k])
        throw plugin_error(where + "is " + text(part.box));
      const auto uses = std::count(part.dims.begin(), part.dims.end(), k);
      if (uses > 1 || (uses == 0 && size != 1))
        throw plugin_error(where + "has size " + std::to_string(size) + " along dim " + std::to_string(k) +
                           ", which the tensor has " + std::to_string(uses) + " times");
    }
    for (int k = 0; k < part.disk_shape.ndim(); ++k) {
      const int dim = part.dims[static_cast<size_t>(k)];
      if (dim < 0 || dim >= shape.ndim()) throw plugin_error(where + "has no dim " + std::to_string(dim));
      const int64_t end = part.disk_begin[k] + part.box.end[dim] - part.box.begin[dim];
      if (part.disk_begin[k] < 0 || end > part.disk_shape[k])
        throw plugin_error(where + "ends at " + std::to_string(end) + " of dim " + std::to_string(k) + " of " +
                           text(part.disk_shape));
    }
    parts_[name].push_back(std::move(part));
  }

  const ParameterTable& parameters_;
  std::vector<chassis_adapter_tensor_t> tensors_;
  std::vector<const chassis_adapter_tensor_t*> pointers_;
  chassis_adapter_files_t files_{};
  std::map<std::string, std::vector<StoredPart>> parts_;
};

}  // namespace

std::map<std::string, std::vector<StoredPart>> adapter_parts(const AdapterPlugin& adapter,
                                                             const ParameterTable& parameters,
                                                             const std::string& model_config,
                                                             std::span<const DiskTensor> in_files) {
  if (!adapter.has_files()) return {};
  PartRecorder recorder(parameters, in_files, model_config);
  adapter.files(recorder.files());
  return recorder.finish();
}

}  // namespace chassis
