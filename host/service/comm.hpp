// Collectives over the groups of a mesh, for chassis.comm/1 and for the host itself. While a rank waits, it checks
// whether another rank has failed or makes different calls. Calls, bytes and times are counted.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chassis/comm.h"
#include "host/launch/world.hpp"
#include "host/plugin/instance.hpp"
#include "host/service/tensor.hpp"
#include "host/state/mesh_shape.hpp"

namespace chassis {

class MetricsStore;
class Trace;
struct Hang;

// The counters of one op in one group. Groups of one rank are not counted, since they send nothing.
struct CommCount {
  std::string group;     // "dp_shard"
  std::string op;        // "all_gather"
  uint64_t calls = 0;    // calls of one op in one start count once
  uint64_t bytes = 0;    // sent by this rank in a ring: (N-1)/N of the gathered bytes, twice that for all_reduce
  double wait_ms = 0.0;  // the caller's time in start and wait, without the waiting of a CUDA stream
  double hidden_ms = 0.0;  // between start and wait, while the caller did other work
};
// Sets "comm/dp_shard/all_gather_bytes", "…_calls" and "…_wait_ms" for each of them. Adds up wait_ms over all of them
// as "comm_exposed_ms", and hidden_ms as "comm_hidden_ms".
void write_metrics(const std::vector<CommCount>& counts, MetricsStore& metrics);

class ProcessGroup;
class CommHandle;

// One call on contiguous tensors. chassis_collective_t states their sizes.
struct Collective {
  uint32_t op = CHASSIS_COMM_ALL_REDUCE;
  Tensor send;
  Tensor recv;
  uint32_t reduce = CHASSIS_REDUCE_SUM;
  std::string name;
  std::vector<uint64_t> counts, recv_counts;  // elements of unequal parts; empty if all are equal
  int peer = 0;
};

// [step] unless stated otherwise. Failures are communication errors, or RemoteError if another rank failed.
class Communicator {
 public:
  // [control][all-ranks] `backend` is an active instance of kind comm, NULL if the mesh has one rank. `world` and
  // `device` are this rank's; `world` outlives the communicator. With a backend that moves nothing, `rank` and `mesh`
  // may have any value and no other process is needed. Throws a config error if the backend cannot serve the device.
  // `prefix` begins the keys of its groups in the store: several communicators of a world need different ones.
  Communicator(std::unique_ptr<Instance> backend, World& world, MeshShape mesh, int rank, Device device,
               std::string prefix = "");
  // [control] After the last work. Works that are still in flight are aborted.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const MeshShape& mesh() const { return mesh_; }
  int rank() const { return rank_; }
  World& world() { return world_; }
  const Instance* backend() const { return backend_.get(); }  // NULL with one rank
  // The backend moves nothing, so results are undefined.
  bool moves_nothing() const;

  // [control][all-ranks] of the group. The ranks that differ from this one only on these axes, in ascending order; all
  // ranks if there are no axes. `subgroup_size` > 0 divides the group into runs of that many neighbouring ranks and
  // returns this rank's. The same ranks give the same group, even if other axes of size 1 are named. Throws a config
  // error for an unknown axis, or if the group cannot be divided.
  ProcessGroup& group(std::span<const std::string> axes, int subgroup_size = 0);
  // [control][all-ranks] of the group. The ranks that differ from this one only on `axis`, and have one of these
  // coordinates there; this rank has one of them too. Each `key` gives a separate group, so that calls in one do not
  // wait for those in another. Counted under the name of the axis.
  ProcessGroup& group_on(const std::string& axis, std::span<const int> coordinates, const std::string& key);

  // [all-ranks] of the group. Starts the calls together. Tensors are kept alive until the work is waited for.
  CommHandle start(ProcessGroup& group, std::vector<Collective> calls);
  CommHandle start_raw(ProcessGroup& group, std::span<const chassis_collective_t* const> calls);
  // Waits until the host, or on CUDA the current stream, may read the results. Once per work.
  void wait(CommHandle& work);
  void run(ProcessGroup& group, Collective call);  // start and wait
  // [all-ranks] of the group. Sums host values over the ranks in rank order, in fp64, so that all ranks get the same
  // bits.
  void sum(ProcessGroup& group, std::span<double> values, std::string_view name);
  // [all-ranks] of the group. The same by CHASSIS_REDUCE_SUM or CHASSIS_REDUCE_MAX, in an order that the backend
  // chooses: with many values it sends less. Sums of integers are exact.
  void reduce(ProcessGroup& group, std::span<double> values, uint32_t reduction, std::string_view name);
  // Throws a failure that was noticed on CUDA while no call waited, as start, wait and sum also do. Call it before
  // results leave the step.
  void throw_if_failed();

  // The counts since the last call, in order of first use.
  std::vector<CommCount> take_counts();
  // Whether calls are logged: at level debug, until counts have been taken twice, that is for two steps of a run. Calls
  // that move nothing are not logged.
  bool logs_calls() const;
  // NULL: no trace.
  void set_trace(Trace* trace);
  // After a communication error: the call that this rank waited for, and what is known about the other ranks.
  Hang hang();

 private:
  friend class CommHandle;
  struct Impl;
  ProcessGroup& add_group(std::string name, const std::string& key, std::vector<int> ranks);
  // Runs a call that sends host values, and returns what it receives: as many values, `num_parts` times.
  Tensor received(ProcessGroup& group, std::span<double> values, int64_t num_parts, Collective call);
  World& world_;
  const std::string prefix_;
  MeshShape mesh_;
  int rank_;
  Device device_;
  std::unique_ptr<Instance> backend_;
  std::unique_ptr<Impl> impl_;
};

class ProcessGroup {
 public:
  const std::string& name() const { return name_; }  // "dp_shard", "dp_replicate+dp_shard", "dp_shard:2" if divided
  int size() const { return static_cast<int>(ranks_.size()); }
  int rank() const { return rank_; }                        // in the group
  const std::vector<int>& ranks() const { return ranks_; }  // ranks of the run, ascending

 private:
  friend class Communicator;
  struct Impl;
  ProcessGroup();
  ~ProcessGroup();
  friend std::default_delete<ProcessGroup>;
  std::string name_;
  std::vector<int> ranks_;
  int rank_ = 0;
  std::unique_ptr<Impl> impl_;
};

// Calls in flight. Destroying a work that was not waited for aborts its group.
class CommHandle {
 public:
  CommHandle();
  CommHandle(CommHandle&&) noexcept;
  CommHandle& operator=(CommHandle&&) noexcept;
  ~CommHandle();
  explicit operator bool() const { return impl_ != nullptr; }
  bool done() const;  // true if wait would not block

 private:
  friend class Communicator;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace chassis
