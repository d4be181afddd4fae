// Messages between the ranks of a group, over c10d's Gloo; the only place that knows either.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "chassis/comm_backend.hpp"

namespace comm_gloo {

using namespace chassis;

// One way, in flight. Its buffer is touched no more after the destructor.
class Message {
 public:
  virtual ~Message() = default;
  // Until it has arrived or left, at once the second time; false if it was given up. Throws ABORTED with the fact
  // "peer".
  virtual bool wait() = 0;
  // [any] Lets wait return, now or when it is called.
  virtual void give_up() noexcept = 0;
};

struct TransportOptions {
  std::string interface;  // "eth0"; empty: the host's address
  int num_connections;    // to each other rank, each with a thread of its own
};

// [any]
class Transport {
 public:
  virtual ~Transport() = default;
  // Both ends give a message the same tag, of 31 bits, and the same length, at least 1: a longer one ends the process.
  virtual std::unique_ptr<Message> send(uint32_t peer, const void* data, uint64_t num_bytes, uint32_t tag) = 0;
  virtual std::unique_ptr<Message> recv(uint32_t peer, void* data, uint64_t num_bytes, uint32_t tag) = 0;
};

// Connects every rank with every other one; blocks until all have come.
std::unique_ptr<Transport> connect_ranks(const CommGroupDesc& desc, const TransportOptions& options);

}  // namespace comm_gloo
