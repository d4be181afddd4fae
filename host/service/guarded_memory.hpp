// CPU buffers beside a guard page, for conformance tests: a kernel that reads or writes past its buffer ends the
// process with a report. LibTorch's allocator (memory.cpp) takes its buffers from here once guards are on.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace chassis {

enum class MemoryGuard {
  kAfter,   // the guard page follows the buffer, rounded up to 64 bytes; writes to the bytes between are detected
  kBefore,  // the guard page precedes the buffer; writes to the rest of the buffer's last page are detected
};

// From now on until the process ends, buffers of LibTorch's CPU allocator are guarded and filled with NaNs. An access
// to a guard page is reported on stderr, before SIGSEGV has its usual effect.
void guard_memory(MemoryGuard guard);
bool memory_is_guarded();

// Requires memory_is_guarded(). 64-byte aligned.
void* allocate_guarded(size_t num_bytes);
bool is_guarded(const void* data);
// Returns false if `data` is not guarded.
bool free_guarded(void* data);
// Reports of writes past the ends of buffers, freed or not: "wrote 4 bytes past the end of a buffer of 148 bytes".
std::vector<std::string> overwritten_guards();

}  // namespace chassis
