// CPU buffers beside a page that nobody may touch, for conformance tests: a kernel that writes or reads one element too
// far ends there, and is told. LibTorch's allocator serves buffers from here once guards are on (memory.cpp).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace chassis {

enum class MemoryGuard {
  kBehind,  // buffers end at the page, rounded up to 64 bytes; the bytes between are watched
  kBefore,  // buffers begin behind the page; the bytes up to the end of their last page are watched
};

// From now on, for the whole life of the process: buffers of LibTorch's CPU allocator are guarded and start as NaNs,
// and a touch of a guard page is told on stderr before the process ends as it would have.
void guard_memory(MemoryGuard guard);
bool memory_is_guarded();

// While memory_is_guarded(). 64-byte aligned.
void* allocate_guarded(size_t num_bytes);
bool is_guarded(const void* data);
// False if it is none of these.
bool free_guarded(void* data);
// Buffers that were written beyond their ends, those that are still there included: "4 bytes behind a buffer of 148
// bytes".
std::vector<std::string> overwritten_guards();

}  // namespace chassis
