// Access to the local tensors of a rank by descriptor.
#pragma once

#include <functional>

#include "host/service/tensor.hpp"
#include "host/state/layout.hpp"

namespace chassis {

// Returns the rank's local tensor: contiguous, with the descriptor's dtype and local shape. Called just before the
// tensor is read or written.
using LocalTensors = std::function<Tensor(const Descriptor& tensor, int rank)>;

// The same as a one-dimensional tensor. Throws an internal error if shape, dtype or contiguity differ from the layout.
Tensor checked_flat(const Layout& layout, int rank, const LocalTensors& tensors);
Tensor checked_flat(const Layout& layout, int rank, const Tensor& local);

}  // namespace chassis
