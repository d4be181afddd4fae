// Threads that leave signals to the rest of the program.
#pragma once

#include <functional>
#include <thread>

namespace chassis {

// Starts a thread with all signals blocked but those of its own faults: the main thread receives them.
// them.
std::thread thread_without_signals(std::function<void()> body);

}  // namespace chassis
