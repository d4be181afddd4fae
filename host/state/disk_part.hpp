// How a tensor of a run and tensors on disk hold the same elements: boxes of one are boxes of the other, with the dims
// in another order. Pure arithmetic.
#pragma once

#include <string>
#include <vector>

#include "host/state/layout.hpp"

namespace chassis {

// A box of a tensor's elements that one tensor on disk holds.
struct DiskPart {
  std::string disk_name;
  Shape disk_shape;
  Box box;                // of the tensor
  Shape disk_begin;       // where the box begins on disk
  std::vector<int> dims;  // dim k on disk is dim dims[k] of the tensor; in dims left out the box has one index
  // The whole tensor with other dims on disk, and the same row-major elements; on_disk() and the like do not apply.
  bool is_reshaped = false;

  // The whole tensor with its dims in order.
  static DiskPart whole(std::string disk_name, const Shape& shape);
  // The whole tensor, whose shape on disk has as many elements.
  static DiskPart reshaped(std::string disk_name, const Shape& disk_shape, const Shape& shape);
  bool operator==(const DiskPart&) const = default;

  // Converts a part of `box` to a box on disk, and back.
  Box on_disk(const Box& in_tensor) const;
  Box in_tensor(const Box& on_disk) const;
  // What `disk_box`, a row-major box of the tensor on disk, holds of this part: a piece of the tensor, whose place is
  // in `disk_box`. The piece's box may be empty.
  Piece piece(const Box& disk_box) const;
  // The same for any part, as pieces that are not empty. A box of a reshaped part must be consecutive on disk.
  std::vector<Piece> pieces(const Box& disk_box) const;
};

}  // namespace chassis
