#include "host/service/threads.hpp"

#include <ATen/Parallel.h>
#include <sched.h>

#include <cstdlib>

namespace chassis {

void set_threads(int count) { at::set_num_threads(count); }
int num_threads() { return at::get_num_threads(); }

ThreadFacts thread_facts() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  ThreadFacts facts;
  facts.threads = at::get_num_threads();
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) facts.cores = CPU_COUNT(&cores);
  facts.omp_num_threads = variable("OMP_NUM_THREADS");
  facts.omp_wait_policy = variable("OMP_WAIT_POLICY");
#ifdef _OPENMP
  facts.parallel_for_is_parallel = true;
#endif
  return facts;
}

}  // namespace chassis
