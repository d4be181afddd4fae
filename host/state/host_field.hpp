// One field of a micro-batch in host memory: the only place that allocates one, by its row of batch_fields().
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "host/base/batch_fields.hpp"
#include "host/base/error.hpp"
#include "host/state/dtype.hpp"

namespace chassis {

// Sizes of dims by name: "B" and "T" of the micro-batch, and the model's. A bounded dim has its maximum.
using NamedSizes = std::map<std::string, int64_t, std::less<>>;

// The largest shape of a field. Throws an internal error that names a dim without a size.
std::vector<int64_t> field_shape(const BatchFieldSpec& spec, const NamedSizes& sizes);

class HostField {
 public:
  // All padding, or without entries if they are appended. `pad_id` is the padding of a field that names none. The spec
  // must outlive the field.
  HostField(const BatchFieldSpec& spec, const NamedSizes& sizes, int32_t pad_id = 0);

  Dtype dtype() const { return static_cast<Dtype>(spec_->dtype); }
  const std::vector<int64_t>& shape() const { return shape_; }
  std::span<const std::byte> bytes() const { return bytes_; }  // row-major
  template <typename T>
  std::span<const T> values() const {
    CHASSIS_CHECK(sizeof(T) == static_cast<size_t>(size_bytes(dtype())), std::string(spec_->name));
    return {reinterpret_cast<const T*>(bytes_.data()), bytes_.size() / sizeof(T)};
  }
  template <typename T>
  std::span<T> writable() {
    const std::span<const T> all = values<T>();
    return {const_cast<T*>(all.data()), all.size()};
  }
  FieldEntries entries() const { return entries_; }
  // Writes the values of a piece that begins at `position` of `row`.
  void write(const RowPiece& piece, int64_t row, int64_t position);
  // Cuts every row to its first `length` positions, if the field has positions.
  void shorten(int64_t length);
  bool operator==(const HostField&) const = default;

 private:
  const BatchFieldSpec* spec_;
  FieldEntries entries_;  // of the spec
  std::vector<int64_t> shape_;
  size_t entry_bytes_;
  std::vector<std::byte> bytes_;
};

}  // namespace chassis
