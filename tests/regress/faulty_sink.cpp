// A sink with a fault, for sinks_test.cpp. Otherwise it writes what it gets into sink.txt of the run directory.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "chassis/plugin.hpp"
#include "chassis/sink.hpp"

namespace {

using namespace chassis;

class FaultySink final : public Sink {
 public:
  static constexpr std::string_view kDoc = "test: a sink with a fault";
  static const Options& options() {
    static const Options schema = {
        option("fault", "none")
            .choices({"none", "start", "scalars", "odd", "slow", "block", "block at the end", "descriptors", "umask",
                      "signal", "folder"}),
    };
    return schema;
  }
  explicit FaultySink(const Host& host) : Sink(host), fault_(option_value<std::string>(host, "fault")) {}

  void start(const chassis_sink_start_t& start) override {
    if (fault_ == "start") throw Failure(CHASSIS_UNAVAILABLE, "no start today");
    out_.open(std::string(text_of(start.output_dir)) + "/sink.txt", std::ios::app);
    if (fault_ == "descriptors")
      while (dup(0) >= 0) {
      }
    out_ << "start " << start.first_step << " of " << start.max_steps << " " << text_of(start.run_name) << std::endl;
  }
  void scalars(int64_t step, double, std::span<const chassis_scalar_t> scalars) override {
    if (fault_ == "scalars" || (fault_ == "odd" && step % 2 == 1)) throw Failure(CHASSIS_UNAVAILABLE, "a bad step");
    if (fault_ == "umask") umask(0);
    if (fault_ == "signal") signal(SIGSEGV, SIG_DFL);
    if (fault_ == "folder" && chdir("/") != 0) throw Failure(CHASSIS_UNAVAILABLE, "no folder");
    if (fault_ == "slow") std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (fault_ == "block") std::this_thread::sleep_for(std::chrono::hours(1));
    out_ << "step " << step << " " << text_of(scalars[0].name) << "\n";
  }
  void text(const chassis_sink_text_t& text) override {
    out_ << "text " << text.type << " " << text_of(text.name) << "\n";
  }
  void finish(const chassis_sink_finish_t& finish) override {
    if (fault_ == "block at the end") std::this_thread::sleep_for(std::chrono::hours(1));
    out_ << "finish " << finish.outcome << " at " << finish.step << " dropped " << finish.num_dropped << std::endl;
  }

 private:
  const std::string fault_;
  std::ofstream out_;
};

}  // namespace

CHASSIS_PLUGIN(
    "requires=chassis.options/1\n"
    "license=Apache-2.0\n",
    FaultySink)
