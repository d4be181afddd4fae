// A reader that does what a file made it do: `wish` says which. What its process is allowed is under test.
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
  static constexpr std::string_view kDoc = "test: obeys the file 'wish'";

  void scan(const chassis::Directory& directory, chassis::ScanSink& out) override {
    uint32_t file = 0;
    while (file < directory.num_files() && directory.entry(file).path != "wish") ++file;
    if (file == directory.num_files()) throw chassis::Failure(CHASSIS_NOT_FOUND, "no wish");
    const std::string wish = directory.read_text(file, 0, directory.entry(file).num_bytes);
    if (wish == "crash") std::abort();
    if (wish == "exit") std::_Exit(0);
    if (wish == "run") ::execl("/bin/true", "true", nullptr);
    if (wish == "fork") ::_exit(::fork() >= 0 ? 0 : 0);
    if (wish == "talk") ::socket(AF_INET, SOCK_STREAM, 0);
    if (wish == "write") ::open("written", O_WRONLY | O_CREAT, 0600);
    if (wish == "remove") ::unlink("wish");
    if (wish == "memory")
      for (;;) std::memset(new char[64 << 20], 1, 1);
    const int64_t shape[] = {2};
    if (wish == "outside") out.tensor("w", CHASSIS_DTYPE_F32, shape, 8, file, 1'000'000);
    if (wish == "lie") {
      out.tensor("w", CHASSIS_DTYPE_U8, shape, 2, file, 0);
      ::write(1, "{\"tensor\": 7}\n", 14);
    }
    if (wish == "nonsense") ::write(1, "this is no JSON\n", 16);
  }
};

}  // namespace

CHASSIS_PLUGIN("license=Apache-2.0\n", Misbehaving)
