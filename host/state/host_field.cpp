// Finds the bytes that a piece fills, and has the field's row of the table write them.
#include "host/state/host_field.hpp"

#include <algorithm>

namespace chassis {
namespace {

// Dims that number the entries: [B, T], [B], or the one along which entries are appended.
size_t num_entry_dims(FieldEntries entries) { return entries == FieldEntries::kPositions ? 2 : 1; }

size_t product_of(std::span<const int64_t> sizes) {
  size_t product = 1;
  for (const int64_t size : sizes) product *= static_cast<size_t>(size);
  return product;
}

template <typename T>
void pad_with(std::span<std::byte> bytes, int32_t padding) {
  std::fill_n(reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T), static_cast<T>(padding));
}

}  // namespace

std::vector<int64_t> field_shape(const BatchFieldSpec& spec, const NamedSizes& sizes) {
  std::vector<int64_t> shape;
  for (const std::string_view dim : spec.dims) {
    const auto found = sizes.find(dim);
    CHASSIS_CHECK(found != sizes.end(), "field " + std::string(spec.name) + " has the dim " + std::string(dim));
    shape.push_back(found->second);
  }
  return shape;
}

HostField::HostField(const BatchFieldSpec& spec, const NamedSizes& sizes, int32_t pad_id)
    : spec_(&spec), entries_(entries_of(spec)), shape_(field_shape(spec, sizes)) {
  CHASSIS_CHECK(dtype() == Dtype::i32 || dtype() == Dtype::f32, std::string(spec.name));
  if (entries_ == FieldEntries::kAppended) shape_[0] = 0;
  entry_bytes_ =
      product_of(std::span(shape_).subspan(num_entry_dims(entries_))) * static_cast<size_t>(size_bytes(dtype()));
  bytes_.resize(product_of(std::span(shape_).first(num_entry_dims(entries_))) * entry_bytes_);
  const int32_t padding = spec.padding.value_or(pad_id);
  dtype() == Dtype::f32 ? pad_with<float>(bytes_, padding) : pad_with<int32_t>(bytes_, padding);
}

void HostField::write(const RowPiece& piece, int64_t row, int64_t position) {
  size_t first = static_cast<size_t>(row), count = 1;
  if (entries_ == FieldEntries::kPositions) {
    first = static_cast<size_t>(row * shape_[1] + position);
    count = piece.ids.size();
  } else if (entries_ == FieldEntries::kAppended) {
    first = static_cast<size_t>(shape_[0]);
    count = spec_->num_entries(piece, entry_bytes_);
    shape_[0] += static_cast<int64_t>(count);
    bytes_.resize((first + count) * entry_bytes_);
  }
  spec_->write(piece, std::span(bytes_).subspan(first * entry_bytes_, count * entry_bytes_));
}

void HostField::shorten(int64_t length) {
  if (entries_ != FieldEntries::kPositions || length == shape_[1]) return;
  const auto from = static_cast<ptrdiff_t>(static_cast<size_t>(shape_[1]) * entry_bytes_),
             to = static_cast<ptrdiff_t>(static_cast<size_t>(length) * entry_bytes_);
  for (int64_t row = 1; row < shape_[0]; ++row) std::copy_n(bytes_.begin() + row * from, to, bytes_.begin() + row * to);
  bytes_.resize(static_cast<size_t>(shape_[0] * to));
  shape_[1] = length;
}

}  // namespace chassis
