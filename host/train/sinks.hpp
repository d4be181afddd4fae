// Where metrics go: the console's one line per step, and metrics.jsonl.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "host/base/file.hpp"
#include "host/train/step_record.hpp"

namespace chassis {

class MetricsSink {
 public:
  virtual ~MetricsSink() = default;
  virtual void step(const StepRecord& record) = 0;
  virtual void evaluation(const EvalRecord& record) = 0;
};

struct ConsoleFacts {
  int64_t max_steps = 0;
  double flops_per_token = 0.0;
  double peak_flops = 0.0;        // of the device; 0: unknown, then no MFU
  uint64_t total_memory_bytes = 0;
};

std::unique_ptr<MetricsSink> make_console_sink(ConsoleFacts facts);
// Appends; every line reaches the file before the next step. After a resume, lines of later steps are dropped first.
std::unique_ptr<MetricsSink> make_jsonl_sink(const std::string& path, int64_t first_step);

// Dense peak in FLOP/s of known devices at the compute type, 0 if unknown. Sources: NVIDIA's data sheets of A100, H100 and
// H200.
double peak_flops(const std::string& device_name, bool half_precision);

}  // namespace chassis
