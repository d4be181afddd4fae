// The newest value of every metric, in Prometheus' text format (version 0.0.4) at http://127.0.0.1:PORT/metrics.
#include <charconv>
#include <cmath>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "chassis/http.hpp"
#include "chassis/listener.hpp"
#include "chassis/plugin.hpp"
#include "chassis/sink.hpp"

namespace {

using namespace chassis;

// Names of metrics consist of [a-zA-Z0-9_:]; any other character becomes an underscore.
std::string metric_name(std::string_view name) {
  std::string out = "chassis_";
  for (const char c : name) {
    const bool is_kept = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    out += is_kept ? c : '_';
  }
  return out;
}

std::string label_value(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n')
      out += "\\n";
    else
      out += c;
  }
  return out;
}

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

class Prometheus final : public Sink {
 public:
  static constexpr std::string_view kDoc = "the newest metrics at http://127.0.0.1:PORT/metrics, for Prometheus";

  static const Options& options() {
    static const Options schema = {
        option("port", 9400).range(0, 65535).doc("TCP port on the loopback interface; 0: any free one, see the log"),
    };
    return schema;
  }

  explicit Prometheus(const Host& host)
      : Sink(host), port_(static_cast<uint16_t>(option_value<int64_t>(host, "port"))) {}

  void start(const chassis_sink_start_t& start) override {
    labels_ = "{run=\"" + label_value(text_of(start.run_name)) + "\"}";
    try {
      listener_.emplace(port_, http_protocol([this](const HttpRequest& request, bool) { return answer(request); }));
    } catch (const std::system_error& error) {
      throw Failure(CHASSIS_UNAVAILABLE, error.what(), "; choose another port in [log.prometheus]");
    }
    host().log(CHASSIS_LOG_INFO,
               "metrics for Prometheus: http://127.0.0.1:" + std::to_string(listener_->port()) + "/metrics");
  }

  void scalars(int64_t step, double time, std::span<const chassis_scalar_t> scalars) override {
    const std::lock_guard lock(mutex_);
    values_["chassis_step"] = static_cast<double>(step);
    values_["chassis_time_seconds"] = time;
    for (const chassis_scalar_t& scalar : scalars) values_[metric_name(text_of(scalar.name))] = scalar.value;
  }

  void finish(const chassis_sink_finish_t&) override { listener_.reset(); }

 private:
  HttpAnswer answer(const HttpRequest& request) {
    if (request.path != "/metrics") return {.status = 404, .body = "the metrics are at /metrics\n"};
    return {.type = "text/plain; version=0.0.4; charset=utf-8", .body = page()};
  }

  std::string page() {
    const std::lock_guard lock(mutex_);
    std::string out;
    for (const auto& [name, value] : values_)
      out += "# TYPE " + name + " gauge\n" + name + labels_ + " " + number(value) + "\n";
    return out;
  }

  const uint16_t port_;
  std::string labels_;
  std::mutex mutex_;
  std::map<std::string, double> values_;  // by the name of the metric
  std::optional<Listener> listener_;      // uses the members above
};

}  // namespace

CHASSIS_PLUGIN(
    "requires=chassis.options/1\n"
    "requires=chassis.log/1\n"
    "license=Apache-2.0\n",
    Prometheus)
