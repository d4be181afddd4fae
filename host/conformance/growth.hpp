// What is left behind by doing something again and again: memory of malloc, and threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace chassis {

// Bytes of malloc in use: exact, where it is the process's own.
int64_t heap_bytes();

// Calls `once` a few times for what is made at first and kept, then `times` times. Why it does not end with what it
// began with, such as "20 steps left 20971520 bytes of malloc in use, at most 327680 are allowed"; empty if it does.
std::string growth_of(const std::string& what, int times, const std::function<void()>& once);

}  // namespace chassis
