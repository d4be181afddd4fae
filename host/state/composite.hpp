// The stored pieces of a composite tensor (packed 4-bit values, absmax, code tables) as descriptors of their own.
#pragma once

#include "host/state/descriptor.hpp"

namespace chassis {

// The component's descriptor, sharded so that every rank holds exactly the units of the elements that it holds of the
// tensor. Where the last dim is a whole number of units the component has the tensor's dims with the last one scaled;
// otherwise it is one-dimensional, and only dim 0 or flat ranges can have been cut. Both are the same row-major bytes.
// Throws where the placements would divide a unit.
Descriptor component_descriptor(const Descriptor& composite, const Component& component);

}  // namespace chassis
