// The allocator of meta tensors: it counts bytes and allocates none.
#include "host/service/meta_memory.hpp"

#include <ATen/core/TensorBody.h>
#include <c10/core/Allocator.h>

#include <array>
#include <mutex>

#include "host/base/error.hpp"
#include "host/service/handle.hpp"
#include "host/service/memory_account.hpp"

namespace chassis {
namespace {

constexpr int kNumDevices = 2;
thread_local int current_index = 0;

// Never destroyed: tensors may outlive main.
std::array<MemoryAccount, kNumDevices>& accounts() {
  static auto* instance = new std::array<MemoryAccount, kNumDevices>;
  return *instance;
}

MemoryAccount& account_of(int index) { return accounts()[static_cast<size_t>(index)]; }

// The context of a block, which has no data.
struct CountedBlock {
  int64_t num_bytes;
  MemoryLabel label;
  int index;

  CountedBlock(uint64_t bytes, MemoryLabel label, int index)
      : num_bytes(static_cast<int64_t>(bytes)), label(label), index(index) {
    account_of(index).add(num_bytes, label);
  }
  ~CountedBlock() { account_of(index).add(-num_bytes, label); }
  void relabel(MemoryCategory category) {
    account_of(index).add(-num_bytes, label);
    label.category = static_cast<uint16_t>(category);
    account_of(index).add(num_bytes, label);
  }
};

void release(void* counted) { delete static_cast<CountedBlock*>(counted); }

class MetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t num_bytes) override {
    const int index = current_index;
    return {nullptr, new CountedBlock(num_bytes, current_memory_label(), index), &release,
            c10::Device(c10::kMeta, static_cast<c10::DeviceIndex>(index))};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {}
};

int index_of(Device device) {
  CHASSIS_CHECK(device.index >= 0 && device.index < kNumDevices,
                "there is no device meta:" + std::to_string(device.index));
  return device.index;
}

}  // namespace

void install_meta_allocator() {
  static std::once_flag once;
  std::call_once(once, [] { c10::SetAllocator(c10::kMeta, new MetaAllocator, 100); });
}

MemoryUsage meta_memory_usage(Device device) { return account_of(index_of(device)).usage(); }

void reset_peak_meta_memory() {
  for (MemoryAccount& account : accounts()) account.restart_peaks();
}

MemoryAccount& meta_memory_account(Device device) { return account_of(index_of(device)); }

MetaDeviceScope::MetaDeviceScope(Device device) : previous_(current_index) {
  if (device.type == Device::Type::kMeta) current_index = index_of(device);
}
MetaDeviceScope::~MetaDeviceScope() { current_index = previous_; }

bool retag_meta_memory(chassis_tensor_t tensor, MemoryCategory category) {
  const at::Tensor& at = tensor_of(tensor);
  if (!at.is_meta()) return false;
  const c10::DataPtr& data = at.storage().data_ptr();
  if (data.get_deleter() != &release) return false;
  static_cast<CountedBlock*>(data.get_context())->relabel(category);
  return true;
}

}  // namespace chassis
