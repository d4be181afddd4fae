// A fake of those functions of the CUDA runtime that plugins/comm/nccl uses. The memory of the device is that of the
// process, or of tests/support/simulated_device where that is loaded. A stream is a thread. The default stream is idle.
// With FAKE_CUDA_LOSES_WAITS in the environment, no stream waits for an event.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "fault.hpp"
#include "stream.hpp"

namespace {

std::atomic<cudaError_t> sticky_error = cudaSuccess;

// As in CUDA, errors of the device are sticky: every later call returns them too.
cudaError_t result_of(const char* function) {
  if (const cudaError_t error = sticky_error; error != cudaSuccess) return error;
  const auto error = static_cast<cudaError_t>(fake_cuda::fault().result_of(function));
  if (error != cudaSuccess && error != cudaErrorMemoryAllocation) sticky_error = error;
  return error;
}

class ThreadStream final : public CUstream_st {
 public:
  ThreadStream() : thread_([this] { run(); }) {}
  ~ThreadStream() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void enqueue(std::function<void()> task) override {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_all();
  }
  bool has_failed() const override { return sticky_error != cudaSuccess; }
  void* address_for_tasks(const void* memory) const override {
    static const auto simulated =
        reinterpret_cast<void* (*)(const void*)>(dlsym(RTLD_DEFAULT, "simulated_device_address_for_kernels"));
    return simulated != nullptr ? simulated(memory) : const_cast<void*>(memory);
  }

 private:
  // Ends when all tasks are done.
  void run() {
    for (std::unique_lock lock(mutex_);;) {
      changed_.wait(lock, [&] { return stop_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stop_ = false;
  std::thread thread_;  // last: it uses all of the above
};

using Mark = std::shared_ptr<std::atomic<bool>>;  // true once the stream has reached the mark

void set_reached(const Mark& mark) {
  *mark = true;
  mark->notify_all();
}

}  // namespace

struct CUevent_st {
  void set(Mark mark) {
    const std::lock_guard lock(mutex_);
    mark_ = std::move(mark);
  }
  Mark get() {
    const std::lock_guard lock(mutex_);
    return mark_;
  }

 private:
  std::mutex mutex_;
  Mark mark_ = std::make_shared<std::atomic<bool>>(true);
};

// Without tests/support/simulated_device all devices are the same one.
cudaError_t cudaSetDevice(int device) {
  const cudaError_t error = result_of("cudaSetDevice");
  static const auto set_current = reinterpret_cast<bool (*)(int)>(dlsym(RTLD_DEFAULT, "simulated_device_set_current"));
  if (error != cudaSuccess || set_current == nullptr) return error;
  return set_current(device) ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaMalloc(void** memory, size_t num_bytes) {
  const cudaError_t error = result_of("cudaMalloc");
  if (error == cudaSuccess) *memory = std::calloc(num_bytes, 1);
  return error;
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return result_of("cudaFree");
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return result_of("cudaDeviceGetStreamPriorityRange");
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  const cudaError_t error = result_of("cudaStreamCreateWithPriority");
  if (error == cudaSuccess) *stream = new ThreadStream;
  return error;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return result_of("cudaStreamDestroy");
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const cudaError_t error = result_of("cudaStreamWaitEvent");
  static const bool loses_waits = std::getenv("FAKE_CUDA_LOSES_WAITS") != nullptr;
  if (error == cudaSuccess && stream != nullptr && !loses_waits)
    stream->enqueue([mark = event->get()] { mark->wait(false); });
  return error;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  const cudaError_t error = result_of("cudaEventCreateWithFlags");
  if (error == cudaSuccess) *event = new CUevent_st;
  return error;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return result_of("cudaEventDestroy");
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const cudaError_t error = result_of("cudaEventRecord");
  if (error != cudaSuccess) return error;
  const auto mark = std::make_shared<std::atomic<bool>>(stream == nullptr);
  event->set(mark);
  if (stream != nullptr) stream->enqueue([mark] { set_reached(mark); });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const cudaError_t error = result_of("cudaEventQuery");
  if (error != cudaSuccess) return error;
  return *event->get() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  event->get()->wait(false);  // after a sticky error too: tasks that gave up still hold buffers until then
  return result_of("cudaEventSynchronize");
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorECCUncorrectable:
      return "uncorrectable ECC error encountered";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    default:
      return "unrecognized error code";
  }
}
