// The threads that LibTorch computes with, and the facts of the environment that decide how they behave.
#pragma once

#include <string>

namespace chassis {

// Of this process, for everything that runs in parallel; call it before the first computation.
void set_threads(int count);
int num_threads();

struct ThreadFacts {
  int threads = 1;
  int cores = 1;                 // this process may use
  std::string omp_num_threads;   // as set in the environment; "" if not
  std::string omp_wait_policy;   // "PASSIVE" keeps waiting threads from burning the cores of others
  bool parallel_for_is_parallel = false;  // our own files were built with OpenMP
};
ThreadFacts thread_facts();

}  // namespace chassis
