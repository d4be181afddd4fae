// Random numbers without state: element i of a named stream does not depend on sharding, thread count or order.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace chassis {

// Elements [begin, begin + out.size()) of the stream, computed by all threads.
void random_uniform(uint64_t seed, std::string_view name, uint64_t begin, std::span<float> out);  // [0, 1), 24 bits
void random_normal(uint64_t seed, std::string_view name, uint64_t begin, std::span<float> out);   // mean 0, deviation 1

}  // namespace chassis
