// The allocator: headers, free lists of large blocks, counters; and the tags of a thread.
#include "host/service/memory.hpp"

#include <ATen/core/TensorBody.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <new>

#include "host/base/error.hpp"
#include "host/base/units.hpp"
#include "host/plugin/call.hpp"
#include "host/service/guarded_memory.hpp"
#include "host/service/handle.hpp"
#include "host/service/memory_account.hpp"
#include "host/service/meta_memory.hpp"
#include "host/service/tensor.hpp"

namespace chassis {
namespace {

constexpr uint64_t kMiB = 1024 * 1024;
constexpr uint64_t kCachedFrom = 1 * kMiB;
constexpr uint64_t kMaxCachedBytes = 4096 * kMiB;
constexpr uint64_t kHugeFrom = 4 * kMiB;
constexpr uint64_t kHugePage = 2 * kMiB;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kMagic = 0x6368617373697331;  // "chassis1"

thread_local MemoryLabel current_label;

// Precedes the data of every block.
struct alignas(64) Header {
  uint64_t magic;
  uint64_t num_bytes;     // as asked for
  uint64_t system_bytes;  // as reserved, header included
  MemoryLabel label;
};
static_assert(sizeof(Header) == 64);

// Free blocks by size; take_oldest() takes the one that has been free for longest.
class FreeLists {
 public:
  // A block of at least `system_bytes`, and at most `most_excess` more; NULL if there is none.
  Header* take(uint64_t system_bytes, uint64_t most_excess) {
    auto at = blocks_.lower_bound(system_bytes);
    if (at == blocks_.end() || at->first > system_bytes + most_excess) return nullptr;
    Header* block = at->second.back();
    remove(at, std::prev(at->second.end()));
    return block;
  }
  void put(Header* block) {
    std::list<Header*>& same = blocks_[block->system_bytes];
    same.push_back(block);
    age_.push_back({block->system_bytes, std::prev(same.end())});
    where_[block] = std::prev(age_.end());
    cached_bytes_ += block->system_bytes;
  }
  Header* take_oldest() {
    if (age_.empty()) return nullptr;
    const Aged oldest = age_.front();
    Header* block = *oldest.in_list;
    remove(blocks_.find(oldest.system_bytes), oldest.in_list);
    return block;
  }
  uint64_t cached_bytes() const { return cached_bytes_; }

 private:
  struct Aged {
    uint64_t system_bytes;
    std::list<Header*>::iterator in_list;
  };
  using Blocks = std::map<uint64_t, std::list<Header*>>;

  void remove(Blocks::iterator size, std::list<Header*>::iterator in_list) {
    const auto aged = where_.find(*in_list);
    age_.erase(aged->second);
    where_.erase(aged);
    cached_bytes_ -= size->first;
    size->second.erase(in_list);
    if (size->second.empty()) blocks_.erase(size);
  }

  Blocks blocks_;
  std::list<Aged> age_;
  std::map<Header*, std::list<Aged>::iterator> where_;
  uint64_t cached_bytes_ = 0;
};

Header* reserve_large(uint64_t system_bytes) {
  const bool huge = system_bytes >= kHugeFrom;
  const uint64_t slack = huge ? kHugePage : 0;
  void* mapped = mmap(nullptr, system_bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  if (!huge) return static_cast<Header*>(mapped);
  const auto begin = reinterpret_cast<uintptr_t>(mapped);
  const uintptr_t aligned = (begin + kHugePage - 1) / kHugePage * kHugePage;
  if (aligned > begin) munmap(mapped, aligned - begin);
  if (const uintptr_t tail = begin + slack - aligned; tail > 0)
    munmap(reinterpret_cast<void*>(aligned + system_bytes), tail);
  madvise(reinterpret_cast<void*>(aligned), system_bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
  return reinterpret_cast<Header*>(aligned);
}

// The facts that are copied when memory runs out. Has room for all of them, so that copying allocates nothing.
struct FailureRecord {
  bool is_set = false;
  uint64_t requested_bytes = 0, limit_bytes = 0;
  MemoryLabel label;
  MemoryUsage usage;
  std::array<std::pair<uint64_t, uint64_t>, kMaxMemoryOwners> owners;  // live, peak
  StepPlace place;
  int64_t step = 0;
  std::array<char, 256> node;
  std::array<char, 512> call;
};

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t num_bytes) override {
    if (num_bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::kCPU)};
    void* data = memory_is_guarded() ? allocate_guarded(num_bytes) : allocate_raw(num_bytes);
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t num_bytes) const override { std::memcpy(to, from, num_bytes); }

  void* allocate_raw(uint64_t num_bytes) {
    const MemoryLabel label = current_label;
    const uint64_t limit = limit_bytes_.load(std::memory_order_relaxed);
    if (limit && account_.live() + num_bytes > limit) out_of_memory(num_bytes, label, limit);
    const uint64_t wanted = num_bytes + sizeof(Header);
    Header* block = wanted >= kCachedFrom ? reserve((wanted + kPage - 1) / kPage * kPage) : reserve_small(wanted);
    if (!block) out_of_memory(num_bytes, label, 0);
    block->magic = kMagic;
    block->num_bytes = num_bytes;
    block->label = label;
    account_.add(static_cast<int64_t>(num_bytes), label);
    return block + 1;
  }

  static Header* header_of(void* data) {
    Header* block = static_cast<Header*>(data) - 1;
    CHASSIS_CHECK(block->magic == kMagic,
                  "memory before a block was overwritten, or the block is from another allocator");
    return block;
  }

  static void release(void* data);

  void free(Header* block) {
    account_.add(-static_cast<int64_t>(block->num_bytes), block->label);
    if (block->system_bytes < kCachedFrom) {
      system_.add(-static_cast<int64_t>(block->system_bytes));
      std::free(block);
      return;
    }
    const std::lock_guard lock(mutex_);
    lists_.put(block);
    trim(kMaxCachedBytes);
  }

  void relabel(Header* block, MemoryCategory category) {
    const auto bytes = static_cast<int64_t>(block->num_bytes);
    account_.add(-bytes, block->label);
    block->label.category = static_cast<uint16_t>(category);
    account_.add(bytes, block->label);
  }

  void drop_cache() {
    const std::lock_guard lock(mutex_);
    trim(0);
  }
  void set_limit(uint64_t bytes) { limit_bytes_ = bytes; }
  void set_sizes_vary(bool vary) {
    const std::lock_guard lock(mutex_);
    sizes_vary_ = vary;
  }

  void restart_peaks() {
    account_.restart_peaks();
    system_.restart();
  }

  MemoryUsage usage() {
    MemoryUsage usage = account_.usage();
    usage.system_bytes = system_.live();
    usage.peak_system_bytes = system_.peak();
    const std::lock_guard lock(mutex_);
    usage.cached_bytes = lists_.cached_bytes();
    return usage;
  }

  MemoryAccount& account() { return account_; }

  // Called in the thread whose allocation failed. Only tries its locks, since this thread may hold one of them.
  void note_failure(uint64_t num_bytes, MemoryLabel label, uint64_t limit) noexcept {
    const std::unique_lock once(failure_mutex_, std::try_to_lock);
    if (!once) return;
    FailureRecord& record = failure_;
    record.is_set = true;
    record.requested_bytes = num_bytes, record.limit_bytes = limit, record.label = label;
    record.usage = account_.usage();
    record.usage.system_bytes = system_.live();
    record.usage.peak_system_bytes = system_.peak();
    record.usage.cached_bytes = cached_before_failure_.exchange(0);
    if (const std::unique_lock lists(mutex_, std::try_to_lock); lists)
      record.usage.cached_bytes = std::max(record.usage.cached_bytes, lists_.cached_bytes());
    for (size_t i = 0; i < kMaxMemoryOwners; ++i)
      record.owners[i] = {account_.owner(i).live(), account_.owner(i).peak()};
    record.place = step_place();
    record.step = current_step();
    record.node[0] = '\0';
    if (const std::string* const node = record.place.node) {
      const size_t size = std::min(node->size(), record.node.size() - 1);
      std::copy_n(node->data(), size, record.node.data());
      record.node[size] = '\0';
    }
    describe_call(record.call.data(), record.call.size());
  }

  std::optional<MemoryFailure> failure() {
    const std::lock_guard once(failure_mutex_);
    if (!failure_.is_set) return std::nullopt;
    const FailureRecord& record = failure_;
    MemoryFailure out{.requested_bytes = record.requested_bytes,
                      .category = static_cast<MemoryCategory>(record.label.category),
                      .limit_bytes = record.limit_bytes,
                      .usage = record.usage,
                      .plugins = {},
                      .plugin = {},
                      .place = record.place,
                      .node = record.node.data(),
                      .call = record.call.data(),
                      .step = record.step};
    out.place.node = nullptr;
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < owner_names_.size(); ++i)
      out.plugins.push_back({owner_names_[i], record.owners[i].first, record.owners[i].second});
    out.plugin = owner_names_[record.label.owner];
    return out;
  }

  uint16_t owner(std::string_view plugin) {
    if (plugin.empty()) return 0;
    const std::lock_guard lock(mutex_);
    const auto known = std::find(owner_names_.begin(), owner_names_.end(), plugin);
    if (known != owner_names_.end()) return static_cast<uint16_t>(known - owner_names_.begin());
    if (owner_names_.size() == kMaxMemoryOwners) return 0;
    owner_names_.emplace_back(plugin);
    return static_cast<uint16_t>(owner_names_.size() - 1);
  }
  std::vector<PluginMemory> by_owner() {
    const std::lock_guard lock(mutex_);
    std::vector<PluginMemory> out;
    for (size_t i = 0; i < owner_names_.size(); ++i)
      out.push_back({owner_names_[i], account_.owner(i).live(), account_.owner(i).peak()});
    return out;
  }

 private:
  Header* reserve_small(uint64_t wanted) {
    const uint64_t system_bytes = (wanted + 63) / 64 * 64;
    auto* block = static_cast<Header*>(std::aligned_alloc(64, system_bytes));
    if (!block) return nullptr;
    block->system_bytes = system_bytes;
    system_.add(static_cast<int64_t>(system_bytes));
    return block;
  }

  // Takes a block from the free lists or from the system. Before the system is asked, cached blocks are freed if the
  // process would otherwise grow beyond its peak of live bytes, so that caching adds no resident memory.
  Header* reserve(uint64_t system_bytes) {
    const std::lock_guard lock(mutex_);
    if (Header* block = lists_.take(system_bytes, system_bytes / 8)) return block;
    const uint64_t target = account_.peak() + kMiB * 32;
    const uint64_t others = system_.live() - lists_.cached_bytes() + system_bytes;
    const uint64_t room = target > others ? target - others : 0;
    // Uses a cached block of another size rather than a new one, whose pages would have to be touched first.
    if (sizes_vary_ && lists_.cached_bytes() > room)
      if (Header* block = lists_.take(system_bytes, system_bytes)) return block;
    trim(room);
    Header* block = reserve_large(system_bytes);
    if (!block) {
      cached_before_failure_ = lists_.cached_bytes();
      trim(0);
      block = reserve_large(system_bytes);
      if (!block) return nullptr;
    }
    block->system_bytes = system_bytes;
    system_.add(static_cast<int64_t>(system_bytes));
    return block;
  }

  // Requires mutex_.
  void trim(uint64_t max_bytes) {
    while (lists_.cached_bytes() > max_bytes) {
      Header* block = lists_.take_oldest();
      system_.add(-static_cast<int64_t>(block->system_bytes));
      munmap(block, block->system_bytes);
    }
  }

  [[noreturn]] void out_of_memory(uint64_t num_bytes, MemoryLabel label, uint64_t limit) {
    note_failure(num_bytes, label, limit);
    std::string text = "out of memory on the CPU: " + bytes_text(num_bytes) + " requested for " +
                       std::string(memory_category_name(static_cast<MemoryCategory>(label.category)));
    {
      const std::lock_guard lock(mutex_);
      if (label.owner) text += " of plugin " + owner_names_[label.owner];
    }
    text += "; live " + bytes_text(account_.live());
    if (limit) text += " of a limit of " + bytes_text(limit);
    const char* separator = ": ";
    for (size_t i = 0; i < kNumMemoryCategories; ++i)
      if (const uint64_t live = account_.category(i).live()) {
        text += separator + std::string(memory_category_name(static_cast<MemoryCategory>(i))) + " " + bytes_text(live);
        separator = ", ";
      }
    TORCH_CHECK_WITH(OutOfMemoryError, false, text);
    std::abort();
  }

  MemoryAccount account_;
  MemoryGauge system_;
  std::atomic<uint64_t> limit_bytes_{0};
  std::mutex failure_mutex_;
  FailureRecord failure_;
  std::atomic<uint64_t> cached_before_failure_{0};  // before the free lists were emptied in vain
  std::mutex mutex_;
  FreeLists lists_;
  bool sizes_vary_ = false;
  std::vector<std::string> owner_names_{""};
};

// Never destroyed: tensors may outlive main.
CountingAllocator& allocator() {
  static auto* instance = new CountingAllocator;
  return *instance;
}

void CountingAllocator::release(void* data) {
  if (!data || (memory_is_guarded() && free_guarded(data))) return;
  allocator().free(header_of(data));
}

}  // namespace

std::string_view memory_category_name(MemoryCategory category) {
  constexpr std::array<std::string_view, kNumMemoryCategories> names = {
      "other",         "parameters", "gradients", "optimizer", "activations", "workspace",
      "communication", "checkpoint", "data",      "logits",    "gathered"};
  const auto index = static_cast<size_t>(category);
  return index < names.size() ? names[index] : "unknown";
}

void install_memory_allocator() {
  static std::once_flag once;
  std::call_once(once, [] {
    c10::SetCPUAllocator(&allocator(), 100);
    std::set_new_handler([] {
      allocator().note_failure(0, current_label, 0);
      throw std::bad_alloc();
    });
  });
}

std::optional<MemoryFailure> last_memory_failure() { return allocator().failure(); }

MemoryUsage memory_usage() { return allocator().usage(); }
std::vector<PluginMemory> memory_by_plugin() { return allocator().by_owner(); }
void reset_peak_memory() { allocator().restart_peaks(); }
void drop_memory_cache() { allocator().drop_cache(); }
void set_memory_sizes_vary(bool vary) { allocator().set_sizes_vary(vary); }
void set_memory_limit(uint64_t bytes) { allocator().set_limit(bytes); }
uint16_t memory_owner(std::string_view plugin) { return allocator().owner(plugin); }

MemoryLabel current_memory_label() { return current_label; }

MemoryTag::MemoryTag(MemoryCategory category) : MemoryTag(category, current_label.owner) {}

MemoryTag::MemoryTag(MemoryCategory category, uint16_t owner) : previous_(current_label) {
  current_label = {static_cast<uint16_t>(category), owner};
}

MemoryTag::~MemoryTag() { current_label = previous_; }

MemoryAccount& memory_account() { return allocator().account(); }

MemoryCharge::MemoryCharge(MemoryAccount& account, uint64_t num_bytes, MemoryCategory category)
    : account_(account),
      num_bytes_(static_cast<int64_t>(num_bytes)),
      label_({static_cast<uint16_t>(category), current_label.owner}) {
  account_.add(num_bytes_, label_);
}
MemoryCharge::MemoryCharge(uint64_t num_bytes, MemoryCategory category)
    : MemoryCharge(memory_account(), num_bytes, category) {}
MemoryCharge::MemoryCharge(uint64_t num_bytes, MemoryCategory category, Device meta)
    : MemoryCharge(meta_memory_account(meta), num_bytes, category) {}
MemoryCharge::~MemoryCharge() { account_.add(-num_bytes_, label_); }

void retag_memory(const Tensor& tensor, MemoryCategory category) {
  if (retag_meta_memory(tensor.handle(), category)) return;
  const c10::DataPtr& data = tensor_of(tensor.handle()).storage().data_ptr();
  if (!data || data.get_deleter() != allocator().raw_deleter()) return;
  if (memory_is_guarded() && is_guarded(data.get_context())) return;
  allocator().relabel(CountingAllocator::header_of(data.get_context()), category);
}

}  // namespace chassis
