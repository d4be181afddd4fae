// A reader that misbehaves as the file `action` says, to test the limits of its process.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "chassis/format.hpp"
#include "chassis/plugin.hpp"

namespace {

class Misbehaving final : public chassis::Format {
 public:
  using Format::Format;
  static constexpr bool kIsolated = true;
  static constexpr std::string_view kDoc = "test: obeys the file 'action'";

  void scan(const chassis::Directory& directory, chassis::ScanSink& out) override {
    uint32_t file = 0;
    while (file < directory.num_files() && directory.entry(file).path != "action") ++file;
    if (file == directory.num_files()) throw chassis::Failure(CHASSIS_NOT_FOUND, "no file 'action'");
    const std::string action = directory.read_text(file, 0, directory.entry(file).num_bytes);
    if (action == "crash") std::abort();
    if (action == "exit") std::_Exit(0);
    if (action == "run") ::execl("/bin/true", "true", nullptr);
    if (action == "fork") ::_exit(::fork() >= 0 ? 0 : 0);
    if (action == "talk") ::socket(AF_INET, SOCK_STREAM, 0);
    if (action == "write") ::open("written", O_WRONLY | O_CREAT, 0600);
    if (action == "remove") ::unlink("action");
    if (action == "memory")
      for (;;) std::memset(new char[64 << 20], 1, 1);
    const int64_t shape[] = {2};
    if (action == "outside") out.tensor("w", CHASSIS_DTYPE_F32, shape, 8, file, 1'000'000);
    if (action == "lie") {
      out.tensor("w", CHASSIS_DTYPE_U8, shape, 2, file, 0);
      ::write(1, "{\"tensor\": 7}\n", 14);
    }
    if (action == "nonsense") ::write(1, "this is no JSON\n", 16);
  }
};

}  // namespace

CHASSIS_PLUGIN("license=Apache-2.0\n", Misbehaving)
