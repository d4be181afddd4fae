// The rendezvous store: keys and values that all ranks of a run share (c10d's TCPStore).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "host/base/error.hpp"

namespace chassis {

// A communication error: the process that serves the store has ended or hangs.
class StoreLost : public Error {
 public:
  StoreLost(std::string message, bool hangs) : Error(ExitCode::kCommunication, std::move(message)), hangs_(hangs) {}
  // True if it does not answer, although the connection is open.
  bool hangs() const noexcept { return hangs_; }

 private:
  bool hangs_;
};

// [any] Every call takes one or two small requests, 10 µs each on one machine. If the store's process has ended, or
// does not answer within the timeout, the call and all later ones throw StoreLost.
class Store {
 public:
  virtual ~Store() = default;
  // When this returns, all ranks see the value. It may be large, but passes through one process, so tensors are not
  // sent this way.
  virtual void set(const std::string& key, const std::string& value) = 0;
  // nullopt if the key does not exist. Never waits for other ranks.
  virtual std::optional<std::string> find(const std::string& key) = 0;
  // Sets the key unless it exists. Returns whether it did.
  virtual bool set_once(const std::string& key, const std::string& value) = 0;
  // Adds to a counter that starts at 0 and returns its new value. set() must not be used for counters.
  virtual int64_t add(const std::string& key, int64_t amount) = 0;
  virtual void erase(const std::string& key) = 0;
  // How long a request waits for its answer; 10 s by default.
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;
};

// Connects; waits up to `timeout` for a store to answer. All keys get the prefix. Throws a communication error that
// names address and port.
std::unique_ptr<Store> connect_store(const std::string& address, int port, std::chrono::milliseconds timeout,
                                     const std::string& prefix = "");

// Serves a store in this process until it is destroyed.
class StoreServer {
 public:
  // Listens on one address of this machine, or on all of them if `address` is empty. Port 0 chooses a free port. A port
  // in use is a communication error.
  StoreServer(const std::string& address, int port);
  ~StoreServer();
  int port() const { return port_; }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  int port_ = 0;
};

}  // namespace chassis
