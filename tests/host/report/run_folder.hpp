// Run directories without a run.
#pragma once

#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "host/base/file.hpp"
#include "tests/support/process.hpp"

namespace chassis::test {

inline std::string metrics_line(int64_t step, double shift = 0.0) {
  const double loss =
      2.0 + 3.0 / std::sqrt(static_cast<double>(step)) + 0.1 * std::sin(static_cast<double>(step)) + shift;
  return "{\"step\":" + std::to_string(step) + ",\"loss\":" + std::to_string(loss) +
         ",\"grad_norm\":1.5,\"lr\":0.001,\"tokens_per_s\":12000.5,\"step_ms\":80.0,\"data_ms\":1.0,\"forward_ms\":30."
         "0,"
         "\"backward_ms\":45.0,\"optimizer_ms\":3.0,\"save_ms\":0.0,\"peak_memory_bytes\":1073741824,"
         "\"memory/parameters_bytes\":268435456.0,\"memory/activations_bytes\":536870912.0}\n";
}

inline void append(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::app) << text; }

// Writes a finished run of `num_steps` steps, with an evaluation after each tenth of them.
inline void write_run(const std::string& path, const std::string& name, int64_t num_steps, double shift = 0.0) {
  std::filesystem::create_directories(path);
  write_text(path + "/run.json", "{\"name\": \"" + name + "\"}");
  write_text(path + "/report.json", "{\n  \"schema\": \"chassis.run/1\", \"max_steps\": " + std::to_string(num_steps) +
                                        ", \"plan\": {\"peak_bytes\": 1200000000, \"categories\": {}}}");
  write_text(path + "/resolved.toml", "[optimizer]\nlr = " + std::to_string(0.001 + shift) +
                                          "  # run.toml:3:1\n[[data.train]]\npath = \"a # b\"  # default\n");
  std::string text;
  for (int64_t step = 1; step <= num_steps; ++step) {
    text += metrics_line(step, shift);
    if (step % std::max<int64_t>(1, num_steps / 10) == 0)
      text += "{\"step\":" + std::to_string(step) +
              ",\"eval\":\"held out\",\"eval_loss\":" + std::to_string(2.5 + shift) +
              ",\"perplexity\":12.2,\"trained_tokens\":100,\"seconds\":1.0}\n";
  }
  write_text(path + "/metrics.jsonl", text);
  write_text(path + "/events.jsonl",
             "{\"event\":\"start\",\"time\":100.0,\"step\":0,\"host\":\"h\",\"process\":1}\n"
             "{\"event\":\"warning\",\"time\":100.0,\"key\":\"rows too long\",\"count\":7}\n"
             "{\"event\":\"end\",\"time\":160.0,\"step\":1,\"outcome\":\"done\"}\n");
}

}  // namespace chassis::test
