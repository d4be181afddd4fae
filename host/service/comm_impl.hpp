// The state of the classes of comm.hpp, for comm.cpp and comm_work.cpp.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chassis/kind/comm.h"
#include "host/base/log.hpp"
#include "host/service/comm.hpp"
#include "host/service/comm_flight.hpp"
#include "host/service/comm_watch.hpp"
#include "host/service/group_store.hpp"
#include "host/service/trace.hpp"

namespace chassis {

struct ProcessGroup::Impl {
  std::string key;  // the name and the first rank, unique in the run
  std::optional<GroupStore> store;
  chassis_backend_group_t* group = nullptr;
  uint64_t sequence = 0;  // number of starts so far
  bool is_shared = true;  // returned for every request with the same ranks; false: only for its key
};

struct CommHandle::Impl {
  Communicator::Impl& owner;
  ProcessGroup& group;
  const Flight* flight = nullptr;          // NULL if nothing is in flight
  chassis_backend_work_t* work = nullptr;  // likewise
  std::vector<Tensor> tensors;             // kept alive
  std::chrono::steady_clock::time_point started{};
  int64_t begin_ns = 0, start_ns = 0;  // for the trace: when it was started, and the time that this took

  ~Impl();
};

struct Communicator::Impl {
  Impl(Communicator& owner, const chassis_comm_backend_t* table)
      : world(owner.world_), backend(owner.backend_.get()), table(table), device(owner.device_), flights(world) {
    if (table && table->wait_on_stream && device.spec().has_streams) watch.emplace(*backend, *table, flights);
  }
  ~Impl() {
    watch.reset();
    for (const auto& group : groups) {
      if (group->impl_->group) {
        const CalledInstance self = backend->get("destroy_group");
        guarded_end([&] { table->destroy_group(self, group->impl_->group); });
      }
    }
  }

  bool logs_calls() const {
    return table && num_taken < 2 && !has(CHASSIS_COMM_MOVES_NOTHING) && log::enabled(log::Level::kDebug);
  }
  bool has(uint32_t property) const { return table && (table->properties & property) != 0; }
  void connect(ProcessGroup& group);
  void meet(const ProcessGroup& group);
  CommHandle start(ProcessGroup& group, std::span<const chassis_collective_t* const> calls);
  void copy_to_self(const CommBatch& batch) const;
  void wait(chassis_backend_work_t* work, const Flight& flight);
  [[noreturn]] void throw_failure(chassis_status_t* status, const Flight& flight);
  void count(const ProcessGroup& group, const CommBatch& batch);
  CommCount& count_of(const ProcessGroup& group, uint32_t op);
  // The counters for the time of a batch.
  CommCount& count_of(const ProcessGroup& group, const CommBatch& batch);
  // Spans of the ops of a batch that has been waited for since `wait_begin_ns`.
  void trace_batch(const CommHandle::Impl& work, int64_t wait_begin_ns);

  World& world;
  const Instance* backend;
  const chassis_comm_backend_t* table;
  Device device;
  std::vector<std::unique_ptr<ProcessGroup>> groups;
  std::map<std::string, ProcessGroup*> groups_by_axes;  // and by subgroup size
  std::vector<CommCount> counts;
  int num_taken = 0;  // calls of take_counts
  Flights flights;
  std::optional<StreamWatch> watch;
  Trace* trace = nullptr;
};

}  // namespace chassis
