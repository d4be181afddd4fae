// The place of the socket, the modes of its directory, and the content of control.json.
#include "host/control/control_socket.hpp"

#include <gtest/gtest.h>

#include "host/base/error.hpp"
#include "host/control/control_request.hpp"
#include "tests/host/control/control_run.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

class ControlSocketTest : public test::ControlRun {
 protected:
  static unsigned mode_of(const std::string& path) {
    struct stat info {};
    EXPECT_EQ(lstat(path.c_str(), &info), 0) << path;
    return info.st_mode & 07777;
  }
  // The message of the error, or the folder.
  static std::string folder(const std::string& runtime, const std::string& fallback) {
    try {
      return control_folder(runtime, fallback);
    } catch (const Error& error) {
      return error.what();
    }
  }
  std::string client_error() {
    try {
      ControlClient client(run());
      return "connected";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kConfig);
      return error.what();
    }
  }
  void write_address(const ControlAddress& address) {
    test::write_text(run() + "/control.json", control_address_text(address));
  }
};

TEST_F(ControlSocketTest, IsForItsOwnerAlone) {
  const mode_t before = umask(0);
  start();
  umask(before);
  const ControlAddress address = read_control_address(run());
  EXPECT_EQ(address.host, host_name());
  EXPECT_EQ(address.pid, getpid());
  EXPECT_TRUE(address.socket.starts_with(scratch_ / "runtime/chassis/")) << address.socket;
  EXPECT_EQ(mode_of(address.socket), 0600u);
  EXPECT_EQ(mode_of(scratch_ / "runtime/chassis"), 0700u);
}

TEST_F(ControlSocketTest, UsesTheRuntimeDirectoryOnlyIfNobodyElseMayEnter) {
  const std::string runtime = scratch_ / "runtime", fallback = scratch_ / "fallback";
  EXPECT_EQ(folder(runtime, fallback), runtime + "/chassis");
  EXPECT_EQ(folder("", fallback), fallback);
  EXPECT_EQ(mode_of(fallback), 0700u);
  EXPECT_EQ(folder(fallback, "unused"), fallback + "/chassis");
  chmod(runtime.c_str(), 0750);
  EXPECT_EQ(folder(runtime, fallback), fallback);
  EXPECT_EQ(folder(scratch_ / "absent", fallback), fallback);
  EXPECT_EQ(folder("runtime", fallback), fallback) << "a relative path";
}

TEST_F(ControlSocketTest, RefusesADirectoryThatOthersCouldUse) {
  const std::string fallback = scratch_ / "fallback";
  std::filesystem::create_directory(fallback);
  chmod(fallback.c_str(), 0755);
  EXPECT_HAS(folder("", fallback), "has mode 0755, expected 0700");
  chmod(fallback.c_str(), 01700);
  EXPECT_HAS(folder("", fallback), "has mode 1700, expected 0700");
  std::filesystem::remove(fallback);
  std::filesystem::create_directory_symlink(scratch_ / "runtime", fallback);
  EXPECT_HAS(folder("", fallback), "is a link");
  std::filesystem::remove(fallback);
  test::write_text(fallback, "");
  EXPECT_HAS(folder("", fallback), "is not a directory");
  if (geteuid() != 0) return;
  std::filesystem::remove(fallback);
  std::filesystem::create_directory(fallback);
  chmod(fallback.c_str(), 0700);
  ASSERT_EQ(chown(fallback.c_str(), 65534, 65534), 0);
  EXPECT_HAS(folder("", fallback), "belongs to user 65534, not to user 0");
}

TEST_F(ControlSocketTest, APathThatIsTooLongLeavesTheRunWithoutASocket) {
  const std::string name = scratch_ / std::string(200, 'x');
  std::filesystem::create_directory(name);
  chmod(name.c_str(), 0700);
  const test::Variable runtime("XDG_RUNTIME_DIR", name);
  ControlServer server(run(), 0);
  EXPECT_HAS(server.reason(), "bytes, and that of a socket has at most 107");
  EXPECT_EQ(warnings("no control socket"), 1u);
  EXPECT_EQ(path_kind_nofollow(run() + "/control.json"), PathKind::kAbsent);
  // Its functions can still be called.
  server.set_status({{"step", 1}});
  server.set_generation(1);
  server.phase("create");
  server.finish(true, "committed", "");
  EXPECT_FALSE(server.take());
  EXPECT_FALSE(server.cancel_requested());
  EXPECT_HAS(client_error(), "no run is training in");
}

TEST_F(ControlSocketTest, ADirectoryOfAnotherModeLeavesTheRunWithoutASocket) {
  std::filesystem::create_directory(scratch_ / "runtime/chassis");
  chmod((scratch_ / "runtime/chassis").c_str(), 0711);
  const ControlServer server(run(), 0);
  EXPECT_HAS(server.reason(), "has mode 0711, expected 0700");
  EXPECT_EQ(warnings("no control socket"), 1u);
}

TEST_F(ControlSocketTest, AControlFileThatCannotBeWrittenLeavesTheRunWithoutASocket) {
  std::filesystem::create_directory(run() + "/control.json");
  {
    const ControlServer server(run(), 0);
    EXPECT_HAS(server.reason(), "control.json");
  }
  EXPECT_EQ(list_directory(scratch_ / "runtime/chassis").size(), 0u) << "its socket was left";
  EXPECT_EQ(path_kind(run() + "/control.json"), PathKind::kDirectory);
  const ControlServer absent(scratch_ / "absent", 0);
  EXPECT_HAS(absent.reason(), "absent");
}

TEST_F(ControlSocketTest, ReplacesTheSocketOfARunThatWasKilled) {
  start();
  const ControlAddress before = read_control_address(run());
  // A kill leaves both files.
  std::filesystem::create_directories(scratch_ / "kept");
  std::filesystem::rename(before.socket, scratch_ / "kept/socket");
  test::write_text(scratch_ / "kept/control.json", control_address_text(before));
  server_.reset();
  std::filesystem::rename(scratch_ / "kept/socket", before.socket);
  std::filesystem::rename(scratch_ / "kept/control.json", run() + "/control.json");
  EXPECT_HAS(client_error(), "no run is training in");
  EXPECT_HAS(client_error(), "process " + std::to_string(before.pid));
  start(8);
  EXPECT_EQ(read_control_address(run()).socket, before.socket);
  EXPECT_EQ(status().generation, 8);
}

TEST_F(ControlSocketTest, LeavesTheSocketOfALiveRunAlone) {
  start();
  ControlServer other(run(), 9);
  EXPECT_EQ(other.reason(), "");
  EXPECT_EQ(status().generation, 9) << "control.json is of the later one";
  server_.reset();
  EXPECT_EQ(status().generation, 9) << "the earlier one removed the file of the later one";
  // A file of the same length.
  start();
  ControlAddress address = read_control_address(run());
  address.socket.back() = address.socket.back() == '0' ? '1' : '0';
  write_address(address);
  server_.reset();
  EXPECT_EQ(path_kind(run() + "/control.json"), PathKind::kFile);
}

TEST_F(ControlSocketTest, TwoRunsHaveTwoSockets) {
  start();
  std::filesystem::create_directories(scratch_ / "run2");
  ControlServer other(scratch_ / "run2", 9);
  const std::string first = read_control_address(run()).socket, second = read_control_address(scratch_ / "run2").socket;
  EXPECT_FALSE(second.starts_with(first)) << first << " " << second;
}

TEST_F(ControlSocketTest, SaysWhyThereIsNoRunToTalkTo) {
  EXPECT_HAS(client_error(), "no run is training in '" + run() + "'");
  write_address({.host = "node7", .pid = 5, .socket = "/x"});
  EXPECT_HAS(client_error(), "trains on host 'node7', and this is '" + host_name() + "'");
  write_address({.host = host_name(), .pid = 0x7ffffff0, .socket = scratch_ / "gone"});
  EXPECT_HAS(client_error(), "process 2147483632, which wrote control.json, has ended");
  write_address({.host = host_name(), .pid = getpid(), .socket = scratch_ / "gone"});
  EXPECT_HAS(client_error(), "does not listen");
  test::write_text(run() + "/control.json", R"({"control":2})");
  EXPECT_HAS(client_error(), "version 2 of the control protocol; this release has version 1");
  for (const char* text : {"", "[]", R"({"control":1})", R"({"control":1,"host":1})", "\xff"}) {
    test::write_text(run() + "/control.json", text);
    EXPECT_HAS(client_error(), "control.json") << text;
  }
}

}  // namespace
}  // namespace chassis
