// Lets an operator talk to a run: rank 0 has a Unix socket for lines of JSON. One thread reads requests and answers
// `status`; changes to the run are queued for the thread of the steps, one at a time. Changes nothing itself.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "host/base/json.hpp"
#include "host/control/control_reply.hpp"
#include "host/control/control_request.hpp"

namespace chassis {

struct ControlLimits {
  size_t num_clients = 16;
  size_t unsent_bytes = 1 << 20;                // for a client that does not read, before it is dropped
  std::chrono::milliseconds line_time{10'000};  // for a client to send a whole line; one that awaits a reply may wait
  std::chrono::milliseconds end_time{300};      // for the last replies, when the run ends
};

class ControlServer {
 public:
  // Opens the socket and writes control.json into the run directory. On failure the run has no socket: a counted
  // warning and reason() say why. Throws only if memory is exhausted.
  ControlServer(const std::string& run_directory, int64_t generation, ControlLimits limits = {});
  // Tells clients that the run has ended, and removes the socket and control.json. Takes up to limits.end_time.
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  // Why there is no socket; "" if there is one.
  const std::string& reason() const { return reason_; }

  // [any] for all functions below; none of them blocks.

  // The queued check, swap, commit or rollback, once. It is in progress until finish().
  std::optional<ControlRequest> take();
  // The client of `cancel` asked to stop the request in progress. False again after finish(). A request that was not
  // yet taken is withdrawn instead.
  bool cancel_requested() const;
  // The request in progress has entered this phase. `facts` is an object, or null.
  void phase(const std::string& name, const Json& facts = {});
  // The request in progress has ended with this outcome: "committed", "checked", "refused", "rolled back".
  void finish(bool ok, const std::string& outcome, const std::string& text, const Json& facts = {});
  // The facts of the next replies to `status`. `chassis ctl` shows "step" (integer), "computes" (an object: key of the
  // configuration → plugin) and "probation" (an object) in its own way, and all other values by their keys.
  void set_status(const Json& status);
  // The generation in replies from now on. A request that expects another one is refused.
  void set_generation(int64_t generation);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;  // NULL if there is no socket
  std::string reason_;
};

}  // namespace chassis
