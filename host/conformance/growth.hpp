// Growth of malloc memory and of the number of threads when an action is repeated.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace chassis {

// Bytes of malloc in use; exact unless malloc was replaced.
int64_t heap_bytes();

// Calls `once` a few times as a warm-up, then `times` times. Returns what grew during the latter calls, such as "20
// steps left 20971520 bytes of malloc in use, at most 327680 are allowed"; empty if nothing did.
std::string growth_of(const std::string& what, int times, const std::function<void()>& once);

}  // namespace chassis
