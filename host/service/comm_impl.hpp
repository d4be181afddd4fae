// What the sources of comm.hpp share: the state behind its classes.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chassis/kind/comm.h"
#include "host/base/log.hpp"
#include "host/service/comm.hpp"
#include "host/service/comm_flight.hpp"
#include "host/service/comm_store.hpp"
#include "host/service/comm_watch.hpp"

namespace chassis {

struct CommGroup::Impl {
  std::string key;  // unique in the run: the name and the first rank
  std::optional<CommStore> store;
  chassis_backend_group_t* group = nullptr;
  uint64_t sequence = 0;  // of the last start
};

struct CommWork::Impl {
  Communicator::Impl& owner;
  CommGroup& group;
  const Flight* flight = nullptr;          // NULL: done
  chassis_backend_work_t* work = nullptr;  // likewise
  std::vector<Tensor> kept;

  ~Impl();
};

struct Communicator::Impl {
  Impl(Communicator& owner, const chassis_comm_backend_t* table)
      : world(owner.world_), backend(owner.backend_.get()), table(table), device(owner.device_), flights(world) {
    if (table && table->wait_on_stream && device.type == Device::Type::kCuda) watch.emplace(*backend, *table, flights);
  }
  ~Impl() {
    watch.reset();
    for (const auto& group : groups) {
      if (group->impl_->group) table->destroy_group(backend->get("destroy_group"), group->impl_->group);
    }
  }

  bool traces() const {
    return table && num_taken < 2 && !has(CHASSIS_COMM_MOVES_NOTHING) && log::enabled(log::Level::kDebug);
  }
  bool has(uint32_t property) const { return table && (table->properties & property) != 0; }
  void connect(CommGroup& group);
  CommWork start(CommGroup& group, std::span<const chassis_collective_t* const> calls);
  void copy_alone(const CommBatch& batch) const;
  void wait(chassis_backend_work_t* work, const Flight& flight);
  [[noreturn]] void fail(chassis_status_t* status, const Flight& flight);
  void count(const CommGroup& group, const CommBatch& batch);
  CommCount& count_of(const CommGroup& group, uint32_t op);
  // Where the time of a batch is counted.
  double& wait_ms(const CommGroup& group, const CommBatch& batch);

  World& world;
  const Instance* backend;
  const chassis_comm_backend_t* table;
  Device device;
  std::vector<std::unique_ptr<CommGroup>> groups;
  std::map<std::string, CommGroup*> asked;  // by axes and ways
  std::vector<CommCount> counts;
  int num_taken = 0;
  Flights flights;
  std::optional<StreamWatch> watch;
};

}  // namespace chassis
