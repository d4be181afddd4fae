// How the threads of LibTorch's OpenMP library (GNU's libgomp) wait for the next parallel region. A step has hundreds
// of regions; a thread that sleeps after each of them is woken by the kernel, which takes longer than many regions do.
// So if each thread has a core of its own, it first stays awake for some iterations of a loop.
#pragma once

#include <cstdint>

namespace chassis {

// The library reads these variables when it is loaded. If the user has set one of them, the program adds none.
inline constexpr char kWaitPolicyVariable[] = "OMP_WAIT_POLICY=", kSpinCountVariable[] = "GOMP_SPINCOUNT=";
// Iterations before a thread sleeps, which take 5 to 30 us. The policy limits them to 100 if a process has more threads
// than cores.
inline constexpr char kWaitPolicy[] = "OMP_WAIT_POLICY=PASSIVE", kSpinCount[] = "GOMP_SPINCOUNT=3000";
// Marks that the program has added them.
inline constexpr char kWaitMarker[] = "CHASSIS_THREAD_WAIT=brief";

// [control] Restarts the program with threads that sleep at once, if it has added the variables itself and the ranks of
// this machine have more threads than cores. Call it before other threads or processes are started and before anything
// is written; does not return if it restarts.
void sleep_at_once_if_cores_are_shared(int64_t threads_of_a_rank, int64_t num_ranks);

}  // namespace chassis
