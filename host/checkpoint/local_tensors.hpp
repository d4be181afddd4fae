// Where the bytes of a rank are: the tensor that a descriptor speaks of, checked against it.
#pragma once

#include <functional>

#include "host/service/tensor.hpp"
#include "host/state/layout.hpp"

namespace chassis {

// The rank's local tensor, contiguous, with the run-time shape and dtype of the descriptor. Called when it is the
// tensor's turn to be read or written.
using LocalTensors = std::function<Tensor(const Descriptor& tensor, int rank)>;

// The same as a flat range of elements. Throws an internal error if it is not what the layout says.
Tensor checked_flat(const Layout& layout, int rank, const LocalTensors& tensors);

}  // namespace chassis
