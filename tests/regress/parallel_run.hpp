// Runs of several processes that are compared with one process: losses, gradient norms, weights, evaluation.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "host/save/weights.hpp"
#include "tests/regress/small_run.hpp"
#include "tests/support/largest_relative.hpp"

namespace chassis::test {

// The text of [[parallel]], and the mesh.
struct Strategy {
  const char* name;
  std::vector<std::string> toml;
  std::vector<std::string> (*mesh)(int ranks);
  int tensor_ways = 1;  // ranks that compute the same rows
};

inline std::vector<std::string> no_mesh(int) { return {}; }

// Two strategies in one run.
inline Strategy beside(const char* name, std::vector<std::string> first, const std::vector<std::string>& second,
                       std::vector<std::string> (*mesh)(int ranks), int tensor_ways) {
  first.emplace_back("[[parallel]]");
  first.insert(first.end(), second.begin(), second.end());
  return {name, std::move(first), mesh, tensor_ways};
}

struct Variant {
  bool large, tied, accumulates, recomputes, frozen, uneven, bf16;

  static Variant of_bits(unsigned bits) {
    const auto bit = [&](unsigned i) { return ((bits >> i) & 1u) != 0; };
    return {bit(6), bit(5), bit(4), bit(3), bit(2), bit(1), bit(0)};
  }
  std::string name() const {
    std::string text;
    const auto add = [&](bool on, const char* word) {
      text += on ? (text.empty() ? "" : "_") + std::string(word) : "";
    };
    add(large, "large"), add(tied, "tied"), add(accumulates, "accumulation"), add(recomputes, "recompute"),
        add(frozen, "frozen");
    add(uneven, "uneven"), add(bf16, "bf16");
    return text.empty() ? "plain" : text;
  }
};

struct Result {
  std::vector<double> losses, grad_norms, evaluations;
  Values weights;
};

class ParallelRun {
 public:
  // `model` is the text of [model]; empty: a Llama with the variant's dims.
  explicit ParallelRun(const Variant& variant, const std::string& model = "") : variant_(variant) {
    std::ostringstream toml;
    const char* dims = variant.large    ? "vocab_size = 174764, hidden_size = 48, intermediate_size = 96"
                       : variant.uneven ? "vocab_size = 101, hidden_size = 36, intermediate_size = 57"
                                        : "vocab_size = 96, hidden_size = 48, intermediate_size = 96";
    toml << "schema_version = 1\n[run]\noutput_dir = \"run\"\nmax_steps = 5\nseed = 5\nthreads = 1\ndevice = \"cpu\"\n"
         << "[plugins]\npath = [\"" << CHASSIS_TEST_PLUGIN_DIR << "\"]\n"
         << "[model]\n";
    if (model.empty())
      toml << "plugin = \"llama\"\nconfig = { " << dims
           << ", num_hidden_layers = 3, num_attention_heads = 6, num_key_value_heads = 2, attention_bias = true, "
           << "initializer_range = 0.1, tie_word_embeddings = " << (variant.tied ? "true" : "false") << " }\n";
    toml << model
         << "[[data.train]]\npath = \"tokens.jsonl\"\nformat = \"tokens\"\n[[data.eval]]\npath = "
            "\"tokens.jsonl\"\nformat = \"tokens\"\n"
         << "[data]\ncache_dir = \"cache\"\n[train]\nseq_len = 32\nglobal_batch_size = 12\n"
         << "[optimizer]\nplugin = \"adamw\"\nlr = 2e-3\nweight_decay = 0.1\neps = 1e-4\n"
         << "[attention]\nplugin = \"" << (model.empty() || variant.bf16 ? "sdpa" : "interval")
         << "\"\n[kernels]\nplugins = [\"fused\", \"grouped\", \"aten\"]\n"
         << "[precision]\ncompute = \"" << (variant.bf16 ? "bf16" : "fp32") << "\"\n"
         << "[recompute]\nmode = \"" << (variant.recomputes ? "full" : "none") << "\"\n"
         << "[checkpoint]\nbucket_mib = 1\n[export]\ndtype = \"fp32\"\n[comm]\ntimeout_s = 60\n";
    if (variant.frozen) toml << "[freeze]\npatterns = [\"layers\\\\.[02]\\\\..*proj\", \"embed\"]\n";
    toml_ = toml.str();
    write_text(folder_ / "tokens.jsonl",
               token_rows(random_documents({9, 40, 3, 77, 21, 14, 35, 2, 60, 18, 33, 90, 41, 7, 64}, 96)));
  }

  // Also finds the plugins of tests.
  void add_stub_plugins() {
    const std::string folder = "path = [\"" CHASSIS_TEST_PLUGIN_DIR "\"";
    toml_.insert(toml_.find(folder) + folder.size(), ", \"" CHASSIS_TEST_STUB_DIR "\"");
  }

  void append(const std::string& toml) { toml_ += toml; }
  std::string file(const std::string& name) const { return text_of_file(folder_ / name); }
  void replace(const std::string& text, const std::string& with) { toml_.replace(toml_.find(text), text.size(), with); }
  // The text of [optimizer].
  void use_optimizer(const std::string& table) {
    const size_t at = toml_.find("[optimizer]\n") + std::string("[optimizer]\n").size();
    toml_.replace(at, toml_.find("[attention]") - at, table);
  }
  // The output of another verb for the configuration of a run; errors() has what it writes to stderr.
  std::string output_of_verb(const std::string& verb, const Strategy* strategy,
                             const std::vector<std::string>& arguments) {
    write_configuration(strategy);
    std::vector<std::string> command = {"/bin/sh",       "-c", "exec \"$0\" \"$@\" 2> errors.txt",
                                        CHASSIS_PROGRAM, verb, "run.toml"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    const Outcome outcome = run_process(command, folder_.path());
    if (outcome.exit_code != 0) throw std::runtime_error(outcome.output + errors());
    return outcome.output;
  }
  std::string errors() const { return text_of_file(folder_ / "errors.txt"); }

  // Trains, and returns what was printed. Throws that as an error if the run fails.
  std::string output_of(const Strategy* strategy, int ranks, const std::vector<std::string>& overrides = {}) {
    std::filesystem::remove_all(folder_ / "run");
    return output_of_rest(strategy, ranks, overrides);
  }
  // Continues the existing run.
  std::string output_of_rest(const Strategy* strategy, int ranks, const std::vector<std::string>& overrides) {
    write_configuration(strategy);
    std::vector<std::string> command = {CHASSIS_PROGRAM, "train", "run.toml"};
    const int micro_batch = variant_.accumulates ? 1 : 12 * (strategy ? strategy->tensor_ways : 1) / ranks;
    command.push_back("train.micro_batch_size=" + std::to_string(micro_batch));
    if (strategy)
      for (const std::string& setting : strategy->mesh(ranks)) command.push_back(setting);
    command.insert(command.end(), overrides.begin(), overrides.end());
    if (ranks > 1) command.insert(command.end(), {"--nproc", std::to_string(ranks)});
    const Outcome outcome = run_process(command, folder_.path());
    if (outcome.exit_code != 0) throw std::runtime_error(outcome.output);
    return outcome.output;
  }

  Result operator()(const Strategy* strategy, int ranks, const std::vector<std::string>& overrides = {}) {
    return result(output_of(strategy, ranks, overrides));
  }
  Result goes_on(const Strategy* strategy, int ranks, const std::vector<std::string>& overrides) {
    return result(output_of_rest(strategy, ranks, overrides));
  }

  // The whole log of the last run's first rank.
  std::string log() const { return text_of_file(folder_ / "run/log.txt"); }
  // Losses and gradient norms of the last run.
  std::pair<std::vector<double>, std::vector<double>> steps() const {
    std::pair<std::vector<double>, std::vector<double>> out;
    for (const auto& record : records()) {
      if (!record.contains("grad_norm")) continue;
      out.first.push_back(record.at("loss"));
      out.second.push_back(record.at("grad_norm"));
    }
    return out;
  }
  // The metrics of the last run's first step.
  nlohmann::json first_record() const { return records().at(0); }
  // The same of its last step.
  nlohmann::json last_training_record() const {
    nlohmann::json last;
    for (const nlohmann::json& record : records())
      if (record.contains("grad_norm")) last = record;
    return last;
  }

 private:
  void write_configuration(const Strategy* strategy) const {
    std::string toml = toml_;
    if (strategy) {
      toml += "[[parallel]]\n";
      for (const std::string& line : strategy->toml) toml += line + "\n";
    }
    write_text(folder_ / "run.toml", toml);
  }
  Result result(const std::string& output) const {
    const bool fails_on_purpose = output.find("on purpose") != std::string::npos;  // in the plan too
    if (!fails_on_purpose) EXPECT_EQ(output.find("could not be planned"), std::string::npos) << output;
    Result result;
    for (const auto& record : records()) {
      if (record.contains("grad_norm")) {
        result.losses.push_back(record.at("loss"));
        result.grad_norms.push_back(record.at("grad_norm"));
      } else {
        result.evaluations.push_back(record.at("eval_loss"));
      }
    }
    Session session(load_config(folder_ / "run.toml",
                                {"run.output_dir=" + (folder_ / "run"), "data.cache_dir=" + (folder_ / "cache")}),
                    {});
    session.allocate();
    load_weights(session, folder_ / "run/final");
    for (const auto& p : session.parameters().all()) result.weights[p->name] = floats_of(p->stored());
    return result;
  }

  std::vector<nlohmann::json> records() const {
    std::vector<nlohmann::json> out;
    std::istringstream metrics(text_of_file(folder_ / "run/metrics.jsonl"));
    for (std::string line; std::getline(metrics, line);) out.push_back(nlohmann::json::parse(line));
    return out;
  }

  Variant variant_;
  ScratchDirectory folder_;
  std::string toml_;
};

inline double largest_difference(const Values& ours, const Values& theirs) {
  double difference = 0.0;
  for (const auto& [name, values] : theirs)
    for (size_t i = 0; i < values.size(); ++i)
      difference = std::max(difference, std::abs(static_cast<double>(values[i]) - ours.at(name).at(i)));
  return difference;
}

// bf16 has 8 significant bits: sums in another order round every value differently. `cells` begin the printed row.
inline void expect_the_numbers(const Result& ours, const Result& alone, bool bf16, const std::string& cells) {
  ASSERT_EQ(alone.losses.size(), 5u);
  ASSERT_EQ(alone.evaluations.size(), 1u);
  const double loss = largest_relative(ours.losses, alone.losses),
               norm = largest_relative(ours.grad_norms, alone.grad_norms),
               evaluation = largest_relative(ours.evaluations, alone.evaluations),
               weights = largest_difference(ours.weights, alone.weights);
  EXPECT_LE(loss, bf16 ? 2e-3 : 2e-6);
  EXPECT_LE(evaluation, bf16 ? 2e-3 : 2e-6);
  EXPECT_LE(norm, bf16 ? 4e-2 : 1e-5);
  EXPECT_LE(weights, bf16 ? 5e-3 : 2e-6);
  std::printf("| %s | %.1e | %.1e | %.1e | %.1e |\n", cells.c_str(), loss, norm, evaluation, weights);
}

// A strategy with a variant of the model and the run.
struct StrategyRow {
  Strategy strategy;
  int ranks;
  unsigned variant;  // see Variant
  std::string name() const { return std::string(strategy.name) + "_" + Variant::of_bits(variant).name(); }
  friend void PrintTo(const StrategyRow& row, std::ostream* out) { *out << row.name(); }
};

inline void expect_the_numbers_of_one_process(const StrategyRow& row) {
  const Variant variant = Variant::of_bits(row.variant);
  ParallelRun run(variant);
  const Result alone = run(nullptr, 1);
  expect_the_numbers(run(&row.strategy, row.ranks), alone, variant.bf16, row.name());
}

// The error with which a run fails.
inline std::string refusal_of(ParallelRun& run, const Strategy& strategy, int ranks,
                              const std::vector<std::string>& overrides = {}) {
  try {
    run(&strategy, ranks, overrides);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was refused";
}
// The same for two ranks or more that compute the same rows; `tables` is the text of [[parallel]].
inline std::string refusal(const std::vector<std::string>& tables, const std::vector<std::string>& overrides,
                           int ranks = 2) {
  ParallelRun run(Variant::of_bits(0));
  return refusal_of(run, {"refused", tables, no_mesh, 2}, ranks, overrides);
}

}  // namespace chassis::test
