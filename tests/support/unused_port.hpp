// A port of 127.0.0.1 for a process that a test starts later.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>

namespace chassis::test {

// Returns a port that nothing listens on. It lies below the range from which Linux takes the ports of outgoing
// connections (32768 by default), so that no connection of another test occupies it before the process does.
inline int unused_port() {
  std::random_device random;
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const int port = std::uniform_int_distribution(12'000, 31'999)(random);
    const int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    const bool is_unused = bind(probe, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    close(probe);
    if (is_unused) return port;
  }
  ADD_FAILURE() << "every port that was tried is in use";
  return 0;
}

}  // namespace chassis::test
