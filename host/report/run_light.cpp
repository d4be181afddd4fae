// The needs of a step are from report.json, its time from metrics.jsonl.
#include "host/report/run_light.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "host/base/json.hpp"
#include "host/base/printable.hpp"
#include "host/report/run_summary.hpp"

namespace chassis {
namespace {

double number_of(const Json& about, const char* key) {
  const auto found = about.find(key);
  return found != about.end() && found->is_number() ? found->get<double>() : 0.0;
}

std::string text_of(const Json& about, const char* key) {
  const auto found = about.find(key);
  return found != about.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

Light light_of(const RunReader& run, const std::string& device_name, const MeasureLimits& measure) {
  Light light;
  const auto unknown = [&light](std::string reason) {
    light.unknown = std::move(reason);
    return light;
  };
  const Json& about = run.about();
  if (!about.is_object() || number_of(about, "needed_flops_per_token") <= 0.0)
    return unknown("report.json does not say what a token needs");
  const std::string device = text_of(about, "device");
  if (device != device_name)
    return unknown(fmt::format("the run was on {}, this machine is {}", printable(device), printable(device_name)));
  if (number_of(about, "world_size") != 1.0) return unknown("the run had several ranks");
  const double tokens_per_second = recent_tokens_per_second(run.history());
  const double step_seconds = run.history().recent_mean("step_ms", 20) / 1000.0;
  if (!(tokens_per_second > 0.0) || !(step_seconds > 0.0)) return unknown("the run has no steps yet");

  light.dtype = text_of(about, "compute");
  light.threads = static_cast<int>(std::clamp(number_of(about, "threads"), 1.0, 4096.0));
  light.limits = measure(light.dtype == "bf16" ? Dtype::bf16 : Dtype::f32, light.threads);
  // An optimizer reads and writes at least each trained value, and its gradient, which are fp32.
  constexpr double kBytesOfTrained = 16.0;
  const double by_products =
      tokens_per_second * number_of(about, "needed_flops_per_token") / light.limits.product_flops;
  const double by_copies =
      kBytesOfTrained * number_of(about, "parameters_trained") / light.limits.copy_bytes / step_seconds;
  light.is_by_copies = by_copies > by_products;
  light.percent = 100.0 * std::max(by_products, by_copies);
  return light;
}

std::string light_text(const Light& light) {
  if (!light.unknown.empty()) return fmt::format("  {:<12}unknown: {}\n", "light", light.unknown);
  return fmt::format("  {:<12}{:.0f} % by {}; best {} product {:.0f} GFLOP/s, copy {:.1f} GB/s, {} thread{}\n", "light",
                     light.percent, light.is_by_copies ? "copies" : "products", light.dtype,
                     light.limits.product_flops / 1e9, light.limits.copy_bytes / 1e9, light.threads,
                     light.threads == 1 ? "" : "s");
}

Json light_json(const Light& light) {
  if (!light.unknown.empty()) return {{"percent", Json()}, {"unknown", light.unknown}};
  return {{"percent", light.percent},
          {"by", light.is_by_copies ? "copies" : "products"},
          {"product_flops", light.limits.product_flops},
          {"copy_bytes_per_s", light.limits.copy_bytes},
          {"dtype", light.dtype},
          {"threads", light.threads}};
}

}  // namespace chassis
