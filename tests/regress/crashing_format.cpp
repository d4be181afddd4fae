// A format plugin that crashes, kills or stops its process in finish(), which only rank 0 calls.
#include <signal.h>
#include <unistd.h>

#include "chassis/format.hpp"
#include "chassis/options.hpp"
#include "chassis/plugin.hpp"
#include "mark_fault.hpp"

namespace {

using namespace chassis;

class Crashing final : public Format {
 public:
  static constexpr std::string_view kDoc = "crashes, kills or stops the process in finish(), for tests";
  static constexpr bool kWholeTensors = true;
  static const Options& options() {
    static const Options schema = {option("fault", "crash").choices({"crash", "kill", "stop"})};
    return schema;
  }
  explicit Crashing(const Host& host) : Format(host), fault_(option_value<std::string>(host, "fault")) {}

  void layout(const chassis_save_request_t& request, LayoutSink& out) override {
    uint64_t num_bytes = 0;
    for (uint32_t i = 0; i < request.num_tensors; ++i) num_bytes += request.tensors[i]->num_bytes;
    const uint32_t file = out.file("model.bin", "", num_bytes);
    for (uint64_t i = 0, at = 0; i < request.num_tensors; at += request.tensors[i++]->num_bytes)
      out.place(static_cast<uint32_t>(i), file, at);
  }
  void finish(const chassis_save_request_t&, uint32_t, FinishSink&) override {
    if (fault_ == "crash") *static_cast<volatile int*>(nullptr) = 1;
    test::mark_fault();
    kill(getpid(), fault_ == "kill" ? SIGKILL : SIGSTOP);
  }
  void scan(const Directory&, ScanSink&) override {}

 private:
  std::string fault_;
};

}  // namespace

CHASSIS_PLUGIN("license=Apache-2.0\n", Crashing)
