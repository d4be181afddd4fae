// The records that sinks get: one for each optimizer step, evaluation and sample.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace chassis {

using NamedValues = std::vector<std::pair<std::string, double>>;

struct StepRecord {
  int64_t step = 0;
  double loss = 0.0;       // of the whole global batch: Σ cross entropy ÷ trained tokens, or that of the objective
  double grad_norm = 0.0;  // before clipping
  double lr = 0.0;
  double epoch = 0.0;
  uint64_t tokens = 0;
  uint64_t trained_tokens = 0;
  double step_ms = 0.0;
  double data_ms = 0.0;
  double forward_ms = 0.0;
  double backward_ms = 0.0;
  double optimizer_ms = 0.0;
  double save_ms = 0.0;            // time of saves since the previous step, during which nothing was trained
  uint64_t peak_memory_bytes = 0;  // peak of active memory since the run began
  uint64_t active_memory_bytes = 0;
  uint64_t reserved_memory_bytes = 0;
  // "memory/activations_bytes" …: the maximum of each category at the ends of forward, backward and the step.
  NamedValues memory;
  NamedValues objective;  // its terms and metrics
  bool skipped = false;  // not applied, because loss or gradients were not finite
  NamedValues extra;     // other metrics, such as those of plugins
  NamedValues routers;   // "router/layers.3/max_load" …, in steps at which the loads of experts are written

  double tokens_per_second() const { return step_ms > 0.0 ? static_cast<double>(tokens) * 1000.0 / step_ms : 0.0; }

  // Calls visit(name, value) for all but the step, with their names in metrics.jsonl.
  template <typename Visit>
  void for_each_value(Visit&& visit) const {
    visit("loss", loss);
    visit("grad_norm", grad_norm);
    for (const auto& [name, value] : objective) visit(name, value);
    visit("lr", lr);
    visit("epoch", epoch);
    visit("tokens", tokens);
    visit("trained_tokens", trained_tokens);
    visit("tokens_per_s", tokens_per_second());
    visit("step_ms", step_ms);
    visit("data_ms", data_ms);
    visit("forward_ms", forward_ms);
    visit("backward_ms", backward_ms);
    visit("optimizer_ms", optimizer_ms);
    visit("save_ms", save_ms);
    visit("peak_memory_bytes", peak_memory_bytes);
    visit("active_memory_bytes", active_memory_bytes);
    visit("reserved_memory_bytes", reserved_memory_bytes);
    for (const auto& [name, value] : memory) visit(name, value);
    if (skipped) visit("skipped", true);
    for (const auto& [name, value] : extra) visit(name, value);
    for (const auto& [name, value] : routers) visit(name, value);
  }
};

struct EvalRecord {
  int64_t step = 0;
  std::string name;
  double loss = 0.0;
  std::optional<double> perplexity = {};  // of cross entropy
  NamedValues objective = {};             // the objective's terms and metrics
  uint64_t trained_tokens = 0;            // 0 with an objective
  uint64_t num_units = 0;                 // with an objective: pairs, answers or texts
  double seconds = 0.0;

  // Calls visit(name, value) for all but step, name and loss.
  template <typename Visit>
  void for_each_value(Visit&& visit) const {
    for (const auto& [metric, value] : objective) visit(metric, value);
    if (perplexity) {
      visit("perplexity", *perplexity);
      visit("trained_tokens", trained_tokens);
    } else {
      visit("rows", num_units);
    }
    visit("seconds", seconds);
  }
};

// The answers to a set of [[eval.generate]].
struct ScoreRecord {
  int64_t step = 0;
  std::string name;
  uint64_t num_passed = 0;
  uint64_t num_cut = 0;  // answers that ended by length
  uint64_t num_rows = 0;
  double seconds = 0.0;
  std::string answers = {};  // a line of JSON for each row

  double score() const { return num_rows > 0 ? static_cast<double>(num_passed) / static_cast<double>(num_rows) : 0.0; }
};

// A change of what computes the steps, made between two of them.
struct SwapRecord {
  int64_t step = 0;         // the last one before it
  int64_t generation = 0;   // in force after it; the one before the first swap is 0
  std::string id;           // of the request
  std::string outcome;      // "activated", "committed", "refused" or "rolled back"
  std::string cause = {};   // if it was refused or rolled back
  std::string change = {};  // "attention.plugin: flex -> sdpa, …"
  NamedValues values = {};  // "pause_ms", "pause_steps", "sent_bytes" …
};

// The answer to one of sample.prompts.
struct SampleRecord {
  int64_t step = 0;
  size_t index = 1;  // number of the prompt, from 1
  size_t num_prompts = 1;
  std::string prompt;
  std::string answer;
  std::string finish_reason;  // "stop" or "length"
  uint64_t num_tokens = 0;    // in the answer
};

}  // namespace chassis
