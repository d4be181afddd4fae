// Files in memory and save requests, for tests of the format without a host.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "plugins/format/safetensors/layout.hpp"
#include "tests/support/memory_source.hpp"

namespace safetensors {

using Files = chassis::testing::Files;

using chassis::testing::source_of;

// The length of a header, the header, and `data_bytes` zeros.
inline std::string file_of(std::string_view json, uint64_t data_bytes) {
  std::string out(8, '\0');
  for (uint64_t i = 0, n = json.size(); i < 8; ++i, n >>= 8) out[i] = static_cast<char>(n & 0xFF);
  return out.append(json).append(data_bytes, '\0');
}

// A head of scores as LLaMA-Factory saves it.
inline std::string value_head_file() {
  return file_of(R"({"v_head.summary.bias":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                 R"("v_head.summary.weight":{"dtype":"F32","shape":[1,4],"data_offsets":[4,20]}})",
                 20);
}

struct Request {
  struct Tensor {
    std::string name;
    std::vector<int64_t> global_shape, offset, shape;
  };
  std::deque<Tensor> tensors;
  std::vector<chassis_disk_tensor_t> raw;
  mutable std::vector<const chassis_disk_tensor_t*> pointers;  // from the latest get()
  std::vector<chassis_disk_pair_t> pairs;

  Request& box(std::string name, uint32_t dtype, std::vector<int64_t> global_shape, std::vector<int64_t> offset,
               std::vector<int64_t> shape, uint32_t rank = 0) {
    Tensor& t =
        tensors.emplace_back(Tensor{std::move(name), std::move(global_shape), std::move(offset), std::move(shape)});
    uint64_t num_bytes = type_bits(type_from_abi(dtype)) / 8;
    for (int64_t size : t.shape) num_bytes *= static_cast<uint64_t>(size);
    raw.push_back({sizeof(chassis_disk_tensor_t),
                   dtype,
                   {t.name.data(), t.name.size()},
                   t.global_shape.data(),
                   t.offset.data(),
                   t.shape.data(),
                   static_cast<uint32_t>(t.shape.size()),
                   rank,
                   num_bytes});
    return *this;
  }
  Request& whole(std::string name, uint32_t dtype, std::vector<int64_t> shape, uint32_t rank = 0) {
    return box(std::move(name), dtype, shape, std::vector<int64_t>(shape.size(), 0), shape, rank);
  }
  chassis_save_request_t get(uint64_t max_file_bytes = 0) const {
    pointers.clear();
    for (const chassis_disk_tensor_t& tensor : raw) pointers.push_back(&tensor);
    return {sizeof(chassis_save_request_t),
            static_cast<uint32_t>(raw.size()),
            pointers.data(),
            pairs.data(),
            static_cast<uint32_t>(pairs.size()),
            1,
            max_file_bytes};
  }
};

// The files of a layout; box i is filled with the byte i + 1.
inline Files write(const SaveLayout& layout, const Request& request) {
  Files files;
  for (const NewFile& f : layout.files) {
    std::string bytes = f.header;
    bytes.resize(f.num_bytes, '\0');
    files[f.path] = bytes;
  }
  for (size_t i = 0; i < layout.places.size(); ++i) {
    std::string& bytes = files[layout.files[layout.places[i].file].path];
    bytes.replace(layout.places[i].offset, request.raw[i].num_bytes,
                  std::string(request.raw[i].num_bytes, static_cast<char>(i + 1)));
  }
  for (const auto& [path, text] : layout.text_files) files[path] = text;
  return files;
}

struct Scanned {
  struct Box {
    std::string name;
    uint32_t dtype;
    std::vector<int64_t> global_shape, offset, shape;
    uint32_t rank, file;
    uint64_t at, num_bytes;
  };
  std::vector<Box> boxes;
  std::map<std::string, std::string> metadata;
  std::vector<std::string> warnings;

  const Box& find(std::string_view name) const {
    for (const Box& b : boxes)
      if (b.name == name) return b;
    throw std::out_of_range(std::string(name));
  }
};

template <class Scan>
Scanned scan(Scan&& function, const Files& files) {
  Scanned out;
  ScanSink sink;
  sink.tensor = [&](const FoundTensor& t) {
    out.boxes.push_back({std::string(t.name), t.dtype, t.global_shape, t.box_offset, t.box_shape, t.rank, t.file,
                         t.offset, t.num_bytes});
  };
  sink.metadata = [&](std::string_view key, std::string_view value) { out.metadata.emplace(key, value); };
  sink.warning = [&](std::string_view, std::string_view text) { out.warnings.emplace_back(text); };
  function(source_of(files), sink);
  return out;
}

template <class Body>
std::string defect_of(Body&& body) {
  try {
    body();
  } catch (const Defect& defect) {
    return defect.what();
  }
  return "nothing was wrong";
}

}  // namespace safetensors
