// Raw connections to a port of 127.0.0.1.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>

namespace fake {

// The port in a line such as "metrics: http://127.0.0.1:9400/".
inline uint16_t port_in(const std::string& line) {
  return static_cast<uint16_t>(std::stoi(line.substr(line.find("127.0.0.1:") + 10)));
}

inline int connection_to(uint16_t port) {
  const int file = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(file, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return file;
}

// Returns all that is answered until the server closes, or until `end` has come.
inline std::string answer_of(uint16_t port, const std::string& request, const std::string& end = "") {
  const int file = connection_to(port);
  EXPECT_EQ(send(file, request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
  std::string out;
  char some[512];
  for (ssize_t got = 0; (got = recv(file, some, sizeof some, 0)) > 0;) {
    out.append(some, static_cast<size_t>(got));
    if (!end.empty() && out.find(end) != std::string::npos) break;
  }
  close(file);
  return out;
}

}  // namespace fake
