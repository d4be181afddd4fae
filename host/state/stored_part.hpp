// Maps a tensor of a run to the tensors on disk that hold the same elements: boxes of one are boxes of the other, with
// the dims in another order. Pure arithmetic.
#pragma once

#include <string>
#include <vector>

#include "host/state/layout.hpp"

namespace chassis {

// A box of a tensor's elements that one tensor on disk holds.
struct StoredPart {
  std::string disk_name;
  Shape disk_shape;
  Box box;                // in the tensor
  Shape disk_begin;       // where the box begins on disk
  std::vector<int> dims;  // dim k on disk is dim dims[k] of the tensor; along dims left out, the box has one index
  // True if the box has other dims on disk, where it is a whole tensor, but the same row-major elements; then only
  // pieces() applies.
  bool is_reshaped = false;

  // The whole tensor with its dims in order.
  static StoredPart whole(std::string disk_name, const Shape& shape);
  // A box as a whole tensor on disk, whose shape there may be another one with as many elements.
  static StoredPart reshaped(std::string disk_name, const Shape& disk_shape, const Box& box);
  bool operator==(const StoredPart&) const = default;

  // Converts a part of `box` to a box on disk, and back.
  Box on_disk(const Box& in_tensor) const;
  Box in_tensor(const Box& on_disk) const;
  // The piece of the tensor that `disk_box`, a row-major box of the tensor on disk, holds of this part. The piece's
  // place is relative to `disk_box`, and its box may be empty.
  Piece piece(const Box& disk_box) const;
  // The same for any part, as pieces that are not empty. A box of a reshaped part must be consecutive on disk.
  std::vector<Piece> pieces(const Box& disk_box) const;
};

}  // namespace chassis
