// Notices at once that the process of a rank has gone: each rank holds a connection to rank 0, and the system closes it
// when the process dies. Without it, a rank that dies before its first collective is noticed only at the deadline.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "host/base/file.hpp"

namespace chassis {

class LifelineServer {
 public:
  // Listens on a free port of one address of this machine, or of all of them if `address` is empty. Calls `gone` on a
  // separate thread, once for each rank whose connection ended without a leave(), 2 s after that: a rank that waited
  // for it in a collective reports the call within that time. An Error that `gone` throws is ignored. Connections of
  // ranks outside [0, num_ranks) are closed, as are those that do not say within 5 s which rank they are; of these it
  // keeps 32, and closes the oldest for a new one. Throws a communication error if it cannot listen.
  LifelineServer(const std::string& address, int num_ranks, std::function<void(int rank)> gone);
  ~LifelineServer();
  LifelineServer(const LifelineServer&) = delete;
  LifelineServer& operator=(const LifelineServer&) = delete;

  int port() const { return port_; }
  // [any] The number of ranks whose connections ended without a leave().
  int num_gone() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  int port_ = 0;
};

class Lifeline {
 public:
  // Connects within 3 s, or throws a communication error with the system's reason.
  Lifeline(const std::string& address, int port, int rank);
  // After this, the end of the connection does not count as the death of the rank.
  void leave() noexcept;

 private:
  File socket_;
};

}  // namespace chassis
