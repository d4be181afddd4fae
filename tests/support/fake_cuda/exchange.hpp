// Bytes between the ranks of a fake communicator. Each pair of ranks has a ring in shared memory for either direction,
// so ranks may be threads or processes.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace fake_cuda {

struct Ring {
  static constexpr uint64_t kBytes = 64 << 10;
  std::atomic<uint64_t> num_written, num_read;  // since the start
  char bytes[kBytes];

  // The number of bytes that fit.
  uint64_t push(const char* data, uint64_t num_bytes);
  // The number of bytes that were there.
  uint64_t pop(char* data, uint64_t num_bytes);
};

class Rings {
 public:
  // Ranks that name the same rings have the same. Throws std::system_error.
  Rings(const std::string& name, int size);
  ~Rings();
  Rings(const Rings&) = delete;
  Rings& operator=(const Rings&) = delete;

  bool are_complete() const { return *num_ranks_ == size_; }  // all ranks have come
  Ring& between(int from, int to) { return rings_[from * size_ + to]; }

 private:
  std::string name_;
  int size_;
  uint64_t num_bytes_;
  void* memory_ = nullptr;
  std::atomic<int>* num_ranks_ = nullptr;
  Ring* rings_ = nullptr;
};

// The messages of one rank in the calls of one group. Those from one rank to another arrive in order.
class Exchange {
 public:
  explicit Exchange(int size) : sends_(static_cast<size_t>(size)), receives_(static_cast<size_t>(size)) {}

  void send(int to, const void* data, uint64_t num_bytes);
  void receive(int from, void* data, uint64_t num_bytes);
  char* buffer(uint64_t num_bytes) { return buffers_.emplace_back(new char[num_bytes + 1]).get(); }
  // `work` runs when everything has been sent and received.
  void then(std::function<void()> work) { rest_.push_back(std::move(work)); }

  // Moves what can be moved; false if nothing was.
  bool advance(Rings& rings, int rank);
  bool is_done() const;
  void finish() const {
    for (const auto& work : rest_) work();
  }

 private:
  struct Message {
    char* data;
    uint64_t num_bytes;
  };
  std::vector<std::deque<Message>> sends_, receives_;  // by rank
  std::vector<std::function<void()>> rest_;
  std::vector<std::unique_ptr<char[]>> buffers_;
};

}  // namespace fake_cuda
