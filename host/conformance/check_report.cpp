// The output of `plugins check`: lines of text, or one JSON object.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "host/base/error.hpp"
#include "host/base/json.hpp"
#include "host/base/output.hpp"
#include "host/base/printable.hpp"
#include "host/conformance/check.hpp"

namespace chassis {
namespace {

constexpr size_t kNumOutcomes = 6;
constexpr std::array<const char*, kNumOutcomes> kWords = {"passed", "FAILED", "n/a", "same", "not run", "untested"};
constexpr std::array<const char*, kNumOutcomes> kKeys = {"passed",     "failed",  "not_applicable",
                                                         "same_cause", "not_run", "untested"};
constexpr std::array<const char*, kNumOutcomes> kCounted = {
    "passed", "failed", "not applicable", "with the same cause", "not run", "not compared with anything"};

std::array<size_t, kNumOutcomes> count(const std::vector<CheckResult>& results) {
  std::array<size_t, kNumOutcomes> counts{};
  for (const CheckResult& result : results) ++counts[static_cast<size_t>(result.outcome)];
  return counts;
}

}  // namespace

std::string check_result_text(const CheckResult& result) {
  std::string out = fmt::format("{:<8} {}", kWords[static_cast<size_t>(result.outcome)], result.test);
  if (result.outcome == CheckOutcome::kSameCause) return out + ": as " + result.cause + "\n";
  if (result.outcome == CheckOutcome::kNotRun) return out + ": " + result.text + "\n";
  out += result.seconds > 0 ? fmt::format(" ({:.1f} s)\n", result.seconds) : "\n";
  constexpr size_t kMaxLineBytes = 1000;
  for (size_t at = 0; at < result.text.size();) {
    const size_t end = std::min(result.text.find('\n', at), result.text.size());
    out += "         " + printable(result.text.substr(at, end - at), kMaxLineBytes) + "\n";
    at = end + 1;
  }
  return out;
}

std::string check_summary_text(const std::string& path, const std::vector<CheckResult>& results) {
  const auto counts = count(results);
  const bool is_unknown = std::ranges::all_of(results, [](const CheckResult& result) {
    return result.outcome == CheckOutcome::kUntested || conforms({result});
  });
  std::string out = printable(path) + (conforms(results) ? " conforms"
                                       : is_unknown      ? " is not known to conform"
                                                         : " does not conform");
  const char* separator = ": ";
  for (size_t i = 0; i < kNumOutcomes; ++i) {
    if (counts[i] == 0) continue;
    out += separator + fmt::format("{} {}", counts[i], kCounted[i]);
    separator = ", ";
  }
  return out + "\n";
}

Json check_json(const std::string& path, const std::vector<CheckResult>& results) {
  Json out{{"schema", "chassis.plugins_check/1"}, {"file", path}, {"conforms", conforms(results)}};
  const auto counts = count(results);
  for (size_t i = 0; i < kNumOutcomes; ++i) out[kKeys[i]] = counts[i];
  Json tests = Json::array();
  for (const CheckResult& result : results) {
    Json test{
        {"test", result.test}, {"outcome", kKeys[static_cast<size_t>(result.outcome)]}, {"seconds", result.seconds}};
    if (!result.text.empty()) test["text"] = result.text;
    if (!result.cause.empty()) test["cause"] = result.cause;
    tests.push_back(std::move(test));
  }
  out["tests"] = std::move(tests);
  return out;
}

int check_plugin(CheckRequest request, bool as_json) {
  if (!as_json)
    request.report = [report = std::move(request.report)](const CheckResult& result) {
      std::fputs(check_result_text(result).c_str(), output());
      std::fflush(output());
      if (report) report(result);
    };
  const std::vector<CheckResult> results = run_checks(request);
  const std::string text =
      as_json ? check_json(request.path, results).dump(2, ' ', false, Json::error_handler_t::replace) + "\n"
              : check_summary_text(request.path, results);
  std::fputs(text.c_str(), output());
  std::fflush(output());
  return static_cast<int>(conforms(results) ? ExitCode::kOk : ExitCode::kPlugin);
}

}  // namespace chassis
