// chassis_store_t for the backend: the part of the run's store that belongs to one group.
#pragma once

#include <string>

#include "chassis/kind/comm.h"
#include "host/launch/world.hpp"

namespace chassis {

class GroupStore {
 public:
  // `prefix` is put before every key. `world` must have a store.
  GroupStore(World& world, std::string prefix);
  GroupStore(const GroupStore&) = delete;
  GroupStore& operator=(const GroupStore&) = delete;

  const chassis_store_t* table() const { return &table_; }

 private:
  static GroupStore& self(const chassis_store_t* s) { return *static_cast<GroupStore*>(s->impl); }
  std::string key(chassis_str_t name) const;
  chassis_status_t* get(const std::string& key, uint64_t timeout_ns, void (*take)(void*, chassis_str_t), void* context);

  World& world_;
  std::string prefix_;
  chassis_store_t table_{};
};

}  // namespace chassis
