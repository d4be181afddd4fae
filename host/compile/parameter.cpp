// The values of initial parameters come from the counter-based generator.
#include "host/compile/parameter.hpp"

#include <algorithm>
#include <cstddef>

#include "host/service/rng.hpp"

namespace chassis {

std::vector<Tensor> Parameter::all_stored() const {
  if (!is_quantized()) return {shard};
  std::vector<Tensor> out;
  for (const StoredComponent& component : components) out.push_back(component.shard);
  return out;
}

bool Parameter::is_divided_along(std::string_view axis) const {
  const auto end = descriptor.placements.begin() + static_cast<std::ptrdiff_t>(num_layout_placements);
  return std::any_of(descriptor.placements.begin(), end, [&](const Placement& placement) {
    return std::find(placement.axes.begin(), placement.axes.end(), axis) != placement.axes.end();
  });
}

void fill_random(const Parameter& p, int64_t index, std::span<float> values, uint64_t seed) {
  if (p.init == CHASSIS_INIT_NORMAL) random_normal(seed, p.name, static_cast<uint64_t>(index), values);
  if (p.init != CHASSIS_INIT_UNIFORM) return;
  random_uniform(seed, p.name, static_cast<uint64_t>(index), values);
  for (float& value : values) value = 2.0f * value - 1.0f;
}

}  // namespace chassis
