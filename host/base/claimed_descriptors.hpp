// The descriptors that the program uses itself, as opposed to those that its plugins opened. A plugin that closes one
// of them would damage whatever gets its number next, such as a checkpoint.
#pragma once

namespace chassis {

// [any] All functions.
// From now on the descriptor is the program's, until it is closed.
void claim_descriptor(int descriptor) noexcept;
void unclaim_descriptor(int descriptor) noexcept;
// False if it was closed meanwhile, and is another file now.
bool is_claimed_descriptor(int descriptor) noexcept;
// Every descriptor that is open now; with `only_connections`, those that lead to no file.
void claim_open_descriptors(bool only_connections = false);

}  // namespace chassis
