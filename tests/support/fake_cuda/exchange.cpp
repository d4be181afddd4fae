// Rings in shared memory, and the messages that go through them.
#include "exchange.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace fake_cuda {
namespace {

constexpr uint64_t kHeaderBytes = 64;

// Calls copy(offset, first, n) for a piece that may wrap around the end of a ring.
template <typename Copy>
void for_each_run(uint64_t position, uint64_t num_bytes, Copy&& copy) {
  const uint64_t begin = position % Ring::kBytes, first = std::min(num_bytes, Ring::kBytes - begin);
  copy(begin, uint64_t{0}, first);
  copy(uint64_t{0}, first, num_bytes - first);
}

}  // namespace

uint64_t Ring::push(const char* data, uint64_t num_bytes) {
  const uint64_t at = num_written.load(std::memory_order_relaxed);
  const uint64_t taken = std::min(num_bytes, kBytes - (at - num_read.load(std::memory_order_acquire)));
  for_each_run(at, taken, [&](uint64_t to, uint64_t from, uint64_t n) { std::memcpy(bytes + to, data + from, n); });
  num_written.store(at + taken, std::memory_order_release);
  return taken;
}

uint64_t Ring::pop(char* data, uint64_t num_bytes) {
  const uint64_t at = num_read.load(std::memory_order_relaxed);
  const uint64_t given = std::min(num_bytes, num_written.load(std::memory_order_acquire) - at);
  for_each_run(at, given, [&](uint64_t from, uint64_t to, uint64_t n) { std::memcpy(data + to, bytes + from, n); });
  num_read.store(at + given, std::memory_order_release);
  return given;
}

Rings::Rings(const std::string& name, int size)
    : name_(name), size_(size), num_bytes_(kHeaderBytes + static_cast<uint64_t>(size * size) * sizeof(Ring)) {
  const int file = shm_open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) throw std::system_error(errno, std::generic_category(), "shm_open");
  // New memory is all zeros, which is the first state of every ring.
  if (ftruncate(file, static_cast<off_t>(num_bytes_)) == 0)
    memory_ = mmap(nullptr, num_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int error = errno;
  close(file);
  if (memory_ == nullptr || memory_ == MAP_FAILED) throw std::system_error(error, std::generic_category(), "mmap");
  num_ranks_ = static_cast<std::atomic<int>*>(memory_);
  rings_ = reinterpret_cast<Ring*>(static_cast<char*>(memory_) + kHeaderBytes);
  if (++*num_ranks_ == size_) shm_unlink(name_.c_str());
}

Rings::~Rings() {
  if (!are_complete()) shm_unlink(name_.c_str());
  munmap(memory_, num_bytes_);
}

void Exchange::send(int to, const void* data, uint64_t num_bytes) {
  sends_[static_cast<size_t>(to)].push_back({static_cast<char*>(const_cast<void*>(data)), num_bytes});
}
void Exchange::receive(int from, void* data, uint64_t num_bytes) {
  receives_[static_cast<size_t>(from)].push_back({static_cast<char*>(data), num_bytes});
}

bool Exchange::advance(Rings& rings, int rank) {
  bool has_moved = false;
  const auto advance_all = [&](std::deque<Message>& messages, auto&& move) {
    while (!messages.empty()) {
      Message& message = messages.front();
      const uint64_t moved = message.num_bytes == 0 ? 0 : move(message);
      message.data += moved;
      message.num_bytes -= moved;
      has_moved |= moved > 0;
      if (message.num_bytes > 0) return;
      messages.pop_front();
    }
  };
  for (int peer = 0; peer < static_cast<int>(sends_.size()); ++peer) {
    const auto i = static_cast<size_t>(peer);
    advance_all(sends_[i], [&](Message& m) { return rings.between(rank, peer).push(m.data, m.num_bytes); });
    advance_all(receives_[i], [&](Message& m) { return rings.between(peer, rank).pop(m.data, m.num_bytes); });
  }
  return has_moved;
}

bool Exchange::is_done() const {
  const auto is_empty = [](const std::deque<Message>& messages) { return messages.empty(); };
  return std::all_of(sends_.begin(), sends_.end(), is_empty) &&
         std::all_of(receives_.begin(), receives_.end(), is_empty);
}

}  // namespace fake_cuda
