// The state that the thread of a control socket and the threads of its run share: the request in progress, replies on
// their way to clients, the status. Its mutex is never held during a call that may block.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/control/control_reply.hpp"
#include "host/control/control_request.hpp"

namespace chassis {

// A request that was accepted, until its end.
struct ControlTask {
  ControlRequest request;
  uint64_t client = 0;
  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  bool is_taken = false;
  std::string phase = "queued";

  std::string text() const;
  double ms() const;
};

class ControlQueue {
 public:
  explicit ControlQueue(int64_t generation);

  // For the threads of the run; ControlServer describes them.
  std::optional<ControlRequest> take();
  bool cancel_requested() const { return cancels_; }
  void phase(const std::string& name, const Json& facts);
  void finish(bool ok, const std::string& outcome, const std::string& text, const Json& facts);
  void set_status(const Json& status);
  void set_generation(int64_t generation);
  void end();

  // For the thread of the socket.
  bool is_ending() const { return is_ending_; }
  // Readable after the threads of the run have added lines or called end().
  const File& wakes() const { return wakes_; }
  void forget_wakes();
  // The first reply to a request: that it is accepted, or its end.
  ControlReply answer(const ControlRequest& request, uint64_t client);
  int64_t generation() const;
  // Replies for clients, by their numbers, in order; each is handed out once.
  using Lines = std::vector<std::pair<uint64_t, std::string>>;
  Lines take_lines();
  // True if this client will get further replies.
  bool awaits(uint64_t client) const;
  // The id of the request whose end this client awaits; "" if there is none.
  std::string awaited_id(uint64_t client) const;

 private:
  void wake() const;
  void reply(const ControlTask& task, ControlReply said);
  ControlReply answer_status(const ControlRequest& request) const;
  ControlReply cancel(const ControlRequest& request);
  ControlReply add(const ControlRequest& request, uint64_t client);

  File wakes_;
  std::atomic<bool> is_ending_ = false, cancels_ = false;
  std::atomic<bool> has_untaken_ = false;  // spares take() the mutex
  mutable std::mutex mutex_;
  int64_t generation_;
  std::shared_ptr<const Json> status_;
  std::optional<ControlTask> task_, decision_;  // decision_: a commit or rollback of the swap in task_
  Lines lines_;
};

// A reply line with its line break.
std::string control_line(const ControlReply& reply);
// The end of a request that is refused.
ControlReply refused_reply(std::string id, std::string text, int64_t generation);

}  // namespace chassis
