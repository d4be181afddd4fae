// Limits on what a tokenizer may return, far above the needs of any vocabulary. More is an error of the plugin, and is
// not allocated.
#pragma once

#include <cstdint>

namespace chassis {

constexpr uint64_t max_num_ids(uint64_t num_bytes) { return 16 * (num_bytes + 1); }
constexpr uint64_t max_num_bytes(uint64_t num_ids) { return (uint64_t{1} << 16) * (num_ids + 1); }

}  // namespace chassis
