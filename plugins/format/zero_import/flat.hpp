// Flat vectors, stored in several pieces in the files, and the boxes of the tensors in them.
#pragma once

#include "torch_file.hpp"

namespace zero_import {

// A box of a tensor.
struct Cut {
  std::vector<int64_t> offset, shape;
};
// Cuts elements [begin, end) of a row-major tensor into boxes, in order.
std::vector<Cut> boxes_of_range(const std::vector<int64_t>& shape, uint64_t begin, uint64_t end);

uint64_t num_elements(const std::vector<int64_t>& shape);

// The elements of one tensor in a file, as a flat vector.
struct Piece {
  uint32_t file = 0, rank = 0, dtype = 0;
  uint64_t offset = 0;  // bytes
  uint64_t num_elements = 0;
};

Piece piece_of(const TorchFile& file, uint32_t rank, const Value& tensor, const std::string& what);

// A flat vector made of pieces, one after another.
class Flat {
 public:
  void add(const Piece& piece);
  uint64_t num_elements() const { return num_elements_; }
  // Emits elements [at, at + count) as the elements of the tensor that start at `first`.
  void emit(const Sink& sink, const std::string& name, const std::vector<int64_t>& shape, uint64_t first, uint64_t at,
            uint64_t count) const;

 private:
  std::vector<Piece> pieces_;
  std::vector<uint64_t> starts_;
  uint64_t num_elements_ = 0;
};

// Emits a tensor without elements, with the dtype and file of `like`.
void emit_empty(const Sink& sink, const std::string& name, const std::vector<int64_t>& shape, const Piece& like);

}  // namespace zero_import
