// Sizes of what a frame keeps.
#include "host/execute/run_context.hpp"

namespace chassis {

uint64_t Frame::num_bytes() const {
  uint64_t bytes = 0;
  for (const Tensor& t : values) bytes += t ? t.num_bytes() : 0;
  for (const auto& node : saved)
    for (const Tensor& t : node) bytes += t.num_bytes();
  return bytes;
}

}  // namespace chassis
