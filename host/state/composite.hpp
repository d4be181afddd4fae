// Descriptors of the components in which a composite tensor is stored: packed 4-bit values, absmax, code tables.
#pragma once

#include "host/state/descriptor.hpp"

namespace chassis {

// The component's descriptor. It is sharded so that every rank holds the units of exactly the elements that it holds of
// the tensor. If the last dim is a whole number of units, the component can have the tensor's dims with the last one
// scaled. It has them if its form is kLikeTensor, if `keep_dims`, or if a dim after the first is cut. Otherwise it is
// one-dimensional (kColumn: a single column), and only dim 0 or flat ranges may be cut. The row-major bytes are the
// same in both cases. Throws a config error if the placements would divide a unit.
Descriptor component_descriptor(const Descriptor& composite, const Component& component, bool keep_dims = false);

}  // namespace chassis
