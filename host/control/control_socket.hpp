// The socket of a run, and control.json in the run directory, which leads to it. A Unix socket, since its directory
// decides who may connect; not in the run directory, which may be on a network file system, or have a path that is too
// long.
#pragma once

#include <cstdint>
#include <string>

#include "host/base/file.hpp"

struct sockaddr_un;

namespace chassis {

inline constexpr char kControlFileName[] = "control.json";

// The content of control.json.
struct ControlAddress {
  std::string host;
  int64_t pid = 0;
  std::string socket;  // absolute path
};
std::string control_address_text(const ControlAddress& address);
// Reads control.json of the run. Throws a config error if no run is training there, or one on another host.
ControlAddress read_control_address(const std::string& run_directory);

// The directory for sockets of this user's runs: `runtime`/chassis if `runtime` is an absolute path to a directory of
// ours that only we may enter, else `fallback`. Created with mode 0700 if absent. Throws a config error if it is a
// link, another user's, or has another mode.
std::string control_folder(const std::string& runtime, const std::string& fallback);

// A listening socket of mode 0600 in `folder`, named after the run directory. Replaces one of a process that is gone.
// Throws a config error with the reason if the system refuses it.
struct ControlListener {
  File socket;
  std::string path;
};
ControlListener listen_for_control(const std::string& folder, const File& run_directory);

// False if the path is too long for an address, or empty.
bool set_socket_path(sockaddr_un& address, const std::string& path);
// A connection to a socket that does not block, or no file, with errno.
File connected_control_socket(const std::string& path);
// The user and the process at the other end of a connection; uid -1 if unknown.
struct ControlPeer {
  int64_t uid = -1, pid = -1;
};
ControlPeer control_peer(const File& connection);

}  // namespace chassis
