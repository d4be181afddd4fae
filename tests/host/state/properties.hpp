// Properties that every random layout must have. Each call checks one seed.
#pragma once

#include <cstdint>

namespace chassis::testing {

// With equal keys, every rank holds and owns the same boxes, whatever else differs between the layouts. Returns whether
// the keys of two descriptors that differ in one fact are equal.
bool check_key(uint64_t seed);
// Local arrays equal the oracle's, every element is owned exactly once, the cover proof agrees, and cuts are legal if
// they can be.
void check_layout(uint64_t seed);
// Copying A → B → A between local buffers is the identity and writes each destination element exactly once.
void check_round_trip(uint64_t seed);
// Moving several tensors A → B → A by the rounds of a plan stays within the budget, writes each destination element
// once and takes the tensors one after the other. Every rank has the same plan.
void check_reshard(uint64_t seed);
// The order of moves between random layouts does not depend on the order of items, is the same backwards, and keeps
// every rank close to its floor.
void check_move_order(uint64_t seed);
// With random sizes, the fullest rank stays close to the highest floor.
void check_move_order_of_sizes(uint64_t seed);
// The cover proof finds a damaged plan and reports the same first wrong element as brute force.
void check_damaged_cover(uint64_t seed);
// Each rank holds the parts of a composite's components that belong to its elements.
void check_composite(uint64_t seed);

}  // namespace chassis::testing
