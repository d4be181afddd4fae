// Compares a local tensor with its descriptor.
#include "host/checkpoint/local_tensors.hpp"

#include <string>

#include "host/base/error.hpp"

namespace chassis {

Tensor checked_flat(const Layout& layout, int rank, const LocalTensors& tensors) {
  return checked_flat(layout, rank, tensors(layout.descriptor(), rank));
}

Tensor checked_flat(const Layout& layout, int rank, const Tensor& local) {
  const Descriptor& descriptor = layout.descriptor();
  CHASSIS_CHECK(static_cast<bool>(local), "no local tensor for '" + descriptor.fqn + "'");
  const Shape found{std::span<const int64_t>(local.sizes())}, wanted = layout.local_shape(rank);
  if (found != wanted || local.dtype() != descriptor.dtype || !local.is_contiguous()) {
    throw internal_error("tensor '" + descriptor.fqn + "' is " + std::string(dtype_name(local.dtype())) + text(found) +
                         (local.is_contiguous() ? "" : ", not contiguous") + " on rank " + std::to_string(rank) +
                         "; its descriptor says " + std::string(dtype_name(descriptor.dtype)) + text(wanted));
  }
  return local.flat();
}

}  // namespace chassis
