// The operator's end of a connection to a run.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "host/base/file.hpp"
#include "host/control/control_reply.hpp"
#include "host/control/control_request.hpp"
#include "host/control/control_socket.hpp"

namespace chassis {

// An id that no other client chooses.
std::string new_control_id();

class ControlClient {
 public:
  // Connects to the run that trains in this directory. Throws a config error if there is none, or if it trains on
  // another host. Its first reply to a request must arrive within `patience`.
  explicit ControlClient(const std::string& run_directory,
                         std::chrono::milliseconds patience = std::chrono::seconds(10));

  const ControlAddress& address() const { return address_; }
  // Sends the request, calls `on_reply` for every reply to it, and returns the last, which is its end. Blocks until
  // then. Throws a communication error if the run does not answer or closes the connection.
  ControlReply ask(const ControlRequest& request, const std::function<void(const ControlReply&)>& on_reply);

 private:
  void send_line(const std::string& line);
  std::string next_line(bool is_first);
  Error lost(const std::string& what) const;

  const ControlAddress address_;
  const std::chrono::milliseconds patience_;
  File socket_;
  std::string received_;
};

}  // namespace chassis
