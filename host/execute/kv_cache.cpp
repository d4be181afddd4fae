// Each cached tensor has room for `capacity` positions; only the first length() are filled.
#include "host/execute/kv_cache.hpp"

#include "host/base/error.hpp"

namespace chassis {

Tensor KeyValueCache::append(size_t unit, ValueId value, const Tensor& fresh) {
  std::vector<int64_t> sizes = fresh.sizes();
  const int64_t added = sizes[1];
  if (length_ + added > capacity_)
    throw config_error("the key-value cache holds " + std::to_string(capacity_) + " positions, " +
                       std::to_string(length_ + added) + " are needed");
  Tensor& stored = stored_[{unit, value}];
  if (!stored) {
    sizes[1] = capacity_;
    stored = Tensor::empty(sizes, fresh.dtype(), fresh.device());
  }
  stored.narrow(1, length_, added).copy_from(fresh);
  return stored.narrow(1, 0, length_ + added).contiguous();
}

uint64_t KeyValueCache::bytes_per_position() const {
  uint64_t bytes = 0;
  for (const auto& [place, stored] : stored_) bytes += stored.num_bytes() / static_cast<uint64_t>(stored.size(1));
  return bytes;
}

void KeyValueCache::reserve(int64_t capacity) {
  if (capacity <= capacity_) return;
  for (auto& [place, stored] : stored_) {
    std::vector<int64_t> sizes = stored.sizes();
    sizes[1] = capacity;
    Tensor larger = Tensor::empty(sizes, stored.dtype(), stored.device());
    if (length_ > 0) larger.narrow(1, 0, length_).copy_from(stored.narrow(1, 0, length_));
    stored = std::move(larger);
  }
  capacity_ = capacity;
}

}  // namespace chassis
