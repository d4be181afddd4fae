// The two pieces of every row that a rank of a zigzag has (see LayoutAxis), one after the other along T.
#pragma once

#include <array>
#include <cstdint>

#include "host/service/tensor.hpp"

namespace chassis {

inline constexpr int64_t kRowPieces = 2;
inline constexpr int kTimeDim = 1;  // index of T in [B, T, …]

Tensor piece_of(const Tensor& both, int dim, int64_t piece);                       // a view
std::array<Tensor, kRowPieces> pieces_of(const Tensor& both, int dim = kTimeDim);  // contiguous
Tensor joined_pieces(const std::array<Tensor, kRowPieces>& pieces, int dim, Dtype dtype);

}  // namespace chassis
