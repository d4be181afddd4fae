#include "host/train/sinks.hpp"

#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/base/units.hpp"

namespace chassis {
namespace {

class ConsoleSink final : public MetricsSink {
 public:
  explicit ConsoleSink(ConsoleFacts facts) : facts_(facts) {}

  void step(const StepRecord& r) override {
    mean_step_ms_ = mean_step_ms_ == 0.0 ? r.step_ms : 0.9 * mean_step_ms_ + 0.1 * r.step_ms;
    const double eta = mean_step_ms_ / 1000.0 * static_cast<double>(facts_.max_steps - r.step);
    std::string line = fmt::format("step {}/{} loss {:.4f} gnorm {:.3g} lr {:.2e} | {} tok/s", r.step, facts_.max_steps,
                                   r.loss, r.grad_norm, r.lr, count_text(r.tokens_per_second()));
    if (facts_.peak_flops > 0.0)
      line += fmt::format(" mfu {:.0f}%", 100.0 * r.tokens_per_second() * facts_.flops_per_token / facts_.peak_flops);
    line += " | " + bytes_text(r.peak_memory_bytes);
    if (facts_.total_memory_bytes) line += " of " + bytes_text(facts_.total_memory_bytes);
    line += fmt::format(" | data {:.0f}% | eta {}", r.step_ms > 0.0 ? 100.0 * r.data_ms / r.step_ms : 0.0, duration_text(eta));
    if (r.skipped) line += " | SKIPPED: not finite";
    log::info("{}", line);
  }

  void evaluation(const EvalRecord& r) override {
    log::info("step {} {}: loss {:.4f} perplexity {:.4g} over {} tokens in {}", r.step, r.name, r.loss, r.perplexity,
              count_text(static_cast<double>(r.trained_tokens)), duration_text(r.seconds));
  }

 private:
  ConsoleFacts facts_;
  double mean_step_ms_ = 0.0;
};

class JsonlSink final : public MetricsSink {
 public:
  JsonlSink(const std::string& path, int64_t first_step) : file_(File::open_write(path)) {
    offset_ = keep_until(first_step);
    file_.truncate(offset_);
  }

  void step(const StepRecord& r) override {
    Json json = {{"step", r.step},
                 {"loss", r.loss},
                 {"grad_norm", r.grad_norm},
                 {"lr", r.lr},
                 {"epoch", r.epoch},
                 {"tokens", r.tokens},
                 {"trained_tokens", r.trained_tokens},
                 {"tokens_per_s", r.tokens_per_second()},
                 {"step_ms", r.step_ms},
                 {"data_ms", r.data_ms},
                 {"forward_ms", r.forward_ms},
                 {"backward_ms", r.backward_ms},
                 {"optimizer_ms", r.optimizer_ms},
                 {"peak_memory_bytes", r.peak_memory_bytes},
                 {"active_memory_bytes", r.active_memory_bytes},
                 {"reserved_memory_bytes", r.reserved_memory_bytes}};
    if (r.skipped) json["skipped"] = true;
    for (const auto& [name, value] : r.extra) json[name] = value;
    append(json);
  }

  void evaluation(const EvalRecord& r) override {
    append({{"step", r.step}, {"eval", r.name}, {"eval_loss", r.loss}, {"perplexity", r.perplexity},
            {"trained_tokens", r.trained_tokens}, {"seconds", r.seconds}});
  }

 private:
  void append(const Json& json) {
    const std::string line = json.dump() + "\n";
    file_.pwrite_exact(line.data(), line.size(), offset_);
    offset_ += line.size();
  }

  // Bytes of the leading lines whose step is at most `last`.
  uint64_t keep_until(int64_t last) const {
    std::string text(file_.size(), '\0');
    if (!text.empty()) file_.pread_exact(text.data(), text.size(), 0);
    uint64_t kept = 0;
    for (size_t end; (end = text.find('\n', kept)) != std::string::npos; kept = end + 1) {
      const Json json = Json::parse(text.substr(kept, end - kept), nullptr, false);
      if (!json.is_object() || json.value("step", int64_t{0}) > last) break;
    }
    return kept;
  }

  File file_;
  uint64_t offset_ = 0;
};

}  // namespace

std::unique_ptr<MetricsSink> make_console_sink(ConsoleFacts facts) { return std::make_unique<ConsoleSink>(facts); }

std::unique_ptr<MetricsSink> make_jsonl_sink(const std::string& path, int64_t first_step) {
  return std::make_unique<JsonlSink>(path, first_step);
}

double peak_flops(const std::string& device_name, bool half_precision) {
  if (!half_precision) return 0.0;
  if (device_name.find("H100") != std::string::npos || device_name.find("H200") != std::string::npos) return 989e12;
  if (device_name.find("A100") != std::string::npos) return 312e12;
  return 0.0;
}

}  // namespace chassis
