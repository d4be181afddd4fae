// Compares the limits of the system with the needs of the run.
#include "host/launch/limits.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>

#include "host/base/error.hpp"

namespace chassis {
namespace {

// Files, pipes and sockets of a rank in addition to its connections to other ranks, measured in a small run, with a
// margin.
constexpr rlim_t kOwnDescriptors = 28;

}  // namespace

void require_clock() {
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  if (since_1970.count() >= 0) return;
  const auto days = std::chrono::duration_cast<std::chrono::hours>(-since_1970).count() / 24;
  throw config_error(
      fmt::format("the clock of this machine shows a time {} days before 1970, and ranks cannot wait for "
                  "each other by it",
                  days))
      .hint("set the clock, as with: date --set=…; a run of one process needs none");
}

void require_descriptors(int num_ranks) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t needed = kOwnDescriptors + static_cast<rlim_t>(num_ranks);
  if (limit.rlim_cur >= needed) return;
  if (limit.rlim_max < needed)
    throw config_error(fmt::format("{} ranks need {} open files and connections each, but a process may have {}",
                                   num_ranks, needed, limit.rlim_max))
        .hint(fmt::format("raise the limit, as with: ulimit -n {}", std::max<rlim_t>(needed, 1024)));
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace chassis
