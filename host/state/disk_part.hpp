// How a tensor of a run and tensors on disk hold the same elements: boxes of one are boxes of the other, with their
// dims in another order. Pure arithmetic.
#pragma once

#include <string>
#include <vector>

#include "host/state/layout.hpp"

namespace chassis {

// A box of a tensor's elements, all of which a tensor on disk has.
struct DiskPart {
  std::string disk_name;
  Shape disk_shape;
  Box box;                // of the tensor
  Shape disk_begin;       // where it begins on disk
  std::vector<int> dims;  // dim k on disk is dim dims[k] of the tensor; one that is left out has one index in the box

  // All of it, as it is.
  static DiskPart whole(std::string disk_name, const Shape& shape);
  bool operator==(const DiskPart&) const = default;

  // Of elements of the tensor within `box`, and back.
  Box on_disk(const Box& in_tensor) const;
  Box in_tensor(const Box& on_disk) const;
  // What a row-major box of the tensor on disk holds of this part, as a piece of the tensor that lies in that box; its
  // box may be empty.
  Piece piece(const Box& disk_box) const;
};

}  // namespace chassis
