// A box of a tensor, as a view of it.
#pragma once

#include "host/service/tensor.hpp"
#include "host/state/layout.hpp"

namespace chassis {

// The elements of a one-dimensional tensor that have these sizes and strides. Throws if any is outside the tensor.
inline Tensor strided(const Tensor& flat, const Shape& sizes, const StridedView& view) {
  return flat.strided({sizes.begin(), sizes.end()}, {view.strides.begin(), view.strides.end()}, view.offset);
}

}  // namespace chassis
