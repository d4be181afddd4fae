// The CPU allocator of LibTorch, counting and caching: who holds how many bytes, for what, and what was the peak.
// Blocks from 1 MiB on go through free lists instead of back to the system; from 4 MiB on they use huge pages.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "chassis/service/memory.h"
#include "host/service/tensor.hpp"

namespace chassis {

class MemoryAccount;

enum class MemoryCategory : uint16_t {
  kOther = CHASSIS_MEMORY_OTHER,
  kParameters = CHASSIS_MEMORY_PARAMETERS,
  kGradients = CHASSIS_MEMORY_GRADIENTS,
  kOptimizer = CHASSIS_MEMORY_OPTIMIZER,
  kActivations = CHASSIS_MEMORY_ACTIVATIONS,
  kWorkspace = CHASSIS_MEMORY_WORKSPACE,
  kCommunication = CHASSIS_MEMORY_COMMUNICATION,
  kCheckpoint = CHASSIS_MEMORY_CHECKPOINT,
  kData = CHASSIS_MEMORY_DATA,
  kLogits = CHASSIS_MEMORY_LOGITS,
  kGathered = CHASSIS_MEMORY_GATHERED,
};
inline constexpr size_t kNumMemoryCategories = CHASSIS_MEMORY_NUM_CATEGORIES;
std::string_view memory_category_name(MemoryCategory category);  // "activations"

struct MemoryUsage {
  struct Part {
    uint64_t live_bytes = 0;
    uint64_t peak_bytes = 0;           // of this part alone
    uint64_t bytes_at_total_peak = 0;  // these add up to peak_bytes of the whole
  };
  std::array<Part, kNumMemoryCategories> categories;
  uint64_t live_bytes = 0;
  uint64_t peak_bytes = 0;
  uint64_t cached_bytes = 0;  // held by the free lists
  uint64_t system_bytes = 0;  // live and cached, as reserved from the system
  uint64_t peak_system_bytes = 0;

  const Part& of(MemoryCategory category) const { return categories[static_cast<size_t>(category)]; }
};

struct PluginMemory {
  std::string plugin;  // "" is the host
  uint64_t live_bytes = 0;
  uint64_t peak_bytes = 0;
};

// What an allocation counts for.
struct MemoryLabel {
  uint16_t category = 0;
  uint16_t owner = 0;
};

// Makes it LibTorch's CPU allocator; once, before the first tensor that is to be counted. Later calls do nothing.
void install_memory_allocator();

MemoryUsage memory_usage();
std::vector<PluginMemory> memory_by_plugin();
// Peaks start again from what is live now.
void reset_peak_memory();
// Gives the free lists back to the system.
void drop_memory_cache();
// The most that the free lists hold, 4 GiB at first; 0 turns them off.
void set_memory_cache_bytes(uint64_t bytes);
// Allocations that would exceed this many live bytes fail with out of memory; 0: no limit.
void set_memory_limit(uint64_t bytes);

// A number that stands for a plugin in the tags; the same for the same name. 0 is the host.
uint16_t memory_owner(std::string_view plugin);

// While it lives, allocations of this thread count for the category, and for the owner if one is given.
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

// Bytes that no allocator gave out, counted while it lives: as memory of the process, or of meta_memory.hpp's devices.
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

// Counts the tensor's storage for another category from now on; nothing if it came from elsewhere.
void retag_memory(const Tensor& tensor, MemoryCategory category);

}  // namespace chassis
