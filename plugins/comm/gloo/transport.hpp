// Messages between the ranks of a group, over c10d's Gloo. Only transport.cpp includes c10d and Gloo.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "chassis/comm_backend.hpp"

namespace comm_gloo {

using namespace chassis;

// A message in flight, in one direction. After the destructor nothing touches its buffer.
class Message {
 public:
  virtual ~Message() = default;
  // Blocks until it is sent or received; returns at once the second time. False after abort. Throws ABORTED with the
  // fact "peer".
  virtual bool wait() = 0;
  // [any] Makes wait return, even if it is called later.
  virtual void abort() noexcept = 0;
};

struct TransportOptions {
  std::string interface;  // "eth0"; empty: the host's address
  int num_connections;    // to each other rank, with a thread each
};

// [any]
class Transport {
 public:
  virtual ~Transport() = default;
  // Both ends use the same 31-bit tag and the same length, at least 1: Gloo ends the process on a longer message.
  virtual std::unique_ptr<Message> send(uint32_t peer, const void* data, uint64_t num_bytes, uint32_t tag) = 0;
  virtual std::unique_ptr<Message> recv(uint32_t peer, void* data, uint64_t num_bytes, uint32_t tag) = 0;
};

// Connects every rank with every other one; blocks until all have joined.
std::unique_ptr<Transport> connect_ranks(const CommGroupDesc& desc, const TransportOptions& options);

}  // namespace comm_gloo
