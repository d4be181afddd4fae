// Flat vectors that lie in pieces in the files, cut into the boxes of the tensors that stand in them.
#pragma once

#include "torch_file.hpp"

namespace zero_import {

// Cuts elements [begin, end) of a row-major tensor into boxes, in order.
struct Cut {
  std::vector<int64_t> offset, shape;
};
std::vector<Cut> boxes_of_range(const std::vector<int64_t>& shape, uint64_t begin, uint64_t end);

uint64_t num_elements(const std::vector<int64_t>& shape);

// A tensor in a file, to be read as if it were flat.
struct Piece {
  uint32_t file = 0, rank = 0, dtype = 0;
  uint64_t offset = 0;  // bytes
  uint64_t num_elements = 0;
};

Piece piece_of(const TorchFile& file, uint32_t rank, const Value& tensor, const std::string& what);

// Pieces one behind the other.
class Flat {
 public:
  void add(const Piece& piece);
  uint64_t num_elements() const { return num_elements_; }
  // Elements [at, at + count) are those of the tensor from `first` on.
  void emit(const Sink& sink, const std::string& name, const std::vector<int64_t>& shape, uint64_t first, uint64_t at,
            uint64_t count) const;

 private:
  std::vector<Piece> pieces_;
  std::vector<uint64_t> starts_;
  uint64_t num_elements_ = 0;
};

// A tensor of no elements, of the dtype and in the file of `like`.
void emit_empty(const Sink& sink, const std::string& name, const std::vector<int64_t>& shape, const Piece& like);

}  // namespace zero_import
