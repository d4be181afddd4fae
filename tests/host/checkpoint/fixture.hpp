// Shared by the tests of this folder: the real format plugins without a registry, temporary directories, small models.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "chassis/plugin.h"
#include "chassis/service/log.h"
#include "host/base/file.hpp"
#include "host/checkpoint/format_plugin.hpp"
#include "host/checkpoint/reader.hpp"
#include "host/checkpoint/save_plan.hpp"
#include "host/checkpoint/writer.hpp"
#include "host/plugin/services.hpp"
#include "host/plugin/status.hpp"
#include "host/state/intersect.hpp"
#include "host/state/layout.hpp"

namespace chassis::testing {

namespace fs = std::filesystem;

class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(const fs::path& parent = fs::temp_directory_path()) {
    std::string path = (parent / "checkpoint_test.XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) throw std::runtime_error("mkdtemp");
    path_ = path;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    fs::permissions(path_, fs::perms::owner_all, ignored);
    fs::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

template <class Body>
std::string error_of(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// Provides only the log service.
class LogOnly : public InstanceServices {
 public:
  LogOnly() {
    log_.struct_size = sizeof log_;
    log_.impl = this;
    log_.enabled = [](const chassis_log_t*, uint32_t) -> uint32_t { return 0; };
    log_.write = [](const chassis_log_t*, uint32_t, chassis_str_t) {};
    log_.count = [](const chassis_log_t* log, chassis_str_t key, chassis_str_t) {
      ++static_cast<LogOnly*>(log->impl)->counts[std::string(view_of(key))];
    };
  }
  const void* get(std::string_view id) override { return id == CHASSIS_LOG_ID ? &log_ : nullptr; }
  int64_t live_tensors() const override { return 0; }

  std::map<std::string, int> counts;

 private:
  chassis_log_t log_{};
};

// An instance of a format plugin, loaded from its library.
class RealFormat {
 public:
  explicit RealFormat(const std::string& id, const std::string& path = CHASSIS_TEST_PLUGIN_DIR "/safetensors.so")
      : host_({CHASSIS_ABI_MAJOR, CHASSIS_ABI_MINOR}, &services_) {
    void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(::dlerror());
    const auto entry = reinterpret_cast<decltype(&chassis_plugin_entry_v1)>(::dlsym(library, CHASSIS_ENTRY_SYMBOL));
    const chassis_factory_t* factory = nullptr;
    throw_if_failed(entry(host_.get(), &factory), "entry");
    throw_if_failed(factory->create(host_.get(), str_of("format"), str_of(id), &instance_), "create");
    const auto* table =
        static_cast<const chassis_format_t*>(instance_->get_interface(instance_, str_of(CHASSIS_FORMAT_ID)));
    format_ = std::make_unique<FormatPlugin>(id, *table, instance_);
  }
  ~RealFormat() { instance_->destroy(instance_); }

  const FormatPlugin& get() const { return *format_; }
  std::map<std::string, int>& counts() { return services_.counts; }

 private:
  LogOnly services_;
  HostTable host_;
  chassis_instance_t* instance_ = nullptr;
  std::unique_ptr<FormatPlugin> format_;
};

inline const FormatPlugin& native() {
  static const RealFormat format("native");
  return format.get();
}
inline const FormatPlugin& huggingface() {
  static const RealFormat format("safetensors");
  return format.get();
}

// Whole tensors whose values depend on name and position; the local tensors of every rank are cut from them.
class Model {
 public:
  Model& add(const Descriptor& descriptor, uint64_t seed = 1) {
    Tensor whole = Tensor::empty(std::vector<int64_t>(descriptor.global_shape.begin(), descriptor.global_shape.end()),
                                 descriptor.dtype);
    auto* bytes = whole.data_as<unsigned char>();
    uint64_t state = seed * 0x9E3779B97F4A7C15ull + std::hash<std::string>()(descriptor.fqn);
    for (uint64_t i = 0; i < whole.num_bytes(); ++i) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      bytes[i] = static_cast<unsigned char>((state >> 56) & 0x3F);  // small exponents: every float is finite
    }
    descriptors.push_back(descriptor);
    wholes[descriptor.fqn] = whole;
    return *this;
  }
  Model& add(const std::string& fqn, Dtype dtype, const Shape& shape, uint64_t seed = 1) {
    return add(Descriptor::plain(fqn, dtype, shape), seed);
  }

  std::vector<SaveTensor> save_tensors() const {
    std::vector<SaveTensor> out;
    for (const Descriptor& d : descriptors) out.push_back(SaveTensor::plain(d));
    return out;
  }
  std::vector<LoadTensor> load_tensors() const {
    std::vector<LoadTensor> out;
    for (const Descriptor& d : descriptors) out.push_back({d, ""});
    return out;
  }
  // The local tensor of a rank, cut from the whole one; padding is 0xEE.
  Tensor local(const Descriptor& descriptor, const MeshShape& mesh, int rank) const {
    const Layout layout(descriptor, mesh);
    const Shape shape = layout.local_shape(rank);
    Tensor out = Tensor::empty(std::vector<int64_t>(shape.begin(), shape.end()), descriptor.dtype);
    if (out.num_bytes() > 0) std::memset(out.data(), 0xEE, out.num_bytes());
    const Tensor& whole = wholes.at(descriptor.fqn);
    const auto size = static_cast<size_t>(size_bytes(descriptor.dtype));
    for (const Piece& piece : layout.pieces(rank)) {
      const Copy copy{piece.box, row_major_view(descriptor.global_shape, piece.box), piece.local};
      for_each_run(copy, [&](int64_t from, int64_t to, int64_t length) {
        std::memcpy(out.data_as<char>() + static_cast<size_t>(to) * size,
                    whole.data_as<char>() + static_cast<size_t>(from) * size, static_cast<size_t>(length) * size);
      });
    }
    return out;
  }
  LocalTensors locals(const MeshShape& mesh = {}) const {
    return [this, mesh](const Descriptor& d, int rank) { return local(d, mesh, rank); };
  }

  std::vector<Descriptor> descriptors;
  std::map<std::string, Tensor> wholes;
};

inline bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.num_bytes() == b.num_bytes() && (a.num_bytes() == 0 || std::memcmp(a.data(), b.data(), a.num_bytes()) == 0);
}

inline Model small_model() {
  Model model;
  model.add("embed.weight", Dtype::f32, {37, 8})
      .add("layer.0.weight", Dtype::bf16, {5, 3})
      .add("layer.0.bias", Dtype::f32, {5});
  model.add("step", Dtype::i64, {}).add("empty", Dtype::f32, {0, 4}).add("mask", Dtype::u8, {3});
  return model;
}

inline SaveRequest request_for(const Model& model, const std::string& parent, const std::string& name, int64_t step = 0,
                               const MeshShape& mesh = {}) {
  SaveRequest request;
  request.parent = parent;
  request.name = name;
  request.step = step;
  request.resumable = true;
  request.tensors = model.locals(mesh);
  return request;
}

// Loads everything for one rank into new tensors that were filled with 0xEE.
inline std::map<std::string, Tensor> load_all(CheckpointReader& reader, const std::vector<LoadTensor>& tensors,
                                              const BucketPair& buckets, const MeshShape& mesh = {}, int rank = 0,
                                              LoadResult* result = nullptr) {
  std::map<std::string, Tensor> out;
  LoadOptions options;
  options.rank = rank;
  const LoadResult found = reader.load(
      tensors, mesh, buckets,
      [&](const Descriptor& d, int r) {
        if (const auto known = out.find(d.fqn); known != out.end()) return known->second;
        const Shape shape = Layout(d, mesh).local_shape(r);
        Tensor t = Tensor::empty(std::vector<int64_t>(shape.begin(), shape.end()), d.dtype);
        if (t.num_bytes() > 0) std::memset(t.data(), 0xEE, t.num_bytes());
        out[d.fqn] = t;
        return t;
      },
      options);
  if (result != nullptr) *result = found;
  return out;
}

}  // namespace chassis::testing
