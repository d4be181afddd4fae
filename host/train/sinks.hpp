// The outputs of metrics and answers: lines on the console, metrics.jsonl, samples.jsonl and generations/.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "host/checkpoint/writer.hpp"
#include "host/train/metrics_file.hpp"
#include "host/train/step_record.hpp"

namespace chassis {

enum class RunOutcome { kDone, kStopped, kFailed };

class MetricsSink {
 public:
  virtual ~MetricsSink() = default;
  virtual void step(const StepRecord& record) = 0;  // every step
  virtual void evaluation(const EvalRecord& record) = 0;
  virtual void sample(const SampleRecord& record) = 0;
  virtual void score(const ScoreRecord& /*record*/) {}
  virtual void checkpoint(int64_t /*step*/, const SaveResult& /*result*/) {}
  virtual void swap(const SwapRecord& /*record*/) {}
  // Called after the last record, also if the run failed.
  virtual void finish(RunOutcome /*outcome*/, int64_t /*step*/) {}
};

struct ConsoleFacts {
  int64_t max_steps = 0;
  int64_t every_steps = 1;
  double flops_per_token = 0.0;
  double peak_flops = 0.0;  // the device's; 0: unknown, so no MFU is shown
  uint64_t total_memory_bytes = 0;
};

// Writes a line for the first step, every `every_steps` steps, the last step and each skipped step. Loss and tok/s are
// means since the previous line.
std::unique_ptr<MetricsSink> make_console_sink(ConsoleFacts facts);
// If a line of a file cannot be written: kStop throws, kCount leaves it out and counts a warning.
enum class LostMetrics { kStop, kCount };
// Appends; every line reaches the file before the next step.
std::unique_ptr<MetricsSink> make_jsonl_sink(MetricsFile file, LostMetrics lost);

// Writes only samples, into samples.jsonl.
std::unique_ptr<MetricsSink> make_samples_sink(MetricsFile file, LostMetrics lost);

// Writes only answers to sets of [[eval.generate]]: each evaluation replaces FOLDER/NAME/step-N.jsonl. The folder is
// created with the first of them.
std::unique_ptr<MetricsSink> make_generations_sink(std::string folder, LostMetrics lost);

// Dense peak in FLOP/s of known devices in half precision; 0 if unknown. Sources: NVIDIA's data sheets of A100, H100
// and H200.
double peak_flops(const std::string& device_name, bool half_precision);

}  // namespace chassis
