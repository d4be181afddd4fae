// chassis.memory/1: counted memory for plugins.
#include "chassis/service/memory.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "host/base/device_types.hpp"
#include "host/base/error.hpp"
#include "host/plugin/status.hpp"
#include "host/plugin/thread_role.hpp"
#include "host/service/device.hpp"
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
    table_.alloc_on = [](const chassis_memory_t* t, uint32_t type, int32_t index, uint32_t flags, uint64_t bytes,
                         void** out) {
      assert_thread_role(ThreadRole::kStep, "chassis.memory/1 alloc_on");
      return guarded([&] { *out = self(t).alloc_on({static_cast<Device::Type>(type), index}, flags, bytes); });
    };
    table_.free_on = [](const chassis_memory_t* t, void* data) {
      const std::lock_guard lock(self(t).mutex_);
      self(t).blocks_.erase(data);
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
  static MemoryTable& self(const chassis_memory_t* t) { return *static_cast<MemoryTable*>(t->impl); }

  void* alloc_on(Device device, uint32_t flags, uint64_t bytes) {
    const DeviceSpec* const spec = find_device_spec(static_cast<uint32_t>(device.type));
    if (!spec || !spec->has_memory)
      throw plugin_error("device type " + std::to_string(static_cast<uint32_t>(device.type)) + " has no memory; only " +
                         device_titles([](const DeviceSpec& each) { return each.has_memory; }, " and ") + " have");
    if ((flags & ~CHASSIS_MEMORY_PINNED) != 0)
      throw plugin_error("memory flags " + std::to_string(flags) + " are unknown");
    const std::vector<int64_t> sizes = {static_cast<int64_t>(std::max<uint64_t>(bytes, 1))};
    const MemoryTag tag(MemoryCategory::kWorkspace, owner_);
    const bool pinned = (flags & CHASSIS_MEMORY_PINNED) != 0 && spec->pins_host_memory;
    Tensor block = pinned ? pinned_tensor(sizes, Dtype::u8) : Tensor::empty(sizes, Dtype::u8, device);
    void* data = block.data();
    const std::lock_guard lock(mutex_);
    blocks_[data] = std::move(block);
    return data;
  }

  uint16_t owner_;
  std::mutex mutex_;
  std::map<void*, Tensor> blocks_;
  chassis_memory_t table_{};
};

}  // namespace

std::unique_ptr<Table> make_memory_table(const TableContext& context) { return std::make_unique<MemoryTable>(context); }

}  // namespace chassis
