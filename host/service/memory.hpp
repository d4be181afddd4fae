// LibTorch's CPU allocator. It counts live and peak bytes by category and by plugin. Blocks of 1 MiB or more are kept
// in free lists instead of being returned to the system; blocks of 4 MiB or more use huge pages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "host/service/memory_usage.hpp"
#include "host/service/step_place.hpp"
#include "host/service/tensor.hpp"

namespace chassis {

class MemoryAccount;

// The state when an allocation of the host last failed, in the allocator below or in operator new.
struct MemoryFailure {
  uint64_t requested_bytes = 0;  // 0: operator new does not say
  MemoryCategory category = MemoryCategory::kOther;
  uint64_t limit_bytes = 0;  // set by set_memory_limit(), if that was the reason
  MemoryUsage usage;         // cached_bytes: before cached blocks were returned to the system
  std::vector<PluginMemory> plugins;
  std::string plugin;  // the plugin that asked
  StepPlace place;     // without the node
  std::string node;    // its name
  std::string call;    // as describe_call()
  int64_t step = 0;
};
// [any] Empty if no allocation has failed.
std::optional<MemoryFailure> last_memory_failure();

// Installs the allocator in LibTorch. Call it before the first tensor that is to be counted. Later calls do nothing.
void install_memory_allocator();

MemoryUsage memory_usage();
std::vector<PluginMemory> memory_by_plugin();
// Sets the peaks to the bytes that are live now.
void reset_peak_memory();
// Returns all cached blocks to the system.
void drop_memory_cache();
// Set it if steps have tensors of different sizes. A cached block of up to twice the size is then used before cached
// blocks are returned to the system to make room for a new one.
void set_memory_sizes_vary(bool vary);
// Allocations that would exceed this many live bytes throw an out-of-memory error; 0 means no limit.
void set_memory_limit(uint64_t bytes);

// The number of a plugin for MemoryTag; the same for the same name. 0 for the host, and for plugins after the 255th.
uint16_t memory_owner(std::string_view plugin);

// In its scope, allocations of this thread are counted under the category, and under the owner if one is given.
class MemoryTag {
 public:
  explicit MemoryTag(MemoryCategory category);
  MemoryTag(MemoryCategory category, uint16_t owner);
  ~MemoryTag();
  MemoryTag(const MemoryTag&) = delete;
  MemoryTag& operator=(const MemoryTag&) = delete;

 private:
  MemoryLabel previous_;
};

// While it exists, counts bytes that come from no allocator, of the process or of a device of meta_memory.hpp.
class MemoryCharge {
 public:
  MemoryCharge(uint64_t num_bytes, MemoryCategory category);
  MemoryCharge(uint64_t num_bytes, MemoryCategory category, Device meta);
  ~MemoryCharge();
  MemoryCharge(const MemoryCharge&) = delete;
  MemoryCharge& operator=(const MemoryCharge&) = delete;

 private:
  MemoryCharge(MemoryAccount& account, uint64_t num_bytes, MemoryCategory category);
  MemoryAccount& account_;
  int64_t num_bytes_;
  MemoryLabel label_;
};

// Counts the tensor's storage under another category from now on. Does nothing if it is from another allocator.
void retag_memory(const Tensor& tensor, MemoryCategory category);

}  // namespace chassis
