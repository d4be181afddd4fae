// A group of ranks: starts the messages of a batch, and has a thread that waits for them and reduces the pieces that
// arrive.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "chassis/comm_backend.hpp"
#include "chassis/memory.hpp"
#include "schedule.hpp"
#include "transport.hpp"

namespace comm_gloo {

using namespace chassis;

class Job;

class GlooGroup final : public BackendGroup {
 public:
  GlooGroup(const Host& host, const CommGroupDesc& desc, const TransportOptions& options);
  ~GlooGroup() override;

  std::unique_ptr<BackendWork> start(std::span<const chassis_collective_t> calls, void* stream) override;
  void abort() noexcept override;

 private:
  // Called on the group's thread.
  void run();
  void execute(Job& job);
  void reduce_all(Job& job);
  std::vector<Message*> receive_pieces(Job& job, const Reduction& part, char* memory);
  char* piece(char* memory, uint32_t peer) const;
  void wait(Message& message);

  const Host& host_;
  const ScheduleShape shape_;
  Tags tags_;
  std::unique_ptr<Transport> transport_;
  std::optional<Scratch<char>> pieces_;  // two chunks of every other rank; allocated by the first reduction

  std::mutex mutex_;  // guards the queue and the messages of jobs
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> queue_;
  bool stop_ = false;
  std::atomic<bool> aborted_ = false;
  std::thread thread_;
};

}  // namespace comm_gloo
