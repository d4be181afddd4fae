// The reserve is process-wide, as descriptors are. It consists of descriptors of /dev/null.
#include "host/base/descriptor_reserve.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>

#include "host/base/claimed_descriptors.hpp"

namespace chassis {
namespace {

// Has no destructor, since files may be closed until the process ends.
struct Reserve {
  std::mutex mutex;
  std::array<int, DescriptorReserve::kMax> held{};
  size_t num_held = 0, num_wanted = 0;
  std::atomic<bool> is_short = false;

  void fill() {
    while (num_held < num_wanted) {
      const int descriptor = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
      if (descriptor < 0) break;
      claim_descriptor(descriptor);
      held[num_held++] = descriptor;
    }
    is_short = num_held < num_wanted;
  }
};
Reserve reserve;

}  // namespace

DescriptorReserve::DescriptorReserve(size_t count) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) count = std::min<size_t>(count, limit.rlim_cur / 8);
  const std::lock_guard lock(reserve.mutex);
  reserve.num_wanted = std::min(count, kMax);
  reserve.fill();
}

DescriptorReserve::~DescriptorReserve() {
  const std::lock_guard lock(reserve.mutex);
  while (reserve.num_held > 0) ::close(reserve.held[--reserve.num_held]);
  reserve.num_wanted = 0;
  reserve.is_short = false;
}

bool release_reserved_descriptor() {
  const std::lock_guard lock(reserve.mutex);
  if (reserve.num_held == 0) return false;
  ::close(reserve.held[--reserve.num_held]);
  reserve.is_short = true;
  return true;
}

void refill_descriptor_reserve() noexcept {
  if (!reserve.is_short) return;
  const std::lock_guard lock(reserve.mutex);
  reserve.fill();
}

}  // namespace chassis
