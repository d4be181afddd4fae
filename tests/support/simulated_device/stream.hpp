// Streams and events of the simulated devices. A stream is a thread with a queue. Before a task it sleeps at random, so
// that a missing wait gives wrong numbers.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <random>

#include "tests/support/fake_cuda/stream.hpp"

namespace simulated_device {

using Task = std::function<void()>;

class Stream final : public CUstream_st {
 public:
  Stream(int device, int64_t id);

  int device() const { return device_; }
  int64_t id() const { return id_; }

  void enqueue(Task task) override;  // without a delay
  bool has_failed() const override { return false; }
  void* address_for_tasks(const void* memory) const override;
  // Delayed always, or only now and then, which costs less.
  enum class Delay { kAlways, kSometimes };
  void enqueue_work(Task task, Delay delay);
  // Runs the task here if the stream has nothing to do.
  void run_or_enqueue(const Task& task);
  // Returns when all tasks have been done. Throws the first error that one of them threw since the last wait.
  void wait();
  bool is_idle();

 private:
  struct Entry {
    Task task;
    int64_t delay_us;
  };
  void add(Entry entry);
  void run();

  const int device_;
  const int64_t id_;
  std::mutex mutex_;
  std::condition_variable changed_, done_;
  std::deque<Entry> entries_;
  bool is_started_ = false, is_running_ = false;
  std::exception_ptr error_;
  std::mt19937_64 random_;
};

// A place in the queue of a stream.
class Mark {
 public:
  explicit Mark(bool is_reached = true) : is_reached_(is_reached) {}
  bool is_reached() const { return is_reached_; }
  void reach() {
    is_reached_ = true;
    is_reached_.notify_all();
  }
  void wait() const { is_reached_.wait(false); }

 private:
  std::atomic<bool> is_reached_;
};

std::shared_ptr<Mark> mark_on(Stream& stream);

class Event {
 public:
  void record(Stream& stream);
  // Tasks that `stream` is given later begin after the mark.
  void block(Stream& stream);
  std::shared_ptr<Mark> mark();

 private:
  std::mutex mutex_;
  std::shared_ptr<Mark> mark_ = std::make_shared<Mark>();
};

int current_device();
void set_current_device(int device);
Stream& default_stream(int device);
Stream& stream_of(int device, int64_t id);
Stream& new_stream(int device);
Stream& current_stream(int device);
// Returns the previous one.
Stream& exchange_current_stream(Stream& stream);
// Waits for all streams of a device.
void synchronize(int device);

}  // namespace simulated_device
