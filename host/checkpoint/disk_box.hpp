// Boxes of tensors as files have them.
#pragma once

#include <cstdint>
#include <string>

#include "host/state/box.hpp"
#include "host/state/dtype.hpp"

namespace chassis {

inline constexpr char kManifestName[] = "manifest.json";

// Longer headers are legal, but other readers refuse them.
inline constexpr uint64_t kMaxHeaderBytes = 25'000'000;

// A box of a tensor on disk: contiguous, row-major.
struct DiskBox {
  std::string name;
  Dtype dtype = Dtype::f32;
  Shape global_shape;
  Box box;
  int rank = 0;  // the rank that writes it

  uint64_t num_bytes() const { return static_cast<uint64_t>(numel(box) * size_bytes(dtype)); }
};

struct DiskPlace {
  uint32_t file = 0;
  uint64_t offset = 0;
  bool operator==(const DiskPlace&) const = default;
};

}  // namespace chassis
