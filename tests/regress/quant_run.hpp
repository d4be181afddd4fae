// A small model in a scratch folder, and runs of the program that train an adapter on it in few bits.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/regress/small_run.hpp"
#include "tests/regress/whole_tensors.hpp"
#include "tests/support/largest_relative.hpp"

namespace chassis::test {

struct QuantResult {
  std::vector<double> losses;
  int64_t loaded_bytes = 0;                               // by all ranks
  std::map<std::string, std::vector<std::byte>> tensors;  // from the last checkpoint
};

// Sizes of a Llama whose weights are no whole blocks in any row: 36 × 36, 57 × 36, 36 × 57, 12 × 36; and of one whose
// rows two ranks can cut in blocks of 64.
inline const std::string kOddSizes = "hidden_size = 36, intermediate_size = 57, num_attention_heads = 6",
                         kEvenSizes = "hidden_size = 128, intermediate_size = 256, num_attention_heads = 4";

class QuantRun {
 public:
  explicit QuantRun(int vocab_size = 96, const std::string& sizes = kOddSizes, const std::string& family = "llama",
                    std::string kernels = "\"fused\", \"aten\"")
      : kernels_(std::move(kernels)) {
    write_text(folder_ / "tokens.jsonl",
               token_rows(random_documents({9, 40, 3, 77, 21, 14, 35, 2, 60, 18, 33, 90, 41, 7, 64}, 96)));
    write_text(folder_ / "base.toml",
               head("made", 1) + "[model]\nplugin = \"" + family +
                   "\"\nconfig = { vocab_size = " + std::to_string(vocab_size) + ", " + sizes +
                   ", num_hidden_layers = 3, num_key_value_heads = 2, initializer_range = 0.1 }\n"
                   "[optimizer]\nlr = 1e-3\n");
    const Outcome made = run_process({CHASSIS_PROGRAM, "train", "base.toml"}, folder_.path());
    if (made.exit_code != 0) throw std::runtime_error(made.output);
    std::filesystem::rename(folder_ / "made/final", folder_ / "base");
  }

  const ScratchDirectory& folder() const { return folder_; }

  // `tables` is text of the configuration; empty [quant] options mean nf4 in blocks of 64.
  Outcome train(const std::string& tables, int ranks, const std::vector<std::string>& overrides = {}) {
    return start(tables, ranks, overrides)->wait();
  }
  std::unique_ptr<Process> start(const std::string& tables, int ranks, const std::vector<std::string>& overrides) {
    write_text(folder_ / "run.toml", head("run", 4) + "[model]\npath = \"base\"\n" + tables);
    std::vector<std::string> command = {CHASSIS_PROGRAM, "train", "run.toml"};
    command.insert(command.end(), overrides.begin(), overrides.end());
    if (ranks > 1) command.insert(command.end(), {"--nproc", std::to_string(ranks)});
    return std::make_unique<Process>(command, folder_.path());
  }

  QuantResult operator()(const std::string& tables, int ranks = 1, const std::vector<std::string>& overrides = {}) {
    std::filesystem::remove_all(folder_ / "run");
    const Outcome outcome = train(tables, ranks, overrides);
    if (outcome.exit_code != 0) throw std::runtime_error(outcome.output);
    return result();
  }

  // Runs `verb` with these words after the configuration, on a model directory of the folder.
  Outcome use(const std::string& verb, const std::string& model, const std::string& tables,
              const std::vector<std::string>& words = {}) {
    std::filesystem::remove_all(folder_ / "use");
    write_text(folder_ / "use.toml", head("use", 1) + "[[data.eval]]\npath = \"tokens.jsonl\"\nformat = \"tokens\"\n" +
                                         "[model]\npath = \"" + model + "\"\n" + tables);
    std::vector<std::string> command = {CHASSIS_PROGRAM, verb, "use.toml"};
    command.insert(command.end(), words.begin(), words.end());
    return run_process(command, folder_.path());
  }

  QuantResult result() {
    QuantResult result;
    std::istringstream metrics(text_of_file(folder_ / "run/metrics.jsonl"));
    for (std::string line; std::getline(metrics, line);) {
      const auto record = nlohmann::json::parse(line);
      result.losses.push_back(record.at("loss"));
      if (record.contains("loaded_bytes")) result.loaded_bytes = record.at("loaded_bytes");
    }
    LoadedPlugins plugins;
    for (const auto& [name, tensor] : whole_tensors(folder_ / "run/checkpoints/step-000004", plugins)) {
      const auto* const bytes = tensor.data_as<std::byte>();
      result.tensors[name].assign(bytes, bytes + tensor.num_bytes());
    }
    return result;
  }

 private:
  std::string head(const std::string& run, int steps) const {
    return "schema_version = 1\n[run]\noutput_dir = \"" + run + "\"\nmax_steps = " + std::to_string(steps) +
           "\nseed = 5\nthreads = 1\ndevice = \"cpu\"\n[plugins]\npath = [\"" CHASSIS_TEST_PLUGIN_DIR
           "\"]\n[[data.train]]\npath = \"tokens.jsonl\"\nformat = \"tokens\"\n[data]\ncache_dir = \"cache\"\n"
           "[train]\nseq_len = 32\nglobal_batch_size = 12\nmicro_batch_size = 1\n[attention]\nplugin = \"sdpa\"\n"
           "[kernels]\nplugins = [" +
           kernels_ +
           "]\n[precision]\ncompute = \"fp32\"\n[comm]\ntimeout_s = 60\n"
           "[checkpoint]\nbucket_mib = 1\n";
  }
  const std::string kernels_;
  ScratchDirectory folder_;
};

inline const std::string kLora = "[adapter]\nplugin = \"lora\"\nrank = 4\n[optimizer]\nlr = 2e-3\neps = 1e-4\n";
inline const std::string kFull = "[export]\nwhen = \"never\"\n";

inline std::string quant(const std::string& options = "") {
  return "[quant]\nplugin = \"bnb4\"\n" + options + kLora + kFull;
}

inline bool is_component(const std::string& name) {
  for (const char* suffix : {".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", ".nested_offset"})
    if (name.ends_with(suffix)) return true;
  return name.ends_with("proj.weight");
}

}  // namespace chassis::test
