// The rendezvous: keys and values that all ranks of a run see (c10d's TCPStore).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "host/base/error.hpp"

namespace chassis {

// A communication error: the process that serves the store is gone, or hangs.
class StoreLost : public Error {
 public:
  StoreLost(std::string message, bool hangs) : Error(ExitCode::kCommunication, std::move(message)), hangs_(hangs) {}
  // It is silent; its connection stands.
  bool hangs() const noexcept { return hangs_; }

 private:
  bool hangs_;
};

// Every call is a small request or two, 10 µs each on one machine, and may come from any thread. When the store's
// process is gone, or silent for longer than the timeout, it throws StoreLost, and so do all later calls.
class Store {
 public:
  virtual ~Store() = default;
  // When it returns all ranks see it. Values may be large, but pass through one process: tensors go another way.
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Nothing if the key is not there. Never blocks on other ranks.
  virtual std::optional<std::string> find(const std::string& key) = 0;
  // Sets the key unless it is there. Returns whether it did.
  virtual bool set_once(const std::string& key, const std::string& value) = 0;
  // Adds to a counter that starts at 0 and returns its new value. Counters are not set.
  virtual int64_t add(const std::string& key, int64_t amount) = 0;
  virtual void erase(const std::string& key) = 0;
  // How long a request waits for its answer; 10 s at first.
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;
};

// Connects, waiting up to `timeout` for a store to answer. `prefix` is put before all keys. Throws a communication
// error that names address and port.
std::unique_ptr<Store> connect_store(const std::string& address, int port, std::chrono::milliseconds timeout,
                                     const std::string& prefix = "");

// Serves a store in this process until destroyed.
class StoreServer {
 public:
  // On one address of this machine, or on all of them if it is empty. Port 0 takes a free one; one that is in use is a
  // communication error.
  StoreServer(const std::string& address, int port);
  ~StoreServer();
  int port() const { return port_; }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  int port_ = 0;
};

}  // namespace chassis
