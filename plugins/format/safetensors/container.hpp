// One .safetensors file: u64 length, JSON header, tensors. Parsing trusts nothing and uses less memory than four times
// the header's bytes. The rules are those of the reference reader (huggingface/safetensors, tensor.rs) and its README.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "json_reader.hpp"

namespace safetensors {

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // of the JSON; limit of the format
inline constexpr size_t kMaxMetadata = 10'000;            // pairs in __metadata__; our limit
inline constexpr int kMaxDims = 64;                       // our limit

// The reference writer sorts the tensors of a file by descending type, in this order.
enum class Type : uint8_t {
  kBool,
  kF4,
  kF6E2m3,
  kF6E3m2,
  kU8,
  kI8,
  kF8E5m2,
  kF8E4m3,
  kF8E8m0,
  kF8E4m3fnuz,
  kF8E5m2fnuz,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};
inline constexpr size_t kNumTypes = 22;

std::string_view type_name(Type type);  // "F32"
uint32_t type_bits(Type type);
uint32_t abi_dtype(Type type);           // CHASSIS_DTYPE_…, 0 if the host has no such type
Type type_from_abi(uint32_t abi_dtype);  // Defect if unknown

using Metadata = std::vector<std::pair<std::string, std::string>>;

// Throws a Defect for a name that is not UTF-8, has control characters, or looks like a path. Names are never used as
// paths; the last check is a precaution.
void check_tensor_name(std::string_view name);

class Header {
 public:
  // `json`: the header without its length; `data_bytes`: the size of the rest of the file.
  static Header parse(std::string json, uint64_t data_bytes);

  size_t size() const { return entries_.size(); }
  // Tensors are in the order of the file's header.
  std::string_view name(size_t i) const { return text_at(entries_[i].name_begin, entries_[i].name_bytes); }
  Type type(size_t i) const { return static_cast<Type>(entries_[i].type); }
  std::vector<int64_t> shape(size_t i) const;
  // Offsets in bytes from the end of the header.
  uint64_t begin(size_t i) const { return entries_[i].begin; }
  uint64_t end(size_t i) const { return entries_[i].end; }
  // Index of the tensor, or size() if there is none.
  size_t find(std::string_view name) const;

  Metadata metadata() const;
  // Empty if there is no such key.
  std::string_view metadata_value(std::string_view key) const;

 private:
  struct Entry {
    uint32_t name_begin = 0, name_bytes = 0, shape_begin = 0;
    uint8_t num_dims = 0, type = 0;
    uint64_t begin = 0, end = 0;
  };
  struct Pair {
    uint32_t key_begin, key_bytes, value_begin, value_bytes;
  };

  std::string_view text_at(uint32_t begin, uint32_t num_bytes) const {
    return std::string_view(json_).substr(begin, num_bytes);
  }
  void parse_metadata(JsonReader& json);
  void parse_entry(JsonReader& json, Entry& entry);
  uint64_t parse_shape(JsonReader& json, Entry& entry);
  void check_names();
  void check_offsets(uint64_t data_bytes) const;

  std::string json_;
  std::vector<Entry> entries_;
  std::vector<uint32_t> by_name_;
  std::vector<Pair> metadata_;
};

struct NewTensor {
  std::string_view name;
  Type type;
  std::span<const int64_t> shape;
  uint64_t num_bytes;
};

// Length and JSON, padded with spaces so that the data starts at a multiple of 8. Tensors must be in file order.
std::string header_bytes(std::span<const NewTensor> tensors, const Metadata& metadata);

void append_json_string(std::string& out, std::string_view text);

}  // namespace safetensors
