// A group of ranks: an NCCL communicator with its own stream.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

#include "chassis/comm_backend.hpp"
#include "library.hpp"

namespace comm_nccl {

struct DestroyStream {
  void operator()(cudaStream_t stream) const noexcept { cudaStreamDestroy(stream); }
};
struct FreeOnDevice {
  void operator()(void* memory) const noexcept { cudaFree(memory); }
};

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

  // Throws ABORTED if the communicator has failed or was aborted.
  void check_failure();
  // Events are reused: creating one costs more than starting a collective.
  cudaEvent_t acquire_event();
  void release_event(cudaEvent_t event) noexcept;

 private:
  void connect(const CommGroupDesc& desc, const ncclUniqueId& id);
  void add(const chassis_collective_t& call);
  void check(ncclResult_t result, const char* what);
  void wait_until_started();  // until NCCL has queued the calls on the stream
  ncclResult_t state();
  void register_buffer(const void* data, uint64_t num_bytes);

  const Library& nccl_;
  const uint32_t size_, rank_;
  const int device_;
  const GroupOptions options_;
  const std::chrono::nanoseconds timeout_;
  std::mutex mutex_;           // guards the communicator
  ncclComm_t comm_ = nullptr;  // NULL after abort
  std::unique_ptr<std::remove_pointer_t<cudaStream_t>, DestroyStream> stream_;
  std::unique_ptr<int32_t, FreeOnDevice> barrier_word_;  // reduced by barriers
  std::map<std::pair<const void*, uint64_t>, void*> registered_;
  std::mutex events_mutex_;
  std::vector<cudaEvent_t> events_;
};

}  // namespace comm_nccl
