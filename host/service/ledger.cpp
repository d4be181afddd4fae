// A hash map of handles, divided into shards so that threads rarely wait for each other.
#include "host/service/ledger.hpp"

#include <array>
#include <mutex>
#include <unordered_map>

namespace chassis::ledger {
namespace {

struct Shard {
  std::mutex mutex;
  std::unordered_map<chassis_tensor_t, Account> owners;
};

Shard& shard_of(chassis_tensor_t handle) {
  static std::array<Shard, 16>* shards = new std::array<Shard, 16>;  // never destroyed
  return (*shards)[(reinterpret_cast<uintptr_t>(handle) >> 4) % shards->size()];
}

}  // namespace

void add(chassis_tensor_t handle, const Account& account) {
  if (!handle) return;
  Shard& shard = shard_of(handle);
  const std::lock_guard lock(shard.mutex);
  auto [at, inserted] = shard.owners.try_emplace(handle, account);
  if (!inserted) {
    at->second->fetch_sub(1, std::memory_order_relaxed);
    at->second = account;
  }
  account->fetch_add(1, std::memory_order_relaxed);
}

bool holds(chassis_tensor_t handle) noexcept {
  if (!handle) return false;
  Shard& shard = shard_of(handle);
  const std::lock_guard lock(shard.mutex);
  return shard.owners.contains(handle);
}

bool remove(chassis_tensor_t handle) noexcept {
  if (!handle) return false;
  Shard& shard = shard_of(handle);
  const std::lock_guard lock(shard.mutex);
  const auto at = shard.owners.find(handle);
  if (at == shard.owners.end()) return false;
  at->second->fetch_sub(1, std::memory_order_relaxed);
  shard.owners.erase(at);
  return true;
}

}  // namespace chassis::ledger
