#pragma once

#include <functional>
#include <thread>

namespace chassis {

// A thread that starts with all signals blocked: they are for the threads of the program.
std::thread thread_without_signals(std::function<void()> body);

}  // namespace chassis
