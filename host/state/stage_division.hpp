// Divides the units of a model into the stages of a pipeline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace chassis {

// Units [begin, end) of the program: all units, or those of one pipeline stage.
struct UnitRange {
  size_t begin = 0;
  size_t end = 0;
  size_t size() const { return end - begin; }
  bool operator==(const UnitRange&) const = default;
};

// The division, in order and without empty stages, whose costliest stage costs least; of several, the most even one
// (the smallest sum of squares). `costs` are those of the model's units, on any scale. Throws a config error if there
// are fewer units than stages.
std::vector<UnitRange> balanced_division(std::span<const double> costs, int num_stages);

// The division that a user gives by the number of layers in each stage. Units before the layers, such as the embedding,
// belong to the first stage, units after them to the last. Throws a config error, with both numbers, if it does not
// fit.
std::vector<UnitRange> given_division(std::span<const int64_t> layers_per_stage, int num_stages, size_t num_units,
                                      UnitRange layers);

}  // namespace chassis
