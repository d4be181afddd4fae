// The threads of streams, and which stream is current.
#include "tests/support/simulated_device/stream.hpp"

#include <array>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/simulated_device/memory.hpp"
#include "tests/support/simulated_device/settings.hpp"

namespace simulated_device {
namespace {

constexpr int kMaxDevices = 16;

// The streams of a device. They are never destroyed: their threads may outlive the objects of this library.
class Streams {
 public:
  Stream& get(int device, int64_t id) {
    const std::lock_guard lock(mutex_);
    std::vector<Stream*>& streams = of(device);
    return *streams.at(static_cast<size_t>(id));
  }
  Stream& add(int device) {
    const std::lock_guard lock(mutex_);
    std::vector<Stream*>& streams = of(device);
    return *streams.emplace_back(new Stream(device, static_cast<int64_t>(streams.size())));
  }
  std::vector<Stream*> all(int device) {
    const std::lock_guard lock(mutex_);
    return of(device);
  }

 private:
  std::vector<Stream*>& of(int device) {
    if (device < 0 || device >= std::min(num_devices(), kMaxDevices)) throw std::out_of_range("no such device");
    std::vector<Stream*>& streams = streams_[static_cast<size_t>(device)];
    if (streams.empty()) streams.push_back(new Stream(device, 0));
    return streams;
  }

  std::mutex mutex_;
  std::array<std::vector<Stream*>, kMaxDevices> streams_;
};

Streams& streams() {
  static auto* const streams = new Streams;
  return *streams;
}

thread_local int device_of_thread = 0;
thread_local std::array<Stream*, kMaxDevices> streams_of_thread{};

// When the process ends, tasks in flight use LibTorch, which is still there until this object is gone.
struct Ending {
  ~Ending() {
    const auto latest = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    for (int device = 0; device < num_devices(); ++device)
      for (Stream* stream : streams().all(device))
        while (!stream->is_idle() && std::chrono::steady_clock::now() < latest)
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
} ending;

}  // namespace

Stream::Stream(int device, int64_t id)
    : device_(device), id_(id), random_(static_cast<uint64_t>(settings().seed * 1000 + device * 100 + id)) {}

void Stream::enqueue(Task task) { add({std::move(task), 0}); }

void* Stream::address_for_tasks(const void* memory) const { return address_for_kernels(memory); }

void Stream::enqueue_work(Task task, Delay delay) {
  const int64_t longest = settings().max_delay_us;
  int64_t delay_us = 0;
  if (longest > 0) {
    const std::lock_guard lock(mutex_);
    const bool is_delayed = delay == Delay::kAlways || random_() % 64 == 0;
    if (is_delayed) delay_us = static_cast<int64_t>(random_() % static_cast<uint64_t>(longest));
  }
  add({std::move(task), delay_us});
}

void Stream::run_or_enqueue(const Task& task) {
  {
    const std::lock_guard lock(mutex_);
    if (entries_.empty() && !is_running_) return task();
  }
  enqueue(task);
}

void Stream::add(Entry entry) {
  {
    const std::lock_guard lock(mutex_);
    entries_.push_back(std::move(entry));
    if (!std::exchange(is_started_, true)) std::thread([this] { run(); }).detach();
  }
  changed_.notify_one();
}

void Stream::run() {
  device_of_thread = device_;
  for (std::unique_lock lock(mutex_);;) {
    changed_.wait(lock, [&] { return !entries_.empty(); });
    {
      const Entry entry = std::move(entries_.front());
      entries_.pop_front();
      is_running_ = true;
      lock.unlock();
      if (entry.delay_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(entry.delay_us));
      try {
        entry.task();
      } catch (...) {
        const std::lock_guard again(mutex_);
        if (!error_) error_ = std::current_exception();
      }
    }
    lock.lock();
    is_running_ = false;
    if (entries_.empty()) done_.notify_all();
  }
}

void Stream::wait() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return entries_.empty() && !is_running_; });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

bool Stream::is_idle() {
  const std::lock_guard lock(mutex_);
  return entries_.empty() && !is_running_;
}

std::shared_ptr<Mark> mark_on(Stream& stream) {
  auto mark = std::make_shared<Mark>(false);
  stream.enqueue([mark] { mark->reach(); });
  return mark;
}

void Event::record(Stream& stream) {
  const std::shared_ptr<Mark> mark = mark_on(stream);
  const std::lock_guard lock(mutex_);
  mark_ = mark;
}

void Event::block(Stream& stream) {
  stream.enqueue([mark = mark()] { mark->wait(); });
}

std::shared_ptr<Mark> Event::mark() {
  const std::lock_guard lock(mutex_);
  return mark_;
}

int current_device() { return device_of_thread; }
void set_current_device(int device) { device_of_thread = device; }
Stream& default_stream(int device) { return streams().get(device, 0); }
Stream& stream_of(int device, int64_t id) { return streams().get(device, id); }
Stream& new_stream(int device) { return streams().add(device); }

Stream& current_stream(int device) {
  Stream* const chosen = streams_of_thread.at(static_cast<size_t>(device));
  return chosen != nullptr ? *chosen : default_stream(device);
}

Stream& exchange_current_stream(Stream& stream) {
  Stream& previous = current_stream(stream.device());
  streams_of_thread.at(static_cast<size_t>(stream.device())) = &stream;
  return previous;
}

void synchronize(int device) {
  for (Stream* stream : streams().all(device)) stream->wait();
}

}  // namespace simulated_device
