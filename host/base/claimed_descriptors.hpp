// The descriptors that the program uses itself, as opposed to those that its plugins opened. A plugin that closes one
// of them would damage whatever gets its number next, such as a checkpoint.
#pragma once

namespace chassis {

// [any] for all functions here.
// Marks the descriptor as the program's until it is closed.
void claim_descriptor(int descriptor) noexcept;
void unclaim_descriptor(int descriptor) noexcept;
// False also if the descriptor was closed and its number now refers to another file.
bool is_claimed_descriptor(int descriptor) noexcept;
// Claims every descriptor that is open now; with `only_connections`, only those that lead to no file.
void claim_open_descriptors(bool only_connections = false);

}  // namespace chassis
