// The kinds of named dims. Their sizes in one micro-batch: dim_sizes.hpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace chassis {

using DimId = uint32_t;

enum class DimKind {
  kFixed,    // the model gives its size
  kBatch,    // B
  kTime,     // T
  kBounded,  // the model gives a maximum, each micro-batch the size
};

struct GraphDim {
  std::string name;
  int64_t size = 0;  // logical, undivided; the maximum of a bounded dim; 0 for B and T
  DimKind kind = DimKind::kFixed;
  bool is_fixed() const { return kind == DimKind::kFixed; }
  bool is_of_rows() const { return kind == DimKind::kBatch || kind == DimKind::kTime; }
};

// B and T, with which the dims of every program begin.
inline std::vector<GraphDim> predeclared_dims() { return {{"B", 0, DimKind::kBatch}, {"T", 0, DimKind::kTime}}; }

}  // namespace chassis
