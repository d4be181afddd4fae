// The boxes that ranks own, computed one tensor at a time, so that no rank keeps those of all ranks and tensors.
#pragma once

#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "host/state/layout.hpp"

namespace chassis {

struct OwnedBox {
  int rank = 0;
  Box box;
};

class OwnedBoxes {
 public:
  explicit OwnedBoxes(const MeshShape& mesh) : mesh_(mesh) {}

  // The boxes of all ranks, in ascending order of rank. Valid until the next call.
  std::span<const OwnedBox> of(const Descriptor& tensor);

 private:
  MeshShape mesh_;
  // By Layout::key(), which is equal for tensors that are divided alike, such as those of all layers.
  std::unordered_map<std::string, std::vector<OwnedBox>> known_;
  size_t num_known_ = 0;  // boxes
};

}  // namespace chassis
