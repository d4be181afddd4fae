// IP addresses: resolves host names, and finds this machine's address on the route to a host.
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

namespace chassis {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  bool is_loopback() const;
  int port() const;
  std::string text() const;  // without the port
};

// All addresses of `host`, IPv4 first. Throws a communication error with the resolver's reason.
std::vector<SocketAddress> resolve(const std::string& host, int port);
// This machine's address on the route to `host`; empty if there is no route. Sends nothing.
std::string local_address_towards(const std::string& host);

}  // namespace chassis
