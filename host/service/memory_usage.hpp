// Categories of memory, and the counts of an allocator.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "chassis/service/memory.h"

namespace chassis {

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
    uint64_t peak_bytes = 0;           // peak of this part alone
    uint64_t bytes_at_total_peak = 0;  // at the peak of the total; those of all parts add up to MemoryUsage::peak_bytes
  };
  std::array<Part, kNumMemoryCategories> categories;
  uint64_t live_bytes = 0;
  uint64_t peak_bytes = 0;
  uint64_t cached_bytes = 0;  // in the free lists
  uint64_t system_bytes = 0;  // reserved from the system, live and cached
  uint64_t peak_system_bytes = 0;

  const Part& of(MemoryCategory category) const { return categories[static_cast<size_t>(category)]; }
};

struct PluginMemory {
  std::string plugin;  // "" for the host
  uint64_t live_bytes = 0;
  uint64_t peak_bytes = 0;
};

// The category and the owner that an allocation is counted under.
struct MemoryLabel {
  uint16_t category = 0;
  uint16_t owner = 0;
};

}  // namespace chassis
