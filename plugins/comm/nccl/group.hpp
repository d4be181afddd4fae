// A group of ranks as an NCCL communicator with a stream of its own.
#pragma once

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "chassis/comm_backend.hpp"
#include "library.hpp"

namespace comm_nccl {

struct GroupOptions {
  bool register_buffers;
  bool high_priority;
};

class NcclGroup final : public BackendGroup {
 public:
  NcclGroup(const Library& nccl, const CommGroupDesc& desc, const GroupOptions& options);
  ~NcclGroup() override;

  std::unique_ptr<BackendWork> start(std::span<const chassis_collective_t> calls, void* stream) override;
  void abort() noexcept override;

  // Throws ABORTED if the communicator has failed or was given up.
  void check_failure();
  // Events go round: creating one costs more than a collective's start.
  cudaEvent_t take_event();
  void give_event(cudaEvent_t event) noexcept;

 private:
  void connect(const CommGroupDesc& desc, const ncclUniqueId& id);
  void add(const chassis_collective_t& call);
  void check(ncclResult_t result, const char* what);
  void settle();  // until what was started is on the stream
  ncclResult_t state();
  void register_buffer(const void* data, uint64_t num_bytes);

  const Library& nccl_;
  const uint32_t size_, rank_;
  const int device_;
  const GroupOptions options_;
  const std::chrono::nanoseconds timeout_;
  std::mutex mutex_;           // of the communicator, which abort takes away
  ncclComm_t comm_ = nullptr;  // NULL when given up
  cudaStream_t stream_ = nullptr;
  int32_t* word_ = nullptr;  // of barriers
  std::map<std::pair<const void*, uint64_t>, void*> registered_;
  std::mutex events_mutex_;
  std::vector<cudaEvent_t> events_;
};

}  // namespace comm_nccl
