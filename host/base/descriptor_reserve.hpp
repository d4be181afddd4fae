// Descriptors that plugins cannot use up.
#pragma once

#include <cstddef>

namespace chassis {

// During its lifetime this process keeps descriptors for files of the host: an open of base/file.hpp that finds none
// free gets one of them, and files that are closed fill the reserve again. Only one object at a time.
// Rationale: plugins share the process; a sink with too many clients or files would make the next save fail.
class DescriptorReserve {
 public:
  static constexpr size_t kMax = 128;
  // Keeps `count`, but no more than an eighth of the process' limit.
  explicit DescriptorReserve(size_t count = kMax);
  ~DescriptorReserve();
  DescriptorReserve(const DescriptorReserve&) = delete;
  DescriptorReserve& operator=(const DescriptorReserve&) = delete;
};

// For base/file.cpp: frees one descriptor of the reserve; false if there is none.
bool release_reserved_descriptor();
// Called after a close: refills the reserve.
void refill_descriptor_reserve() noexcept;

}  // namespace chassis
