// Collectives over the groups of a mesh: what chassis.comm/1 offers, and what the host itself uses. Waits in
// slices with an eye on ranks that failed or call something else, and counts.
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

// Groups of one rank are not counted: nothing is sent.
struct CommCount {
  std::string group;     // "dp_shard"
  std::string op;        // "all_gather"
  uint64_t calls = 0;    // what is started as one counts once
  uint64_t bytes = 0;    // sent by this rank, as a ring would: (N-1)/N of what is gathered, twice that for all_reduce
  double wait_ms = 0.0;  // the caller's time in start and wait: exposed communication. On CUDA its stream's is not seen
};
// "comm/dp_shard/all_gather_bytes", "…_calls" and "…_wait_ms" of the step.
void write_metrics(const std::vector<CommCount>& counts, MetricsStore& metrics);

class CommGroup;
class CommWork;

// A call in terms of tensors. Contiguous; see chassis_collective_t for the sizes.
struct Collective {
  uint32_t op = CHASSIS_COMM_ALL_REDUCE;
  Tensor send;
  Tensor recv;
  uint32_t reduce = CHASSIS_REDUCE_SUM;
  std::string name;
  std::vector<uint64_t> counts, recv_counts;  // unequal parts
  int peer = 0;
};

// [step] All of it, but for what says otherwise. Failures are communication errors; RemoteError if another rank failed.
class Communicator {
 public:
  // [control][all-ranks] `backend` is an active instance of kind comm, NULL if the mesh has one rank. `world` and
  // `device` are this rank's; world outlives it. With a backend that moves nothing `rank` and `mesh` may be any, and no
  // other process is needed. Throws a config error if the backend can not serve the device.
  Communicator(std::unique_ptr<Instance> backend, World& world, MeshShape mesh, int rank, Device device);
  // [control] After the last work. With works in flight it gives them up.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const MeshShape& mesh() const { return mesh_; }
  int rank() const { return rank_; }
  World& world() { return world_; }
  const Instance* backend() const { return backend_.get(); }  // NULL with one rank
  // Moves nothing: results are undefined.
  bool is_fake() const;

  // [control][all-ranks] The ranks that differ from this one on these axes alone, in the order of their numbers; all
  // ranks if there are no axes. `ways` > 0 cuts the group into runs of so many neighbouring ranks. The same ranks give
  // the same group, whatever axes of size 1 are named. Throws a config error for an unknown axis.
  CommGroup& group(std::span<const std::string> axes, int ways = 0);

  // [all-ranks] Of the group. Starts the calls as one. Tensors are kept alive until the work is waited for.
  CommWork start(CommGroup& group, std::vector<Collective> calls);
  CommWork start_raw(CommGroup& group, std::span<const chassis_collective_t* const> calls);
  // Once per work. Until the results may be read: by the host, or on CUDA by the current stream.
  void wait(CommWork& work);
  void run(CommGroup& group, Collective call);  // start and wait
  // [all-ranks] Of the group. Sums of small host values over the ranks, in rank order, in fp64: the same bits
  // everywhere.
  void sum(CommGroup& group, std::span<double> values, std::string_view name);
  // On CUDA a failure is seen while nobody waits; this throws it. Every start, wait and sum does, too; to be asked
  // before results leave the step.
  void throw_if_failed();

  // Since the last call, in order of first use.
  std::vector<CommCount> take_counts();
  // Calls that move something are logged, at level debug: until counts have been taken twice, which are two steps of a
  // run.
  bool traces() const;

 private:
  friend class CommWork;
  struct Impl;
  World& world_;
  MeshShape mesh_;
  int rank_;
  Device device_;
  std::unique_ptr<Instance> backend_;
  std::unique_ptr<Impl> impl_;
};

class CommGroup {
 public:
  const std::string& name() const { return name_; }  // "dp_shard"; "dp_replicate+dp_shard"; "dp_shard:2" if cut
  int size() const { return static_cast<int>(ranks_.size()); }
  int rank() const { return rank_; }                        // in the group
  const std::vector<int>& ranks() const { return ranks_; }  // of the run, ascending

 private:
  friend class Communicator;
  struct Impl;
  CommGroup();
  ~CommGroup();
  friend std::default_delete<CommGroup>;
  std::string name_;
  std::vector<int> ranks_;
  int rank_ = 0;
  std::unique_ptr<Impl> impl_;
};

// Calls in flight. Destroying it unwaited gives its group up.
class CommWork {
 public:
  CommWork();
  CommWork(CommWork&&) noexcept;
  CommWork& operator=(CommWork&&) noexcept;
  ~CommWork();
  explicit operator bool() const { return impl_ != nullptr; }
  bool done() const;  // wait would not block

 private:
  friend class Communicator;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace chassis
