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

constexpr int kNumPlaces = 2;
thread_local int current_place = 0;

// Never destroyed: tensors may outlive main.
std::array<MemoryAccount, kNumPlaces>& accounts() {
  static auto* instance = new std::array<MemoryAccount, kNumPlaces>;
  return *instance;
}

MemoryAccount& account_of(int place) { return accounts()[static_cast<size_t>(place)]; }

// The context of a block without data.
struct Counted {
  int64_t num_bytes;
  MemoryLabel label;
  int place;

  Counted(uint64_t bytes, MemoryLabel label, int place)
      : num_bytes(static_cast<int64_t>(bytes)), label(label), place(place) {
    account_of(place).add(num_bytes, label);
  }
  ~Counted() { account_of(place).add(-num_bytes, label); }
  void relabel(MemoryCategory category) {
    account_of(place).add(-num_bytes, label);
    label.category = static_cast<uint16_t>(category);
    account_of(place).add(num_bytes, label);
  }
};

void release(void* counted) { delete static_cast<Counted*>(counted); }

class MetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t num_bytes) override {
    const int place = current_place;
    return {nullptr, new Counted(num_bytes, current_memory_label(), place), &release,
            c10::Device(c10::kMeta, static_cast<c10::DeviceIndex>(place))};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {}
};

int place_of(Device device) {
  CHASSIS_CHECK(device.index >= 0 && device.index < kNumPlaces, "there is no " + device.text());
  return device.index;
}

}  // namespace

void install_meta_allocator() {
  static std::once_flag once;
  std::call_once(once, [] { c10::SetAllocator(c10::kMeta, new MetaAllocator, 100); });
}

MemoryUsage meta_memory_usage(Device device) { return account_of(place_of(device)).usage(); }

void reset_peak_meta_memory() {
  for (MemoryAccount& account : accounts()) account.restart_peaks();
}

MemoryAccount& meta_memory_account(Device device) { return account_of(place_of(device)); }

MetaPlace::MetaPlace(Device device) : previous_(current_place) {
  if (device.type == Device::Type::kMeta) current_place = place_of(device);
}
MetaPlace::~MetaPlace() { current_place = previous_; }

bool retag_meta_memory(const Tensor& tensor, MemoryCategory category) {
  const at::Tensor& at = tensor_of(tensor.handle());
  if (!at.is_meta()) return false;
  const c10::DataPtr& data = at.storage().data_ptr();
  if (data.get_deleter() != &release) return false;
  static_cast<Counted*>(data.get_context())->relabel(category);
  return true;
}

}  // namespace chassis
