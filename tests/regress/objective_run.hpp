// Runs with objectives: a small Llama that is trained on pairs, labelled answers, classes, rollouts or a teacher, whose
// rows are made here from random words.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/regress/small_run.hpp"
#include "tests/regress/whole_tensors.hpp"

namespace chassis::test {

struct Method {
  const char* name;
  const char* task;
  const char* objective;  // the text of [objective]
  const char* format;
  const char* tables = "";  // further tables, such as [adapter]
  bool has_base = false;    // starts from a model directory

  friend void PrintTo(const Method& method, std::ostream* out) { *out << method.name; }
};

inline const std::vector<Method>& methods() {
  static const std::vector<Method> all = {
      {"dpo", "preference", "plugin = \"dpo\"\nbeta = 0.3\nsft_weight = 0.5\n", "preference"},
      {"dpo_aot", "preference", "plugin = \"dpo\"\nloss = [\"aot\"]\n", "preference"},
      {"dpo_lora", "preference", "plugin = \"dpo\"\nbeta = 0.3\n", "preference",
       "[adapter]\nplugin = \"lora\"\nrank = 4\n", true},
      {"dpo_saved_module", "preference", "plugin = \"dpo\"\nloss = [\"ipo\"]\n", "preference",
       "[adapter]\nplugin = \"lora\"\nrank = 4\nmodules_to_save = [\"embed_tokens\"]\n", true},
      {"kto", "preference", "plugin = \"kto\"\n", "labelled"},
      {"orpo", "preference", "plugin = \"orpo\"\n", "preference"},
      {"simpo", "preference", "plugin = \"cpo\"\nloss = \"simpo\"\ngamma = 0.7\n", "preference"},
      {"reward", "reward", "plugin = \"reward\"\ncenter_coefficient = 0.01\n", "preference"},
      {"reward_lora", "reward", "plugin = \"reward\"\n", "preference", "[adapter]\nplugin = \"lora\"\nrank = 4\n",
       true},
      {"classify", "classify", "plugin = \"classify\"\nnum_labels = 3\n", "classification"},
      {"policy", "policy", "plugin = \"policy\"\nold_logps = \"model\"\nkl_beta = 0.05\n", "rollouts"},
      {"distill", "distill", "plugin = \"distill\"\ntop_k = 4\ntemperature = 1.5\nce_weight = 0.5\n", "distillation"},
  };
  return all;
}
inline const Method& method(const std::string& name) {
  for (const Method& one : methods())
    if (one.name == name) return one;
  throw std::runtime_error("no method " + name);
}

class ObjectiveRun {
 public:
  explicit ObjectiveRun(const Method& method, const std::string& more = "") : method_(method) {
    std::ostringstream toml;
    toml << "schema_version = 1\n[run]\noutput_dir = \"run\"\nmax_steps = 4\nseed = 5\nthreads = 1\ndevice = \"cpu\"\n"
         << kTokenizer << "[model]\n"
         << (method.has_base ? std::string("path = \"base\"\n") : model_text())
         << "[[data.train]]\npath = \"rows.jsonl\"\nformat = \"" << method.format << "\"\n"
         << "[[data.eval]]\npath = \"rows.jsonl\"\nformat = \"" << method.format << "\"\n"
         << "[data]\ncache_dir = \"cache\"\ntemplate = \"chatml\"\n"
         << "[train]\ntask = \"" << method.task << "\"\nseq_len = 256\nglobal_batch_size = 12\n"
         << "[objective]\n"
         << method.objective << method.tables
         << "[optimizer]\nplugin = \"adamw\"\nlr = 2e-3\nweight_decay = 0.1\neps = 1e-4\n"
         << "[attention]\nplugin = \"interval\"\n[kernels]\nplugins = [\"fused\", \"aten\"]\n"
         << "[precision]\ncompute = \"fp32\"\n[checkpoint]\nbucket_mib = 1\n[export]\ndtype = \"fp32\"\n"
         << "[comm]\ntimeout_s = 60\n"
         << more;
    toml_ = toml.str();
    write_text(folder_ / "rows.jsonl", rows());
    std::filesystem::create_directory(folder_ / "tokenizer");
    write_text(folder_ / "tokenizer/words.txt", "assistant\nuser\n");
    if (method.has_base) make_base();
  }

  const ScratchDirectory& folder() const { return folder_; }
  void replace(const std::string& text, const std::string& with) {
    const size_t at = toml_.find(text);
    if (at == std::string::npos) throw std::runtime_error("no " + text);
    toml_.replace(at, text.size(), with);
  }

  Outcome attempt(const std::vector<std::string>& parallel, int ranks, const std::vector<std::string>& overrides) {
    std::string toml = toml_;
    if (!parallel.empty()) toml += "[[parallel]]\n";
    for (const std::string& line : parallel) toml += line + "\n";
    write_text(folder_ / "run.toml", toml);
    std::vector<std::string> command = {CHASSIS_PROGRAM, "train", "run.toml"};
    command.insert(command.end(), overrides.begin(), overrides.end());
    if (ranks > 1) command.insert(command.end(), {"--nproc", std::to_string(ranks)});
    return run_process(command, folder_.path());
  }
  // `parallel`: the lines of [[parallel]]. Continues an existing run.
  std::string train(const std::vector<std::string>& parallel = {}, int ranks = 1,
                    const std::vector<std::string>& overrides = {}) {
    const Outcome outcome = attempt(parallel, ranks, overrides);
    if (outcome.exit_code != 0) throw std::runtime_error(outcome.output);
    return outcome.output;
  }

  struct Result {
    std::vector<std::map<std::string, double>> steps, evaluations;  // the numbers of metrics.jsonl
    std::map<std::string, std::vector<float>> tensors;              // of the last checkpoint
  };
  Result result(int64_t step = 4) {
    Result result;
    std::istringstream metrics(text_of_file(folder_ / "run/metrics.jsonl"));
    for (std::string line; std::getline(metrics, line);) {
      const auto record = nlohmann::json::parse(line);
      std::map<std::string, double> numbers;
      for (const auto& [name, value] : record.items())
        if (value.is_number()) numbers[name] = value;
      (record.contains("eval") ? result.evaluations : result.steps).push_back(std::move(numbers));
    }
    LoadedPlugins plugins;
    for (const auto& [name, tensor] :
         whole_tensors(folder_ / ("run/checkpoints/step-00000" + std::to_string(step)), plugins))
      result.tensors[name] = floats_of(tensor);
    return result;
  }
  Result operator()(const std::vector<std::string>& parallel = {}, int ranks = 1,
                    const std::vector<std::string>& overrides = {}) {
    std::filesystem::remove_all(folder_ / "run");
    train(parallel, ranks, overrides);
    return result();
  }

 private:
  static constexpr const char* kTokenizer =
      "[plugins]\npath = [\"" CHASSIS_TEST_PLUGIN_DIR "\", \"" CHASSIS_TEST_STUB_DIR
      "\"]\n[tokenizer]\nplugin = \"words\"\npath = \"tokenizer\"\n";

  static std::string model_text() {
    return "plugin = \"llama\"\nconfig = { vocab_size = 264, hidden_size = 48, intermediate_size = 96, "
           "num_hidden_layers = 3, num_attention_heads = 6, num_key_value_heads = 2, attention_bias = true, "
           "initializer_range = 0.1 }\n";
  }

  static std::string words(std::mt19937& random, size_t most) {
    static const char* const kWords[] = {"red", "two", "lamp", "go", "sea", "winter", "of", "I", "never", "tea"};
    std::string text;
    for (size_t n = 1 + random() % most; n > 0; --n)
      text += (text.empty() ? "" : " ") + std::string(kWords[random() % 10]);
    return text;
  }

  std::string rows() const {
    using Json = nlohmann::ordered_json;
    std::mt19937 random(11);
    std::string text;
    const std::string format = method_.format;
    for (int i = 0; i < 17; ++i) {
      Json row;
      const std::string prompt = words(random, 6) + "?" + std::to_string(i);
      if (format == "preference")
        row = {{"prompt", prompt},
               {"chosen", words(random, 7)},
               {"rejected", words(random, 7) + " no"},
               {"margin", i % 3 * 0.25}};
      else if (format == "labelled")
        row = {{"prompt", prompt}, {"completion", words(random, 7)}, {"label", i % 3 != 0}};
      else if (format == "classification")
        row = {{"text", prompt}, {"label", i % 3}};
      else if (format == "distillation")
        row = distilled(random);
      else
        for (row = {{"prompt", prompt}, {"completions", Json::array()}}; row["completions"].size() < 3;)
          row["completions"].push_back({{"text", words(random, 5)}, {"reward", static_cast<double>(random() % 5)}});
      text += row.dump() + "\n";
    }
    return text;
  }

  // Random ids, of which the second half is the answer, with up to four entries of a teacher for each.
  static nlohmann::ordered_json distilled(std::mt19937& random) {
    using Json = nlohmann::ordered_json;
    Json row = {{"input_ids", Json::array()},
                {"labels", Json::array()},
                {"target_token_ids", Json::array()},
                {"target_logprobs", Json::array()}};
    const size_t length = 4 + random() % 20;
    for (size_t t = 0; t < length; ++t) {
      const auto id = static_cast<int>(random() % 264);
      row["input_ids"].push_back(id);
      row["labels"].push_back(t < length / 2 ? -100 : id);
      if (t < length / 2) continue;
      Json ids = Json::array(), logps = Json::array();
      const size_t least = t == length / 2 ? 1 : 0, count = least + random() % (5 - least), first = random() % 260;
      for (size_t k = 0; k < count; ++k) {
        ids.push_back(first + k);
        logps.push_back(-1.5 - 0.25 * static_cast<double>(random() % 8));
      }
      row["target_token_ids"].push_back(ids);
      row["target_logprobs"].push_back(logps);
    }
    return row;
  }

  // A model directory, exported by a run of one step from random weights.
  void make_base() {
    write_text(folder_ / "text.jsonl", "{\"text\": \"a few words of a base model\"}\n");
    write_text(folder_ / "base.toml",
               "schema_version = 1\n[run]\noutput_dir = \"made\"\nmax_steps = 1\nseed = 5\ndevice = \"cpu\"\n" +
                   std::string(kTokenizer) + "[model]\n" + model_text() +
                   "[[data.train]]\npath = \"text.jsonl\"\n[data]\ncache_dir = \"cache\"\n[train]\nseq_len = 8\n"
                   "[optimizer]\nlr = 1e-4\n[precision]\ncompute = \"fp32\"\n[export]\ndtype = \"fp32\"\n");
    const Outcome made = run_process({CHASSIS_PROGRAM, "train", "base.toml"}, folder_.path());
    if (made.exit_code != 0) throw std::runtime_error(made.output);
    std::filesystem::rename(folder_ / "made/final", folder_ / "base");
  }

  const Method& method_;
  ScratchDirectory folder_;
  std::string toml_;
};

}  // namespace chassis::test
