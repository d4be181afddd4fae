// Random numbers that depend only on the run's seed, a name and the element's index.
#pragma once

#include <span>
#include <string_view>

#include "chassis/host.hpp"

CHASSIS_SDK_BEGIN

// [any] Elements of the stream `name` from `begin` on, uniform in [0, 1).
inline void fill_uniform(const Host& host, std::string_view name, uint64_t begin, std::span<float> out) {
  const auto& rng = host.service<chassis_rng_t>();
  rng.uniform(&rng, str(name), begin, out.size(), out.data());
}

// [any] As fill_uniform, but normal with mean 0 and standard deviation 1.
inline void fill_normal(const Host& host, std::string_view name, uint64_t begin, std::span<float> out) {
  const auto& rng = host.service<chassis_rng_t>();
  rng.normal(&rng, str(name), begin, out.size(), out.data());
}

CHASSIS_SDK_END
