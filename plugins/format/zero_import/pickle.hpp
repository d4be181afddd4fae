// Parses a pickle of protocol 2, as torch.save writes it, into a table of plain values without executing anything. The
// opcodes are those of CPython's Lib/pickletools.py. Globals are limited to the few that a ZeRO checkpoint needs; all
// others are refused by name. Work and memory are linear in the bytes of the pickle.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "chassis/dtype.hpp"
#include "source.hpp"

namespace zero_import {

using chassis::dtype_bytes;

inline constexpr uint64_t kMaxPickleBytes = uint64_t{64} << 20;
inline constexpr size_t kMaxValues = 4'000'000;

// Index of a value in its pickle.
using ValueId = uint32_t;

enum class Kind : uint8_t {
  kNone,
  kBool,    // integer
  kInt,     // integer
  kFloat,   // real
  kText,    // text
  kTuple,   // items
  kList,    // items
  kDict,    // items: key, value, key, value, … in order of insertion
  kGlobal,  // text: "module.name"; integer: index into kGlobals
  kRecord,  // text: the class; items: the arguments, then the states, of an object that is not interpreted
  kStorage,
  kTensor,
};

struct Value {
  Kind kind = Kind::kNone;
  int64_t integer = 0;  // for a storage or a tensor: its index
  double real = 0;
  std::string text;
  std::vector<ValueId> items;
};

// A member data/<key> of the file.
struct StorageInfo {
  uint32_t dtype = 0;  // CHASSIS_DTYPE_…
  std::string key;
  uint64_t num_elements = 0;
};

struct TensorInfo {
  uint32_t storage = 0;
  uint64_t offset = 0;  // in elements
  std::vector<int64_t> shape;

  uint64_t num_elements() const {
    uint64_t product = 1;  // the parser checked that it fits
    for (const int64_t size : shape) product *= static_cast<uint64_t>(size);
    return product;
  }
};

class Pickle {
 public:
  // Throws a Defect with the byte, and the global or the opcode.
  static Pickle parse(std::string_view bytes);

  const Value& root() const { return values_[root_]; }
  const Value& at(ValueId id) const { return values_[id]; }
  const TensorInfo& tensor(const Value& value) const { return tensors_[static_cast<size_t>(value.integer)]; }
  const StorageInfo& storage(uint32_t index) const { return storages_[index]; }

  // Looks up a key of a dict; null if it has no such key.
  const Value* find(const Value& dict, std::string_view key) const;
  // As find, but throws a Defect if there is no such key or its value is of another kind.
  const Value& get(const Value& dict, std::string_view key, Kind kind) const;

 private:
  friend class PickleMachine;
  std::vector<Value> values_;
  std::vector<StorageInfo> storages_;
  std::vector<TensorInfo> tensors_;
  ValueId root_ = 0;
};

std::string_view kind_name(Kind kind);

}  // namespace zero_import
