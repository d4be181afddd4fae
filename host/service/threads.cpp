// LibTorch's intra-op threads.
#include "host/service/threads.hpp"

#include <ATen/Parallel.h>

#include <cstdlib>

namespace chassis {

void set_threads(int count) { at::set_num_threads(count); }
int num_threads() { return at::get_num_threads(); }

std::string omp_num_threads() {
  const char* const chosen = std::getenv("OMP_NUM_THREADS");
  return chosen ? chosen : "";
}

}  // namespace chassis
