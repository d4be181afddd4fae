// Shared by the members of the library: plain C++ types for a layout and for a scan. plugin.cpp converts them to the
// C interface.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "chassis/format_source.hpp"
#include "chassis/kind/format.h"
#include "container.hpp"

namespace safetensors {

struct NewFile {
  std::string path;
  std::string header;
  uint64_t num_bytes = 0;
  uint32_t rank = 0;
};

struct Place {
  uint32_t file = 0;
  uint64_t offset = 0;
};

struct SaveLayout {
  std::vector<NewFile> files;
  std::vector<Place> places;  // one for every tensor of the request
  std::vector<std::pair<std::string, std::string>> text_files;
};

using chassis::FoundTensor;
using chassis::SourceFile;
using Source = chassis::FileSource;
using ScanSink = chassis::FoundSink;
using NotFound = chassis::NotThisFormat;

// A tensor in the header of a file.
struct FileTensor {
  std::string_view name;
  Type type;
  std::span<const int64_t> shape;
  uint64_t num_bytes;
  uint32_t index;  // in the request
};
FileTensor file_tensor(const chassis_save_request_t& request, uint32_t index);
// Returns all tensors in order of declaration, for a format whose files hold whole tensors.
std::vector<FileTensor> whole_tensors(const chassis_save_request_t& request);

// Adds a file with these tensors, one after another: sorts them as the reference writer does, writes the header, and
// assigns the places.
void add_file(SaveLayout& layout, std::string path, std::vector<FileTensor> tensors, const Metadata& metadata,
              uint32_t rank);

Metadata request_metadata(const chassis_save_request_t& request);
// Checks what all members require of a tensor.
void check_request(const chassis_disk_tensor_t& tensor);
Header read_header(const Source& source, uint32_t file);
uint64_t data_start(const Source& source, uint32_t file);
// Throws a Defect that names the tensor if the host does not support its dtype.
uint32_t host_dtype(const Header& header, size_t i);
// Reports the tensors of a file, which are whole. `name` converts their names; by default they stay unchanged.
void emit(const Source& source, uint32_t file, const Header& header, const ScanSink& sink,
          const std::function<std::string_view(std::string_view in_file)>& name = {});
// Reports the tensors of value_head.safetensors, if there is one: LLaMA-Factory saves a head of scores in this file of
// its own, next to those of a model or an adapter.
inline constexpr char kValueHead[] = "value_head.safetensors";
void emit_value_head(const Source& source, const ScanSink& sink);

inline std::string_view view_of(chassis_str_t text) {
  return text.len == 0 ? std::string_view() : std::string_view(text.ptr, text.len);
}

}  // namespace safetensors
