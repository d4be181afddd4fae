// LibTorch's intra-op threads.
#include "host/service/threads.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <future>
#include <string>
#include <vector>

#include "host/base/control_groups.hpp"
#include "host/base/error.hpp"
#include "host/base/thread.hpp"

namespace chassis {

void initialize_vector_math() { static const at::Tensor first = at::sin(at::ones({1})); }

void set_threads(int count) { at::set_num_threads(count); }
int num_threads() { return at::get_num_threads(); }

void check_threads_start() {
  const int wanted = num_threads();
  std::promise<void> all_started;
  const std::shared_future<void> end = all_started.get_future();
  std::vector<Thread> started;  // the calling thread is the first
  try {
    for (int i = 1; i < wanted; ++i) started.emplace_back("computation", [end] { end.wait(); });
  } catch (...) {
    all_started.set_value();
    throw current_error()
        .with("threads for the computation",
              std::to_string(wanted) + ", of which " + std::to_string(started.size() + 1) + " could start")
        .hint("set run.threads, or OMP_NUM_THREADS, to fewer, or raise the limit");
  }
  all_started.set_value();
}

void run_parallel(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body) {
  at::parallel_for(0, count, grain, body);
}

std::string omp_num_threads() {
  const char* const chosen = std::getenv("OMP_NUM_THREADS");
  return chosen ? chosen : "";
}

int default_num_threads(int64_t num_ranks) {
  const int64_t share = usable_threads() / std::max<int64_t>(1, num_ranks);
  return first_num_threads(omp_num_threads()).value_or(static_cast<int>(std::max<int64_t>(1, share)));
}

std::optional<int> first_num_threads(std::string_view text) {
  std::optional<int> first;
  for (bool is_last = false; !is_last;) {
    const size_t comma = text.find(',');
    is_last = comma == text.npos;
    std::string_view number = text.substr(0, comma);
    text.remove_prefix(is_last ? text.size() : comma + 1);
    number.remove_prefix(std::min(number.find_first_not_of(" \t"), number.size()));
    number = number.substr(0, number.find_last_not_of(" \t") + 1);
    int count = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), count);
    if (error != std::errc() || end != number.data() + number.size() || count < 1 || count > kMaxThreads)
      return std::nullopt;
    if (!first) first = count;
  }
  return first;
}

}  // namespace chassis
