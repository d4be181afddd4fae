// The allocators. As in LibTorch's, memory that is freed stays with its stream, and is used again by the same stream
// without a wait. It is filled with 0xFF, which is NaN in every floating type, as soon as that stream and all recorded
// ones are done with it.
#include "tests/support/simulated_device/memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "tests/support/simulated_device/settings.hpp"
#include "tests/support/simulated_device/stream.hpp"

namespace simulated_device {
namespace {

constexpr uint64_t kAlignment = 512;
constexpr int kPoison = 0xFF;

struct Block {
  uint64_t num_bytes = 0;
  Stream* stream = nullptr;
  std::vector<Stream*> users;  // recorded
};

class Memory {
 public:
  explicit Memory(int device) : device_(device), size_(settings().memory_bytes) {
    const int file = memfd_create("simulated device", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, static_cast<off_t>(size_)) != 0) throw std::bad_alloc();
    begin_ = map(file, PROT_NONE);
    for_kernels_ = map(file, PROT_READ | PROT_WRITE);
    close(file);
    unused_[0] = size_;
  }

  bool contains(const void* memory) const { return memory >= begin_ && memory < begin_ + size_; }
  void* for_kernels(const void* memory) const { return for_kernels_ + offset_of(memory); }
  void set_open(bool is_open) const { mprotect(begin_, size_, is_open ? PROT_READ | PROT_WRITE : PROT_NONE); }

  void* allocate(uint64_t num_bytes, Stream& stream) {
    const uint64_t rounded = (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
    std::unique_lock lock(mutex_);
    const bool fails = fault().is_exactly("allocation");
    release_pending();
    std::optional<uint64_t> offset;
    if (!fails) offset = find(rounded, stream);
    if (!fails && !offset) {
      lock.unlock();
      synchronize(device_);
      lock.lock();
      ++stats_.num_alloc_retries;
      release_pending();
      release_cached();
      offset = find(rounded, stream);
    }
    if (!offset) {
      ++stats_.num_ooms;
      const int64_t free = static_cast<int64_t>(size_) - stats_.reserved_bytes[0].current;
      lock.unlock();
      TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", num_bytes, " bytes. GPU ",
                       device_, " has a total capacity of ", size_, " bytes of which ", free, " bytes are free.");
    }
    blocks_[*offset] = {rounded, &stream, {}};
    stats_.allocation[0].increase(1);
    stats_.active[0].increase(1);
    stats_.allocated_bytes[0].increase(rounded);
    stats_.active_bytes[0].increase(rounded);
    stats_.requested_bytes[0].increase(num_bytes);
    return begin_ + *offset;
  }

  void free(void* memory) {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(offset_of(memory));
    const auto [offset, block] = *found;
    blocks_.erase(found);
    stats_.allocation[0].decrease(1);
    stats_.allocated_bytes[0].decrease(block.num_bytes);
    if (block.users.empty()) return cache(offset, block);
    std::vector<std::shared_ptr<Mark>> marks;
    for (Stream* user : block.users) marks.push_back(mark_on(*user));
    pending_.push_back({offset, block, std::move(marks)});
  }

  void record(const void* memory, Stream& stream) {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(offset_of(memory));
    if (found == blocks_.end() || found->second.stream == &stream) return;
    std::vector<Stream*>& users = found->second.users;
    if (std::ranges::find(users, &stream) == users.end()) users.push_back(&stream);
  }

  void empty_cache() {
    synchronize(device_);
    const std::lock_guard lock(mutex_);
    release_pending();
    release_cached();
  }

  c10::CachingDeviceAllocator::DeviceStats stats() {
    const std::lock_guard lock(mutex_);
    release_pending();
    return stats_;
  }
  template <typename Change>
  void change_stats(Change&& change) {
    const std::lock_guard lock(mutex_);
    for (auto* stat : {&stats_.allocation, &stats_.active, &stats_.segment, &stats_.allocated_bytes,
                       &stats_.reserved_bytes, &stats_.active_bytes, &stats_.requested_bytes})
      for (auto& each : *stat) change(each);
  }
  std::pair<size_t, size_t> info() {
    const std::lock_guard lock(mutex_);
    return {size_ - static_cast<size_t>(stats_.reserved_bytes[0].current), size_};
  }

 private:
  struct Pending {
    uint64_t offset;
    Block block;
    std::vector<std::shared_ptr<Mark>> marks;
  };

  char* map(int file, int protection) const {
    void* const begin = mmap(nullptr, size_, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (begin == MAP_FAILED) throw std::bad_alloc();
    return static_cast<char*>(begin);
  }
  uint64_t offset_of(const void* memory) const {
    return static_cast<uint64_t>(static_cast<const char*>(memory) - begin_);
  }

  // Memory that this stream has freed, else some that was never used, or nothing.
  std::optional<uint64_t> find(uint64_t num_bytes, Stream& stream) {
    if (const auto found = cached_.find({&stream, num_bytes}); found != cached_.end()) {
      const uint64_t offset = found->second;
      cached_.erase(found);
      return offset;
    }
    for (auto [offset, size] : unused_) {
      if (size < num_bytes) continue;
      unused_.erase(offset);
      if (size > num_bytes) unused_[offset + num_bytes] = size - num_bytes;
      stats_.reserved_bytes[0].increase(num_bytes);
      stats_.segment[0].increase(1);
      std::memset(for_kernels_ + offset, kPoison, num_bytes);
      return offset;
    }
    return std::nullopt;
  }

  // The stream does not come to the fill before its tasks that use the memory.
  void cache(uint64_t offset, const Block& block) {
    stats_.active[0].decrease(1);
    stats_.active_bytes[0].decrease(block.num_bytes);
    char* const begin = for_kernels_ + offset;
    block.stream->run_or_enqueue([begin, size = block.num_bytes] { std::memset(begin, kPoison, size); });
    cached_.emplace(std::pair(block.stream, block.num_bytes), offset);
  }

  void release_pending() {
    std::erase_if(pending_, [&](const Pending& one) {
      if (!std::ranges::all_of(one.marks, [](const auto& mark) { return mark->is_reached(); })) return false;
      cache(one.offset, one.block);
      return true;
    });
  }

  void release_cached() {
    for (const auto& [key, offset] : cached_) {
      stats_.reserved_bytes[0].decrease(key.second);
      stats_.segment[0].decrease(1);
      auto place = unused_.emplace(offset, key.second).first;
      if (const auto next = std::next(place); next != unused_.end() && place->first + place->second == next->first) {
        place->second += next->second;
        unused_.erase(next);
      }
      if (place == unused_.begin()) continue;
      if (const auto previous = std::prev(place); previous->first + previous->second == place->first) {
        previous->second += place->second;
        unused_.erase(place);
      }
    }
    cached_.clear();
  }

  const int device_;
  const uint64_t size_;
  char *begin_ = nullptr, *for_kernels_ = nullptr;
  std::mutex mutex_;
  std::map<uint64_t, uint64_t> unused_;  // offset, size
  std::multimap<std::pair<Stream*, uint64_t>, uint64_t> cached_;
  std::map<uint64_t, Block> blocks_;  // by offset
  std::vector<Pending> pending_;
  c10::CachingDeviceAllocator::DeviceStats stats_;
};

// Never destroyed: tensors may live longer.
std::vector<Memory*>& memories() {
  static auto* const memories = [] {
    auto* const all = new std::vector<Memory*>;
    for (int device = 0; device < num_devices(); ++device) all->push_back(new Memory(device));
    return all;
  }();
  return *memories;
}

Memory& memory_of(c10::DeviceIndex device) {
  return *memories().at(static_cast<size_t>(device < 0 ? current_device() : device));
}

void free_device(void* memory) {
  if (const int device = device_of_memory(memory); device >= 0)
    memory_of(static_cast<c10::DeviceIndex>(device)).free(memory);
}

class DeviceAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t num_bytes) override {
    const auto device = static_cast<c10::DeviceIndex>(current_device());
    const c10::Device where(c10::kCUDA, device);
    if (num_bytes == 0) return {nullptr, nullptr, &free_device, where};
    void* const memory = memory_of(device).allocate(num_bytes, current_stream(device));
    return {memory, memory, &free_device, where};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_device; }
  void copy_data(void* to, const void* from, size_t num_bytes) const override {
    Stream& stream = current_stream(current_device());
    stream.enqueue([=] { std::memcpy(address_for_kernels(to), address_for_kernels(from), num_bytes); });
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    for (Memory* memory : memories()) memory->empty_cache();
  }
  void recordStream(const c10::DataPtr& memory, c10::Stream stream) override {
    const int device = device_of_memory(memory.get());
    if (device >= 0)
      memory_of(static_cast<c10::DeviceIndex>(device))
          .record(memory.get_context(), stream_of(stream.device_index(), stream.id()));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    return memory_of(device).stats();
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    memory_of(device).change_stats([](auto& stat) { stat.reset_accumulated(); });
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    memory_of(device).change_stats([](auto& stat) { stat.reset_peak(); });
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override { return memory_of(device).info(); }
};

// Both sides may touch page-locked memory. Copies in flight hold the tensors that they use.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t num_bytes) override {
    if (num_bytes == 0) return {nullptr, nullptr, &free_pinned, c10::kCPU};
    void* const memory = ::operator new (num_bytes, std::align_val_t{kAlignment});
    std::memset(memory, kPoison, num_bytes);
    const std::lock_guard lock(mutex_);
    ranges_[static_cast<char*>(memory)] = num_bytes;
    return {memory, memory, &free_pinned, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, size_t num_bytes) const override { std::memcpy(to, from, num_bytes); }

  bool contains(const void* memory) {
    const std::lock_guard lock(mutex_);
    const auto* const byte = static_cast<const char*>(memory);
    auto after = ranges_.upper_bound(const_cast<char*>(byte));
    return after != ranges_.begin() && byte < std::prev(after)->first + std::prev(after)->second;
  }

 private:
  static void free_pinned(void* memory);

  std::mutex mutex_;
  std::map<char*, size_t> ranges_;
};

PinnedAllocator& pinned() {
  static auto* const allocator = new PinnedAllocator;
  return *allocator;
}

void PinnedAllocator::free_pinned(void* memory) {
  if (memory == nullptr) return;
  {
    const std::lock_guard lock(pinned().mutex_);
    pinned().ranges_.erase(static_cast<char*>(memory));
  }
  ::operator delete (memory, std::align_val_t{kAlignment});
}

}  // namespace

c10::DeviceAllocator& device_allocator() {
  static auto* const allocator = new DeviceAllocator;
  return *allocator;
}
c10::Allocator& pinned_allocator() { return pinned(); }
bool is_pinned(const void* memory) { return pinned().contains(memory); }

void* address_for_kernels(const void* memory) {
  const int device = device_of_memory(memory);
  if (device < 0) return const_cast<void*>(memory);
  return memory_of(static_cast<c10::DeviceIndex>(device)).for_kernels(memory);
}

int device_of_memory(const void* memory) {
  for (size_t device = 0; device < memories().size(); ++device)
    if (memories()[device]->contains(memory)) return static_cast<int>(device);
  return -1;
}

}  // namespace simulated_device

extern "C" {

// For fakes of libraries that read and write the memory of a device, such as NCCL's.
void* simulated_device_address_for_kernels(const void* memory) { return simulated_device::address_for_kernels(memory); }

// The current device of the calling thread, for fakes of the CUDA runtime. False if there is no such device.
int simulated_device_current() { return simulated_device::current_device(); }
bool simulated_device_set_current(int device) {
  if (device < 0 || device >= simulated_device::num_devices()) return false;
  simulated_device::set_current_device(device);
  return true;
}

// Runs a kernel of a plugin when the stream has come to it. The memory of all devices is open to it, and to every other
// thread, at its own addresses. False if the stream is not of the current device: CUDA refuses such a launch.
bool simulated_device_run_kernel(CUstream_st* stream, void (*kernel)(void*), void* argument) {
  using namespace simulated_device;
  if (stream != nullptr && static_cast<Stream*>(stream)->device() != current_device()) return false;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (stream != nullptr) static_cast<Stream*>(stream)->wait();
  for (const Memory* memory : memories()) memory->set_open(true);
  kernel(argument);
  for (const Memory* memory : memories()) memory->set_open(false);
  return true;
}

}  // extern "C"
