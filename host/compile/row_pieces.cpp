// Cuts tensors into the pieces of a zigzag, and joins them.
#include "host/compile/row_pieces.hpp"

#include <vector>

namespace chassis {

Tensor piece_of(const Tensor& both, int dim, int64_t piece) {
  const int64_t length = both.size(dim) / kRowPieces;
  return both.narrow(dim, piece * length, length);
}

std::array<Tensor, kRowPieces> pieces_of(const Tensor& both, int dim) {
  return {piece_of(both, dim, 0).contiguous(), piece_of(both, dim, 1).contiguous()};
}

Tensor joined_pieces(const std::array<Tensor, kRowPieces>& pieces, int dim, Dtype dtype) {
  std::vector<int64_t> sizes = pieces[0].sizes();
  sizes[static_cast<size_t>(dim)] *= kRowPieces;
  const Tensor both = Tensor::empty(sizes, dtype, pieces[0].device());
  for (int64_t i = 0; i < kRowPieces; ++i) piece_of(both, dim, i).copy_from(pieces[static_cast<size_t>(i)]);
  return both;
}

}  // namespace chassis
