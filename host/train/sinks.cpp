// Writes metrics and answers to the console and to files of the run directory.
#include "host/train/sinks.hpp"

#include <filesystem>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/base/printable.hpp"
#include "host/base/units.hpp"

namespace chassis {
namespace {

// Means over the steps since the last line.
struct Means {
  double losses = 0.0, trained_tokens = 0.0;  // only of steps that were applied
  double tokens = 0.0, step_ms = 0.0, data_ms = 0.0;

  void add(const StepRecord& r) {
    if (!r.skipped) {
      losses += r.loss * static_cast<double>(r.trained_tokens);
      trained_tokens += static_cast<double>(r.trained_tokens);
    }
    tokens += static_cast<double>(r.tokens);
    step_ms += r.step_ms;
    data_ms += r.data_ms;
  }
  double loss(const StepRecord& last) const { return trained_tokens > 0.0 ? losses / trained_tokens : last.loss; }
  double tokens_per_second() const { return step_ms > 0.0 ? tokens * 1000.0 / step_ms : 0.0; }
  double data_percent() const { return step_ms > 0.0 ? 100.0 * data_ms / step_ms : 0.0; }
};

class ConsoleSink final : public MetricsSink {
 public:
  explicit ConsoleSink(ConsoleFacts facts) : facts_(facts) {}

  void step(const StepRecord& r) override {
    mean_step_ms_ = mean_step_ms_ == 0.0 ? r.step_ms : 0.9 * mean_step_ms_ + 0.1 * r.step_ms;
    means_.add(r);
    const bool is_first = std::exchange(is_first_, false);
    if (is_first || r.step % facts_.every_steps == 0 || r.step == facts_.max_steps || r.skipped) print(r);
  }

  void evaluation(const EvalRecord& r) override {
    if (r.perplexity)
      return log::info("step {} {}: loss {:.4f} perplexity {:.4g} over {} tokens in {}", r.step, r.name, r.loss,
                       *r.perplexity, count_text(static_cast<double>(r.trained_tokens)), duration_text(r.seconds));
    std::string metrics;
    for (const auto& [name, value] : r.objective) metrics += fmt::format(" {} {:.4g}", name, value);
    log::info("step {} {}: loss {:.4f}{} over {} rows in {}", r.step, r.name, r.loss, metrics, r.num_units,
              duration_text(r.seconds));
  }

  void score(const ScoreRecord& r) override {
    log::info("step {} {}: score {:.4f}, {} of {} answers passed, {} cut, in {}", r.step, r.name, r.score(),
              r.num_passed, r.num_rows, r.num_cut, duration_text(r.seconds));
  }

  void sample(const SampleRecord& r) override {
    constexpr size_t kMaxBytes = 1000;
    log::info("step {} sample {}/{}: \"{}\" -> \"{}\" ({} tokens, {})", r.step, r.index, r.num_prompts,
              printable(r.prompt), printable(r.answer, kMaxBytes), r.num_tokens, r.finish_reason);
  }

 private:
  void print(const StepRecord& r) {
    const Means means = std::exchange(means_, {});
    const double eta = mean_step_ms_ / 1000.0 * static_cast<double>(facts_.max_steps - r.step);
    const double tokens_per_second = means.tokens_per_second();
    std::string line = fmt::format("step {}/{} loss {:.4f} gnorm {:.3g} lr {:.2e} | {} tok/s", r.step, facts_.max_steps,
                                   means.loss(r), r.grad_norm, r.lr, count_text(tokens_per_second));
    if (facts_.peak_flops > 0.0)
      line += fmt::format(" mfu {:.0f}%", 100.0 * tokens_per_second * facts_.flops_per_token / facts_.peak_flops);
    line += " | " + bytes_text(r.peak_memory_bytes);
    if (facts_.total_memory_bytes) line += " of " + bytes_text(facts_.total_memory_bytes);
    line += fmt::format(" | data {:.0f}% | eta {}", means.data_percent(), duration_text(eta));
    if (r.skipped) line += " | SKIPPED: not finite";
    log::info("{}", line);
  }

  ConsoleFacts facts_;
  Means means_;
  double mean_step_ms_ = 0.0;
  bool is_first_ = true;
};

// Lines of a file in the run directory.
class JsonLines {
 public:
  JsonLines(MetricsFile file, LostMetrics lost) : file_(std::move(file.file)), offset_(file.offset), lost_(lost) {
    name_ = std::filesystem::path(file_.path()).filename().string();
  }

  void append(const Json& json) {
    const std::string line = json_line(json) + "\n";
    try {
      if (file_.is_deleted())
        throw storage_error(name_ + " was deleted while the run writes to it").hint("keep the run directory as it is");
      file_.pwrite_exact(line.data(), line.size(), offset_);
      offset_ += line.size();
    } catch (const Error& cause) {
      if (lost_ == LostMetrics::kStop) throw;
      counted_warning("lines missing from " + name_, cause.message() + "; the number of missing lines is counted");
      if (file_.size() > offset_) file_.truncate(offset_);  // removes a partly written line
    }
  }

 private:
  File file_;
  std::string name_;
  uint64_t offset_ = 0;
  LostMetrics lost_;
};

class JsonlSink final : public MetricsSink {
 public:
  JsonlSink(MetricsFile file, LostMetrics lost) : lines_(std::move(file), lost) {}

  void step(const StepRecord& r) override {
    Json json = {{"step", r.step}};
    r.for_each_value([&](const auto& name, auto value) { json[name] = value; });
    lines_.append(json);
  }

  void evaluation(const EvalRecord& r) override {
    Json json = {{"step", r.step}, {"eval", r.name}, {"eval_loss", r.loss}};
    r.for_each_value([&](const auto& name, auto value) { json[name] = value; });
    lines_.append(json);
  }

  void score(const ScoreRecord& r) override {
    lines_.append({{"step", r.step},
                   {"eval", r.name},
                   {"score", r.score()},
                   {"passed", r.num_passed},
                   {"rows", r.num_rows},
                   {"cut", r.num_cut},
                   {"seconds", r.seconds}});
  }

  void sample(const SampleRecord&) override {}

 private:
  JsonLines lines_;
};

class SamplesSink final : public MetricsSink {
 public:
  SamplesSink(MetricsFile file, LostMetrics lost) : lines_(std::move(file), lost) {}

  void step(const StepRecord&) override {}
  void evaluation(const EvalRecord&) override {}
  void sample(const SampleRecord& r) override {
    lines_.append({{"step", r.step},
                   {"prompt", r.prompt},
                   {"answer", r.answer},
                   {"finish_reason", r.finish_reason},
                   {"answer_tokens", r.num_tokens}});
  }

 private:
  JsonLines lines_;
};

class GenerationsSink final : public MetricsSink {
 public:
  GenerationsSink(std::string folder, LostMetrics lost) : folder_(std::move(folder)), lost_(lost) {}

  void step(const StepRecord&) override {}
  void evaluation(const EvalRecord&) override {}
  void sample(const SampleRecord&) override {}
  void score(const ScoreRecord& r) override {
    try {
      const std::string folder = folder_ + "/" + r.name;
      create_directories(folder);
      write_file_atomic(fmt::format("{}/step-{}.jsonl", folder, r.step), r.answers);
    } catch (const Error& cause) {
      if (lost_ == LostMetrics::kStop) throw;
      counted_warning("answers missing from generations", cause.message());
    }
  }

 private:
  const std::string folder_;
  const LostMetrics lost_;
};

}  // namespace

std::unique_ptr<MetricsSink> make_console_sink(ConsoleFacts facts) { return std::make_unique<ConsoleSink>(facts); }

std::unique_ptr<MetricsSink> make_jsonl_sink(MetricsFile file, LostMetrics lost) {
  return std::make_unique<JsonlSink>(std::move(file), lost);
}

std::unique_ptr<MetricsSink> make_samples_sink(MetricsFile file, LostMetrics lost) {
  return std::make_unique<SamplesSink>(std::move(file), lost);
}

std::unique_ptr<MetricsSink> make_generations_sink(std::string folder, LostMetrics lost) {
  return std::make_unique<GenerationsSink>(std::move(folder), lost);
}

double peak_flops(const std::string& device_name, bool half_precision) {
  if (!half_precision) return 0.0;
  if (device_name.find("H100") != std::string::npos || device_name.find("H200") != std::string::npos) return 989e12;
  if (device_name.find("A100") != std::string::npos) return 312e12;
  return 0.0;
}

}  // namespace chassis
