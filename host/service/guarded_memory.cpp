// Buffers mapped beside a page without access, and the handler of SIGSEGV that reports an access to it.
#include "host/service/guarded_memory.hpp"

#include <fmt/core.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

namespace chassis {
namespace {

constexpr size_t kGuardPage = 4096;
constexpr size_t kAlignment = 64;
constexpr int kFresh = 0xFF;    // a NaN in every floating type
constexpr int kWatched = 0x5C;  // between the end of a buffer and the end of its last page
constexpr size_t kMaxFound = 20;

size_t rounded(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

struct GuardedBlock {
  char* mapped = nullptr;
  size_t mapped_bytes = 0;
  size_t num_bytes = 0;      // as asked for
  size_t watched_bytes = 0;  // after the buffer, filled with kWatched
};

// Never freed. The handler of SIGSEGV reads it without the lock, in a process that is about to end.
struct State {
  std::atomic<bool> is_on = false;
  MemoryGuard guard = MemoryGuard::kAfter;
  std::mutex mutex;
  std::map<const void*, GuardedBlock> blocks;
  std::vector<std::string> found;
  struct sigaction previous {};
};
State& state() {
  static auto* instance = new State;
  return *instance;
}

std::string overwritten_text(const char* data, const GuardedBlock& block) {
  const char* watched = data + block.num_bytes;
  size_t end = block.watched_bytes;
  while (end > 0 && static_cast<unsigned char>(watched[end - 1]) == kWatched) --end;
  return end == 0 ? "" : fmt::format("wrote {} bytes past the end of a buffer of {} bytes", end, block.num_bytes);
}

void note_overwritten(State& s, const void* data, const GuardedBlock& block) {
  const std::string text = overwritten_text(static_cast<const char*>(data), block);
  if (!text.empty() && s.found.size() < kMaxFound && std::find(s.found.begin(), s.found.end(), text) == s.found.end())
    s.found.push_back(text);
}

void on_fault(int number, siginfo_t* info, void*) {
  State& s = state();
  const auto* at = static_cast<const char*>(info->si_addr);
  for (const auto& [data, block] : s.blocks) {
    if (at < block.mapped || at >= block.mapped + block.mapped_bytes) continue;
    std::array<char, 160> text;
    const auto* begin = static_cast<const char*>(data);
    const bool before = at < begin;
    // 1 for the byte next to the buffer.
    const auto distance = before ? begin - at : at - (begin + block.num_bytes) + 1;
    const auto end =
        fmt::format_to_n(text.data(), text.size(), "read or wrote {} byte{} {} of a buffer of {} bytes\n", distance,
                         distance == 1 ? "" : "s", before ? "before the start" : "past the end", block.num_bytes);
    if (::write(STDERR_FILENO, text.data(), std::min(end.size, text.size())) < 0) break;
    break;
  }
  ::sigaction(number, &s.previous, nullptr);  // the access is repeated and reaches the previous handler
}

}  // namespace

void guard_memory(MemoryGuard guard) {
  State& s = state();
  s.guard = guard;
  if (s.is_on.exchange(true)) return;
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = static_cast<int>(SA_SIGINFO | SA_ONSTACK);
  ::sigaction(SIGSEGV, &action, &s.previous);
}

bool memory_is_guarded() { return state().is_on.load(std::memory_order_relaxed); }

void* allocate_guarded(size_t num_bytes) {
  State& s = state();
  const size_t used = rounded(std::max<size_t>(num_bytes, 1), s.guard == MemoryGuard::kAfter ? kAlignment : kGuardPage);
  const size_t whole = rounded(used, kGuardPage);
  GuardedBlock block{nullptr, whole + kGuardPage, num_bytes, used - num_bytes};
  void* mapped = ::mmap(nullptr, block.mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  block.mapped = static_cast<char*>(mapped);
  const bool behind = s.guard == MemoryGuard::kAfter;
  ::mprotect(block.mapped + (behind ? whole : 0), kGuardPage, PROT_NONE);
  char* data = behind ? block.mapped + whole - used : block.mapped + kGuardPage;
  std::memset(data, kFresh, num_bytes);
  std::memset(data + num_bytes, kWatched, block.watched_bytes);
  const std::lock_guard lock(s.mutex);
  s.blocks[data] = block;
  return data;
}

bool is_guarded(const void* data) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return s.blocks.contains(data);
}

bool free_guarded(void* data) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto found = s.blocks.find(data);
  if (found == s.blocks.end()) return false;
  note_overwritten(s, data, found->second);
  ::munmap(found->second.mapped, found->second.mapped_bytes);
  s.blocks.erase(found);
  return true;
}

std::vector<std::string> overwritten_guards() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  for (const auto& [data, block] : s.blocks) note_overwritten(s, data, block);
  return s.found;
}

}  // namespace chassis
