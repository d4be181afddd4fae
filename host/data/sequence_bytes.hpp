// The facts of a document's sequences as bytes, which a tokenised set keeps in a column.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "host/data/sequences.hpp"

namespace chassis {

// The column of a set. No field of a batch reads it.
inline constexpr std::string_view kSequencesColumn = "sequences";

std::vector<std::byte> sequence_bytes(std::span<const SequenceFacts> sequences);
// Throws a storage error that says what is wrong with the bytes.
std::vector<SequenceFacts> sequences_from_bytes(std::span<const std::byte> bytes);

}  // namespace chassis
