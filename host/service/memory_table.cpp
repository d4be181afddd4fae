// chassis.memory/1.
#include "chassis/service/memory.h"

#include <c10/core/CPUAllocator.h>

#include "host/plugin/status.hpp"
#include "host/service/handle.hpp"
#include "host/service/memory.hpp"
#include "host/service/tables.hpp"

namespace chassis {
namespace {

class MemoryTable final : public Table {
 public:
  explicit MemoryTable(const TableContext& context) : owner_(context.memory_owner) {
    table_.struct_size = sizeof table_;
    table_.impl = this;
    table_.alloc = [](const chassis_memory_t* t, uint64_t bytes, void** out) {
      return guarded([&] {
        translate_errors([&] {
          const MemoryTag tag(MemoryCategory::kWorkspace, static_cast<const MemoryTable*>(t->impl)->owner_);
          *out = c10::GetCPUAllocator()->raw_allocate(bytes ? bytes : 1);
        });
      });
    };
    table_.free = [](const chassis_memory_t*, void* data) {
      if (data) c10::GetCPUAllocator()->raw_deallocate(data);
    };
    table_.usage = [](const chassis_memory_t*, uint32_t category, uint64_t* live_bytes, uint64_t* peak_bytes) {
      const MemoryUsage usage = memory_usage();
      const MemoryUsage::Part part =
          category < kNumMemoryCategories ? usage.categories[category] : MemoryUsage::Part{};
      if (live_bytes) *live_bytes = part.live_bytes;
      if (peak_bytes) *peak_bytes = part.peak_bytes;
    };
  }
  const void* get() const override { return &table_; }

 private:
  uint16_t owner_;
  chassis_memory_t table_{};
};

}  // namespace

std::unique_ptr<Table> make_memory_table(const TableContext& context) { return std::make_unique<MemoryTable>(context); }

}  // namespace chassis
