#include "host/control/control_socket.hpp"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/hash.hpp"
#include "host/base/json.hpp"
#include "host/base/printable.hpp"
#include "host/control/control_request.hpp"

namespace chassis {
namespace {

constexpr int kBacklog = 64;
constexpr int kMaxNames = 8;  // live sockets of other runs under the same name
constexpr uint64_t kMaxAddressBytes = 64 << 10;

Error socket_failure(const std::string& what, const std::string& path, int error) {
  return config_error(fmt::format("{} '{}': {}", what, printable(path), std::strerror(error)));
}

bool is_private_directory(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() &&
         (info.st_mode & 0077) == 0;
}

void require_own_folder(const std::string& path) {
  const bool is_new = ::mkdir(path.c_str(), 0700) == 0;
  if (!is_new && errno != EEXIST) throw socket_failure("cannot create the directory", path, errno);
  if (is_new && ::chmod(path.c_str(), 0700) != 0) throw socket_failure("cannot set the mode of", path, errno);
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) throw socket_failure("cannot access", path, errno);
  const std::string shown = "'" + printable(path) + "'";
  if (S_ISLNK(info.st_mode)) throw config_error(shown + " is a link; expected a directory");
  if (!S_ISDIR(info.st_mode)) throw config_error(shown + " is not a directory");
  if (info.st_uid != ::geteuid())
    throw config_error(fmt::format("{} belongs to user {}, not to user {}", shown, info.st_uid, ::geteuid()));
  if ((info.st_mode & 07777) != 0700)
    throw config_error(fmt::format("{} has mode {:04o}, expected 0700", shown, info.st_mode & 07777))
        .hint("chmod 700 " + printable(path));
}

// The number of a directory stays the same while it is renamed.
std::string socket_name(const File& run_directory) {
  struct stat info {};
  if (::fstat(run_directory.descriptor(), &info) != 0)
    throw socket_failure("cannot access", run_directory.path(), errno);
  return fmt::format("{:016x}", hash64(fmt::format("{}:{}", info.st_dev, info.st_ino), 0));
}

// Returns 0 or an errno.
int bind_socket(const File& socket, const std::string& path) {
  sockaddr_un address{};
  if (!set_socket_path(address, path)) return ENAMETOOLONG;
  return ::bind(socket.descriptor(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
}

bool is_abandoned(const std::string& path) {
  return !connected_control_socket(path).is_open() && errno == ECONNREFUSED;
}

File new_socket() {
  return File::adopt(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), "control socket");
}

}  // namespace

std::string control_address_text(const ControlAddress& address) {
  return json_line(
             {{"control", kControlVersion}, {"host", address.host}, {"pid", address.pid}, {"socket", address.socket}}) +
         "\n";
}

ControlAddress read_control_address(const std::string& run_directory) {
  const std::string path = run_directory + "/" + kControlFileName;
  const std::string shown = "'" + printable(run_directory) + "'";
  if (path_kind(run_directory) != PathKind::kDirectory) throw config_error(shown + " is not the directory of a run");
  if (path_kind(path) == PathKind::kAbsent)
    throw config_error("no run is training in " + shown).hint("a run without a control socket says so in its log");
  const Json file = parse_json(read_file(path, kMaxAddressBytes), path);
  check_control_version(file, path);
  ControlAddress address;
  address.host = json_string(file, "host", path);
  address.pid = json_int(file, "pid", path);
  address.socket = json_string(file, "socket", path);
  if (address.host != host_name())
    throw config_error(
        fmt::format("the run in {} trains on host '{}', and this is '{}'", shown, printable(address.host), host_name()))
        .hint("run this command on '" + printable(address.host) + "'");
  return address;
}

std::string control_folder(const std::string& runtime, const std::string& fallback) {
  const bool has_runtime = runtime.starts_with('/') && is_private_directory(runtime);
  std::string folder = has_runtime ? runtime + "/chassis" : fallback;
  require_own_folder(folder);
  return folder;
}

ControlListener listen_for_control(const std::string& folder, const File& run_directory) {
  ControlListener listener{.socket = new_socket(), .path = ""};
  if (!listener.socket.is_open()) throw socket_failure("cannot open a socket in", folder, errno);
  const std::string name = socket_name(run_directory);
  int error = EADDRINUSE;
  for (int i = 0; i < kMaxNames && error == EADDRINUSE; ++i) {
    listener.path = folder + "/" + name + (i == 0 ? "" : fmt::format("-{}", i));
    error = bind_socket(listener.socket, listener.path);
    if (error == EADDRINUSE && is_abandoned(listener.path)) {
      ::unlink(listener.path.c_str());
      error = bind_socket(listener.socket, listener.path);
    }
  }
  if (error == ENAMETOOLONG)
    throw config_error(fmt::format("the path '{}' has {} bytes, and that of a socket has at most {}",
                                   printable(listener.path), listener.path.size(), sizeof(sockaddr_un::sun_path) - 1))
        .hint("set XDG_RUNTIME_DIR to a shorter path, or unset it");
  if (error != 0) throw socket_failure("cannot create the socket", listener.path, error);
  if (::chmod(listener.path.c_str(), 0600) != 0 || ::listen(listener.socket.descriptor(), kBacklog) != 0) {
    error = errno;
    ::unlink(listener.path.c_str());
    throw socket_failure("cannot listen at", listener.path, error);
  }
  return listener;
}

bool set_socket_path(sockaddr_un& address, const std::string& path) {
  if (path.empty() || path.size() >= sizeof address.sun_path) return false;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return true;
}

File connected_control_socket(const std::string& path) {
  sockaddr_un address{};
  if (!set_socket_path(address, path)) {
    errno = ENAMETOOLONG;
    return {};
  }
  File socket = new_socket();
  if (!socket.is_open()) return {};
  if (::connect(socket.descriptor(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return socket;
  const int error = errno;
  socket = File();  // may change errno
  errno = error;
  return {};
}

ControlPeer control_peer(const File& connection) {
  ucred peer{};
  socklen_t num_bytes = sizeof peer;
  if (::getsockopt(connection.descriptor(), SOL_SOCKET, SO_PEERCRED, &peer, &num_bytes) != 0) return {};
  return {peer.uid, peer.pid};
}

}  // namespace chassis
