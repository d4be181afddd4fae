// Streams of the fake CUDA runtime and of the simulated device, on which the fake NCCL queues collectives.
#pragma once

#include <functional>

struct CUstream_st {
  virtual ~CUstream_st() = default;
  // Returns at once. Tasks run one after another.
  virtual void enqueue(std::function<void()> task) = 0;
  // After a sticky error the device computes nothing more; tasks give up.
  virtual bool has_failed() const = 0;
  // The address at which tasks find memory of the device.
  virtual void* address_for_tasks(const void* memory) const = 0;
};
