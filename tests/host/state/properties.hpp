// The properties that every random layout must have; one call checks one seed.
#pragma once

#include <cstdint>

namespace chassis::testing {

// Local arrays equal the oracle's, every element is owned exactly once, the cover proof agrees, cuts are legal where
// they can be.
void check_layout(uint64_t seed);
// A → B → A through copies between local buffers is the identity and writes each destination element exactly once.
void check_round_trip(uint64_t seed);
// Several tensors through the rounds of a plan, A → B → A: within the budget, each destination element once, the same
// plan on every rank, tensors one after the other.
void check_reshard(uint64_t seed);
// Tensors of one flat buffer, as ZeRO partitions it: each rank's ranges fill its part of the buffer without a gap, and
// every element is owned once.
void check_flat_buffer(uint64_t seed);
// The cover proof finds a damaged plan, and its first wrong element is the first that brute force finds.
void check_damaged_cover(uint64_t seed);
// Each component of a composite is held where its elements are.
void check_composite(uint64_t seed);

}  // namespace chassis::testing
