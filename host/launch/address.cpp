// Resolves names with getaddrinfo, and finds a local address by connecting a UDP socket, which sends nothing.
#include "host/launch/address.hpp"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "host/base/error.hpp"
#include "host/base/file.hpp"

namespace chassis {

bool SocketAddress::is_loopback() const {
  if (family() == AF_INET) return ntohl(reinterpret_cast<const sockaddr_in&>(storage).sin_addr.s_addr) >> 24 == 127;
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr);
}

int SocketAddress::port() const {
  return ntohs(family() == AF_INET ? reinterpret_cast<const sockaddr_in&>(storage).sin_port
                                   : reinterpret_cast<const sockaddr_in6&>(storage).sin6_port);
}

std::string SocketAddress::text() const {
  char host[NI_MAXHOST];
  if (getnameinfo(get(), length, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) return "";
  return host;
}

std::vector<SocketAddress> resolve(const std::string& host, int port) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failure = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found);
  if (failure != 0) throw Error(ExitCode::kCommunication, "cannot resolve '" + host + "': " + gai_strerror(failure));
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = found; entry; entry = entry->ai_next) {
    SocketAddress& address = addresses.emplace_back();
    address.length = entry->ai_addrlen;
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
  }
  freeaddrinfo(found);
  std::stable_partition(addresses.begin(), addresses.end(),
                        [](const auto& address) { return address.family() == AF_INET; });
  return addresses;
}

std::string local_address_towards(const std::string& host) {
  for (const SocketAddress& there : resolve(host, 9)) {
    const File socket = File::adopt(::socket(there.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0), "socket");
    if (!socket.is_open() || connect(socket.descriptor(), there.get(), there.length) != 0) continue;
    SocketAddress here;
    here.length = sizeof here.storage;
    if (getsockname(socket.descriptor(), reinterpret_cast<sockaddr*>(&here.storage), &here.length) == 0)
      return here.text();
  }
  return "";
}

}  // namespace chassis
