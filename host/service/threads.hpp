// The number of threads that LibTorch computes with.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace chassis {

// [control] Sets it for the process. Call it before the first computation.
void set_threads(int count);
// [control] Starts as many threads as LibTorch will, which end at once. Throws kOutOfMemory if one cannot start, with
// the limits and the number that could: OpenMP ends the process with exit code 1 and a message of its own.
void check_threads_start();
// [control] Calls a function of MKL's vector math once; LibTorch uses these functions for sin, tanh, erf and the like
// on the CPU. Rationale: the first call in a process initializes all of them and is not thread-safe (LibTorch 2.11):
// when two threads made it at once, one computed its share with a relative error of 2e-5, in 6 of 100 starts on a busy
// machine. Called when a plugin instance gets its services.
void initialize_vector_math();
int num_threads();
// Calls body(begin, end) over disjoint chunks that cover [0, count), at least `grain` long except the last, on these
// threads. If bodies throw, rethrows one of the exceptions.
void run_parallel(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body);
// The environment variable OMP_NUM_THREADS; empty if it is not set.
std::string omp_num_threads();
inline constexpr int kMaxThreads = 4096;
// [any] The number of threads of one of `num_ranks` ranks of this machine if the configuration does not say: the number
// in OMP_NUM_THREADS, else the rank's part of the cores that this process may use.
int default_num_threads(int64_t num_ranks);
// The number in such a text, or the first of a list such as "4,2"; nothing if one of them is not between 1 and
// kMaxThreads.
std::optional<int> first_num_threads(std::string_view text);

}  // namespace chassis
