// Cuts flat ranges into boxes, and emits the boxes as tensors.
#include "flat.hpp"

#include <algorithm>

namespace zero_import {
namespace {

void add_boxes(const std::vector<int64_t>& shape, size_t dim, std::vector<int64_t>& prefix, uint64_t begin,
               uint64_t end, std::vector<Cut>& out) {
  if (begin >= end) return;
  uint64_t row = 1;  // elements of one index of `dim`
  for (size_t i = dim + 1; i < shape.size(); ++i) row *= static_cast<uint64_t>(shape[i]);
  const auto emit = [&](uint64_t first, uint64_t count) {
    Cut cut{prefix, std::vector<int64_t>(prefix.size(), 1)};
    if (dim < shape.size()) {
      cut.offset.push_back(static_cast<int64_t>(first));
      cut.shape.push_back(static_cast<int64_t>(count));
      for (size_t i = dim + 1; i < shape.size(); ++i) cut.offset.push_back(0), cut.shape.push_back(shape[i]);
    }
    out.push_back(std::move(cut));
  };
  if (dim >= shape.size()) return emit(0, 1);
  const auto partial = [&](uint64_t index, uint64_t from, uint64_t to) {
    prefix.push_back(static_cast<int64_t>(index));
    add_boxes(shape, dim + 1, prefix, from, to, out);
    prefix.pop_back();
  };
  uint64_t first = begin / row;
  const uint64_t last = end / row;  // the first row that does not end within the range
  if (begin % row != 0) {
    partial(first, begin % row, std::min(row, end - first * row));
    ++first;
  }
  if (first < last) emit(first, last - first);
  if (end % row != 0 && last >= first) partial(last, 0, end % row);
}

void emit_piece(const Sink& sink, const std::string& name, const std::vector<int64_t>& shape, uint64_t first,
                const Piece& piece, uint64_t skipped, uint64_t count) {
  const uint64_t element_bytes = dtype_bytes(piece.dtype);
  uint64_t offset = piece.offset + skipped * element_bytes;
  for (Cut& cut : boxes_of_range(shape, first, first + count)) {
    FoundTensor found{name,       piece.dtype, shape, std::move(cut.offset), std::move(cut.shape), 0,
                      piece.rank, piece.file,  offset};
    found.num_bytes = zero_import::num_elements(found.box_shape) * element_bytes;
    offset += found.num_bytes;
    sink.tensor(found);
  }
}

}  // namespace

uint64_t num_elements(const std::vector<int64_t>& shape) {
  uint64_t product = 1;
  for (const int64_t size : shape) product *= static_cast<uint64_t>(size);
  return product;
}

std::vector<Cut> boxes_of_range(const std::vector<int64_t>& shape, uint64_t begin, uint64_t end) {
  std::vector<Cut> out;
  std::vector<int64_t> prefix;
  add_boxes(shape, 0, prefix, begin, end, out);
  return out;
}

Piece piece_of(const TorchFile& file, uint32_t rank, const Value& tensor, const std::string& what) {
  if (tensor.kind != Kind::kTensor) file.fail(what + " is " + std::string(kind_name(tensor.kind)) + ", not a tensor");
  const TensorInfo& info = file.pickle().tensor(tensor);
  return {file.file(), rank, file.dtype_of(info), file.offset_of(info), info.num_elements()};
}

void Flat::add(const Piece& piece) {
  starts_.push_back(num_elements_);
  num_elements_ += piece.num_elements;
  pieces_.push_back(piece);
}

void Flat::emit(const Sink& sink, const std::string& name, const std::vector<int64_t>& shape, uint64_t first,
                uint64_t at, uint64_t count) const {
  auto i = static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), at) - starts_.begin()) - 1;
  for (; count > 0; ++i) {
    const Piece& piece = pieces_.at(i);
    const uint64_t skipped = at - starts_[i], here = std::min(count, piece.num_elements - skipped);
    emit_piece(sink, name, shape, first, piece, skipped, here);
    first += here, at += here, count -= here;
  }
}

void emit_empty(const Sink& sink, const std::string& name, const std::vector<int64_t>& shape, const Piece& like) {
  sink.tensor(
      {name, like.dtype, shape, std::vector<int64_t>(shape.size(), 0), shape, 0, like.rank, like.file, like.offset});
}

}  // namespace zero_import
