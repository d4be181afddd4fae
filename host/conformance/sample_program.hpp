// Recorded programs in conformance tests: what differs between two, and a small batch for one.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "host/compile/parameters.hpp"
#include "host/execute/block_run.hpp"
#include "host/graph/program.hpp"

namespace chassis {

inline constexpr int64_t kSampleBatch = 2, kSampleTime = 8;

// The first difference, as text; empty if there is none.
std::string difference(const Program& got, const Program& expected);

// Why sample_fields() does not suffice for the program; empty if it does.
std::string unknown_field(const Program& program);
// A value for every field that the program reads. Some labels are not trained.
Fields sample_fields(const Program& program);

// The values of a tensor as f32, row-major.
std::vector<float> float_values(const Tensor& tensor);
// Also for NaN and zeros.
inline bool has_same_bits(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }

// Random values that keep activations at about the same size, so that every part of the program affects the loss.
void fill_sample_values(ParameterTable& parameters, ParameterTable::Which which = ParameterTable::Which::kAll);

}  // namespace chassis
