// Builds headers for files to be written, and reads those of existing files.
#include "layout.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_set>

namespace safetensors {

FileTensor file_tensor(const chassis_save_request_t& request, uint32_t index) {
  const chassis_disk_tensor_t& t = *request.tensors[index];
  return {view_of(t.name), type_from_abi(t.dtype), {t.box_shape, t.num_dims}, t.num_bytes, index};
}

void add_file(SaveLayout& layout, std::string path, std::vector<FileTensor> tensors, const Metadata& metadata,
              uint32_t rank) {
  std::sort(tensors.begin(), tensors.end(), [](const FileTensor& a, const FileTensor& b) {
    return a.type != b.type ? a.type > b.type : a.name < b.name;
  });
  std::vector<NewTensor> lines;
  lines.reserve(tensors.size());
  for (const FileTensor& t : tensors) lines.push_back({t.name, t.type, t.shape, t.num_bytes});

  NewFile file{std::move(path), header_bytes(lines, metadata), 0, rank};
  const auto index = static_cast<uint32_t>(layout.files.size());
  uint64_t at = file.header.size();
  for (const FileTensor& t : tensors) {
    layout.places[t.index] = {index, at};
    at += t.num_bytes;
  }
  file.num_bytes = at;
  layout.files.push_back(std::move(file));
}

Metadata request_metadata(const chassis_save_request_t& request) {
  // transformers requires "format".
  Metadata pairs = {{"format", "pt"}};
  for (uint32_t i = 0; i < request.num_metadata; ++i) {
    std::string key(view_of(request.metadata[i].key));
    if (key != "format") pairs.emplace_back(std::move(key), view_of(request.metadata[i].value));
  }
  std::sort(pairs.begin(), pairs.end());
  for (size_t i = 1; i < pairs.size(); ++i) {
    if (pairs[i - 1].first == pairs[i].first) throw Defect("metadata has the key '" + pairs[i].first + "' twice");
  }
  return pairs;
}

void check_request(const chassis_disk_tensor_t& tensor) {
  const std::string_view name = view_of(tensor.name);
  check_tensor_name(name);
  uint64_t num_bits = type_bits(type_from_abi(tensor.dtype));
  for (uint32_t dim = 0; dim < tensor.num_dims; ++dim) {
    const int64_t size = tensor.box_shape[dim];
    if (size < 0 || __builtin_mul_overflow(num_bits, static_cast<uint64_t>(size), &num_bits)) {
      throw Defect("tensor '" + std::string(name) + "': its size overflows");
    }
  }
  if (num_bits / 8 != tensor.num_bytes) {
    throw Defect("tensor '" + std::string(name) + "': its box takes " + std::to_string(num_bits / 8) + " bytes, " +
                 std::to_string(tensor.num_bytes) + " are declared");
  }
}

std::vector<FileTensor> whole_tensors(const chassis_save_request_t& request) {
  std::vector<FileTensor> tensors;
  std::unordered_set<std::string_view> names;
  for (uint32_t i = 0; i < request.num_tensors; ++i) {
    const chassis_disk_tensor_t& t = *request.tensors[i];
    check_request(t);
    tensors.push_back(file_tensor(request, i));
    const std::string name(tensors.back().name);
    if (!std::equal(t.box_shape, t.box_shape + t.num_dims, t.global_shape))
      throw Defect("a part of tensor '" + name + "', but files of this format hold whole tensors");
    if (!names.insert(tensors.back().name).second) throw Defect("tensor '" + name + "' appears twice");
  }
  return tensors;
}

namespace {

uint64_t header_length(const Source& source, uint32_t file) {
  const uint64_t num_bytes = source.files[file].num_bytes;
  if (num_bytes < 8) {
    throw Defect("the file has " + std::to_string(num_bytes) + " bytes, fewer than the 8 of the header's length");
  }
  unsigned char raw[8];
  source.read(file, 0, 8, raw);
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | raw[i];
  constexpr std::string_view kPointer = "version https://git-lfs";
  if (std::memcmp(raw, kPointer.data(), sizeof raw) == 0)
    throw Defect("it is a pointer of Git LFS, not the file that it stands for: get that with `git lfs pull`");
  if (length > num_bytes - 8) {
    throw Defect("the header claims " + std::to_string(length) + " bytes, the file has " +
                 std::to_string(num_bytes - 8) + " after its length");
  }
  if (length > kMaxHeaderBytes) {
    throw Defect("the header claims " + std::to_string(length) + " bytes, at most " + std::to_string(kMaxHeaderBytes) +
                 " are allowed");
  }
  return length;
}

}  // namespace

Header read_header(const Source& source, uint32_t file) {
  try {
    const uint64_t length = header_length(source, file);
    std::string json(length, '\0');
    source.read(file, 8, length, json.data());
    return Header::parse(std::move(json), source.files[file].num_bytes - 8 - length);
  } catch (const Defect& defect) {
    throw Defect(source.files[file].path + ": " + defect.what());
  }
}

uint64_t data_start(const Source& source, uint32_t file) { return 8 + header_length(source, file); }

uint32_t host_dtype(const Header& header, size_t i) {
  const uint32_t dtype = abi_dtype(header.type(i));
  if (dtype == 0) {
    throw Defect("tensor '" + std::string(header.name(i)) + "' has the dtype " +
                 std::string(type_name(header.type(i))) + ", which is not supported");
  }
  return dtype;
}

void emit(const Source& source, uint32_t file, const Header& header, const ScanSink& sink,
          const std::function<std::string_view(std::string_view in_file)>& name) {
  const uint64_t start = data_start(source, file);
  FoundTensor found;
  for (size_t i = 0; i < header.size(); ++i) {
    found.name = name ? name(header.name(i)) : header.name(i);
    found.dtype = host_dtype(header, i);
    found.global_shape = found.box_shape = header.shape(i);
    found.box_offset.assign(found.box_shape.size(), 0);
    found.num_bytes = header.end(i) - header.begin(i);
    found.file = file;
    found.offset = start + header.begin(i);
    sink.tensor(found);
  }
}

void emit_value_head(const Source& source, const ScanSink& sink) {
  const int64_t file = source.find(kValueHead);
  if (file < 0) return;
  emit(source, static_cast<uint32_t>(file), read_header(source, static_cast<uint32_t>(file)), sink);
}

}  // namespace safetensors
