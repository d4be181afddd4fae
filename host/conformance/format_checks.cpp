// Saves and loads sample tensors with a format and compares them.
#include "host/conformance/format_checks.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>

#include "host/base/error.hpp"
#include "host/base/mesh_axes.hpp"
#include "host/checkpoint/inspect.hpp"
#include "host/checkpoint/reader.hpp"
#include "host/checkpoint/save_plan.hpp"
#include "host/checkpoint/writer.hpp"
#include "host/conformance/temporary_folder.hpp"
#include "host/state/layout.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

// Bytes that differ between tensors and between positions.
Tensor filled(const std::string& name, Dtype dtype, const Shape& shape) {
  Tensor tensor = Tensor::empty(std::vector<int64_t>(shape.begin(), shape.end()), dtype);
  uint64_t state = std::hash<std::string>()(name);
  for (uint64_t i = 0; i < tensor.num_bytes(); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    tensor.data_as<uint8_t>()[i] = static_cast<uint8_t>(dtype == Dtype::bool8 ? state >> 63 : state >> 56);
  }
  return tensor;
}

struct SavedSample {
  std::vector<Descriptor> tensors;
  MeshShape mesh;

  // A rank's part: the whole tensor, or rows of it.
  Tensor local(const Descriptor& tensor, int rank) const {
    const Tensor whole = filled(tensor.fqn, tensor.dtype, tensor.global_shape);
    if (tensor.placements.empty()) return whole;
    const Layout layout(tensor, mesh);
    int64_t begin = 0;
    for (int before = 0; before < rank; ++before) begin += layout.local_shape(before)[0];
    return whole.narrow(0, begin, layout.local_shape(rank)[0]).contiguous();
  }
};

SavedSample whole_tensors(Dtype dtype) {
  const std::string name(dtype_name(dtype));
  SavedSample sample;
  for (const Shape& shape : {Shape{}, Shape{0}, Shape{3, 0, 2}, Shape{7}, Shape{2, 3, 5}, Shape{1, 1, 1, 1}})
    sample.tensors.push_back(Descriptor::plain("model." + name + text(shape), dtype, shape));
  return sample;
}

SavedSample odd_name() { return {{Descriptor::plain("a \"quoted\" \\ name, größer als ASCII", Dtype::f32, {3})}, {}}; }

SavedSample two_ranks() {
  SavedSample sample;
  const std::string axis(kShardAxis);
  sample.mesh = MeshShape({{axis, 2}});
  for (const Shape& shape : {Shape{7, 3}, Shape{2}, Shape{1, 4}}) {
    Descriptor tensor = Descriptor::plain("sharded" + text(shape), Dtype::f32, shape);
    tensor.placements = {Placement::dim_chunk({axis}, 0)};
    sample.tensors.push_back(std::move(tensor));
  }
  return sample;
}

class FormatExamination {
 public:
  explicit FormatExamination(const FormatPlugin& format) : format_(format) {}

  std::vector<std::string> run() {
    if (format_.is_read_only()) {
      examine_only_read();
      return failures_;
    }
    for (const Dtype dtype : kAllDtypes)
      examine(std::string(dtype_name(dtype)), whole_tensors(dtype), dtype == Dtype::f32);
    examine("an odd name", odd_name(), false);
    examine("parts", two_ranks(), false);
    return failures_;
  }

 private:
  template <class... Args>
  void fail(fmt::format_string<Args...> format, Args&&... args) {
    failures_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  void examine_only_read() {
    if (format_.is_write_only()) fail("it can neither write nor read");
    if (plan_for("a save", whole_tensors(Dtype::f32), false)) fail("it can only read, but returns a layout");
    try {
      SourceDirectory empty(directory_.path());
      format_.scan(empty, empty.table());
      fail("an empty directory is read without an error");
    } catch (const OtherFormat&) {
    } catch (const Error& error) {
      fail("an empty directory: {}", error.message());
    }
  }

  void examine(const std::string& what, const SavedSample& sample, bool must_be_accepted) {
    const std::optional<SavePlan> plan = plan_for(what, sample, must_be_accepted);
    if (!plan) return;
    try {
      const std::string path = save(*plan, sample, what);
      for (const std::string& defect : verify_checkpoint(path, buckets_).defects) fail("{}: {}", what, defect);
      if (format_.is_write_only()) return;
      load(what + " with its manifest", sample, path);
      fs::remove(fs::path(path) / kManifestName);
      load(what + " without a manifest", sample, path);
      if (must_be_accepted) expect_refusal_when_cut(what, sample, path);
    } catch (const Error& error) {
      fail("{}: {}", what, error.message());
    }
  }

  // None if the format refuses the sample.
  std::optional<SavePlan> plan_for(const std::string& what, const SavedSample& sample, bool must_be_accepted) {
    std::vector<SaveTensor> tensors;
    for (const Descriptor& tensor : sample.tensors) tensors.push_back(SaveTensor::plain(tensor));
    try {
      SavePlan plan = plan_save(tensors, sample.mesh, format_);
      if (!same(plan.layout, plan_save(tensors, sample.mesh, format_).layout))
        fail("{}: two layouts of the same tensors differ", what);
      compare_with_ranks(what, tensors, plan);
      return plan;
    } catch (const Error& error) {
      if (must_be_accepted) fail("{} is refused: {}", what, error.message());
      if (error.message().empty()) fail("{} is refused without a message", what);
      return std::nullopt;
    }
  }

  static bool same(const FormatLayout& a, const FormatLayout& b) {
    return a.files == b.files && a.places == b.places && a.text_files == b.text_files;
  }

  // A rank that lays out its own boxes must find the files that the layout of all has for it.
  void compare_with_ranks(const std::string& what, const std::vector<SaveTensor>& tensors, const SavePlan& all) {
    std::vector<FormatLayout::NewFile> files;
    for (int rank = 0; rank < all.mesh.world_size(); ++rank) {
      const SavePlan own = plan_save(tensors, all.mesh, format_, {.rank = rank});
      if (!own.own_files) return;
      files.insert(files.end(), own.layout.files.begin(), own.layout.files.end());
    }
    if (files != all.layout.files) fail("{}: the layouts of ranks alone differ from that of all", what);
  }

  std::string save(const SavePlan& plan, const SavedSample& sample, const std::string& what) {
    SaveRequest request;
    request.parent = directory_.path();
    request.name = "sample-" + std::to_string(num_saved_++);
    request.tensors = [&](const Descriptor& tensor, int rank) { return sample.local(tensor, rank); };
    const CheckpointWriter writer(format_, buckets_);
    const std::string path = writer.save(plan, request).path;
    if (!fs::exists(path)) fail("{}: nothing was saved", what);
    return path;
  }

  void load(const std::string& what, const SavedSample& sample, const std::string& path) {
    CheckpointReader reader(path, format_);
    if (reader.tensors().size() != sample.tensors.size())
      fail("{}: {} tensors are loaded, {} were saved", what, reader.tensors().size(), sample.tensors.size());
    std::map<std::string, Tensor> loaded;
    std::vector<LoadTensor> wanted;
    for (const Descriptor& tensor : sample.tensors) {
      const Shape& shape = tensor.global_shape;
      const Tensor target = Tensor::empty(std::vector<int64_t>(shape.begin(), shape.end()), tensor.dtype);
      if (target.num_bytes() > 0) std::memset(target.data(), 0xEE, target.num_bytes());
      loaded[tensor.fqn] = target;
      wanted.push_back({Descriptor::plain(tensor.fqn, tensor.dtype, shape), ""});
      const DiskTensor* found = reader.find(tensor.fqn);
      if (found != nullptr && found->dtype != tensor.dtype)
        fail("{}: '{}' is loaded as {}", what, tensor.fqn, dtype_name(found->dtype));
    }
    reader.load(wanted, MeshShape(), buckets_, [&](const Descriptor& tensor, int) { return loaded.at(tensor.fqn); });
    for (const Descriptor& tensor : sample.tensors) {
      const Tensor expected = filled(tensor.fqn, tensor.dtype, tensor.global_shape);
      const auto* a = loaded.at(tensor.fqn).data_as<uint8_t>();
      const auto* b = expected.data_as<uint8_t>();
      const uint64_t at = static_cast<uint64_t>(std::mismatch(a, a + expected.num_bytes(), b).first - a);
      if (at < expected.num_bytes())
        fail("{}: byte {} of '{}' is loaded as {}, saved as {}", what, at, tensor.fqn, a[at], b[at]);
    }
  }

  // Truncates the largest file to half its size, then to 0 bytes.
  void expect_refusal_when_cut(const std::string& what, const SavedSample& sample, const std::string& path) {
    fs::path largest;
    for (const auto& entry : fs::recursive_directory_iterator(path))
      if (entry.is_regular_file() && (largest.empty() || entry.file_size() > fs::file_size(largest)))
        largest = entry.path();
    for (const uint64_t num_bytes : {fs::file_size(largest) / 2, uint64_t{0}}) {
      fs::resize_file(largest, num_bytes);
      const size_t before = failures_.size();
      try {
        load(what, sample, path);
      } catch (const Error&) {
        failures_.resize(before);
        continue;
      }
      failures_.resize(before);
      fail("{}: '{}' was truncated to {} bytes and is read without an error", what, largest.filename().string(),
           num_bytes);
    }
  }

  const FormatPlugin& format_;
  TemporaryFolder directory_{"chassis-format"};
  BucketPair buckets_{BucketPair::kMinBytes};
  int num_saved_ = 0;
  std::vector<std::string> failures_;
};

}  // namespace

std::vector<std::string> format_failures(const FormatPlugin& format) { return FormatExamination(format).run(); }

}  // namespace chassis
