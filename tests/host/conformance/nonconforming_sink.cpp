// A sink with the fault that the environment variable NONCONFORMING names, for sink_test.cpp.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "chassis/plugin.hpp"
#include "chassis/sink.hpp"

namespace {

using namespace chassis;

class NonconformingSink final : public Sink {
 public:
  static constexpr std::string_view kDoc = "test: a sink with a fault";
  explicit NonconformingSink(const Host& host) : Sink(host) {
    if (const char* fault = std::getenv("NONCONFORMING")) fault_ = fault;
  }
  ~NonconformingSink() override {
    ends_ = true;
    if (reader_.joinable()) reader_.join();
  }

  void start(const chassis_sink_start_t& start) override {
    page_.emplace(host(), *start.page);
    if (fault_ == "late" || fault_ == "reads until finish") reader_ = std::thread([this] { read_page(); });
  }
  void scalars(int64_t, double, std::span<const chassis_scalar_t> scalars) override {
    if (fault_ == "needs values" && scalars.empty()) throw Failure(CHASSIS_UNAVAILABLE, "no values");
    if (fault_ == "leaks") kept_.emplace_back(1 << 20, 'x');
  }
  void text(const chassis_sink_text_t& text) override {
    if (fault_ == "knows all texts" && text.type == 99) throw Failure(CHASSIS_UNAVAILABLE, "a text of type 99");
  }
  void finish(const chassis_sink_finish_t&) override {
    if (fault_ != "reads until finish") return;
    ends_ = true;
    reader_.join();
  }

 private:
  void read_page() {
    while (!ends_) {
      page_->html(true);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  std::string fault_;
  std::optional<RunPage> page_;
  std::atomic<bool> ends_ = false;
  std::thread reader_;
  std::vector<std::string> kept_;
};

}  // namespace

CHASSIS_PLUGIN("license=Apache-2.0\n", NonconformingSink)
