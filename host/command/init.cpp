// `chassis init`: a first configuration from a model directory and a data file, by flags or by questions.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/base/output.hpp"
#include "host/base/printable.hpp"
#include "host/command/command.hpp"
#include "host/command/init_config.hpp"
#include "host/command/line_input.hpp"
#include "host/config/paths.hpp"
#include "host/data/chat_renderer.hpp"
#include "host/data/preview.hpp"
#include "host/plugin/registry.hpp"
#include "host/service/host_services.hpp"
#include "host/service/memory.hpp"
#include "host/session/plugin_rows.hpp"
#include "host/session/session.hpp"
#include "host/session/slot_template_file.hpp"
#include "host/train/run_report.hpp"

namespace chassis {
namespace {

struct InitArguments {
  std::string file, model, data, task, method, format, output_dir;
  std::vector<std::string> plugin_path;
  bool force = false;
};

// Asks at a terminal; otherwise what is missing is an error.
class Questions {
 public:
  std::string answer(const std::string& given, const std::string& flag, const std::string& question,
                     const std::string& preset = "") {
    if (!given.empty()) return given;
    if (!at_terminal_) {
      if (!preset.empty()) return preset;
      throw config_error(flag + " is missing: " + question)
          .hint("chassis init --model DIR --data FILE; at a terminal, what is left out is asked");
    }
    std::string line;
    while (line.empty()) {
      std::fprintf(output(), "%s%s: ", question.c_str(), preset.empty() ? "" : (" [" + preset + "]").c_str());
      flush_output();
      if (input_.next(line) != LineInput::Result::kLine) throw config_error("nothing was written");
      if (line.empty()) line = preset;
    }
    return line;
  }

 private:
  LineInput input_;
  const bool at_terminal_ = input_.is_terminal() && isatty(output_descriptor()) == 1;
};

void check_method(const std::string& method) {
  if (method == "full") return;
  const bool is_known = method == "lora" || method == "qlora";
  throw config_error(fmt::format("--method {} is {}", printable(method), is_known ? "not available yet" : "unknown"))
      .hint("--method full trains all parameters");
}

std::string task_of(DataFormat format) {
  return format == DataFormat::kText || format == DataFormat::kTokens ? "pretrain" : "sft";
}

void check_task(const std::string& task, DataFormat format) {
  if (format == DataFormat::kPreference)
    throw config_error("the data has pairs of a better and a worse answer, and no task trains on pairs yet")
        .hint("--format messages or prompt_completion trains the better answers, if columns names their key");
  if (task != "sft" && task != "pretrain")
    throw config_error("--task " + printable(task) + " is unknown").hint("it is sft or pretrain");
  if (task == "pretrain" && task_of(format) != "pretrain")
    throw config_error(fmt::format("--task pretrain trains on text or tokens, and the data is {}", to_text(format)));
}

void read_model(const std::string& directory, InitFacts& facts) {
  const std::string path = directory + "/config.json";
  const Json config = parse_json(read_file(path), path);
  facts.max_positions = json_int_or(config, "max_position_embeddings", 0, path);
  facts.stored_dtype = json_string_or(config, "dtype", json_string_or(config, "torch_dtype", "", path), path);
  if (config.contains("architectures") && config["architectures"].is_array() && !config["architectures"].empty() &&
      config["architectures"][0].is_string())
    facts.architecture = printable(config["architectures"][0].get<std::string>(), 80);
}

// Counts the tokens of the first rows. Throws what encoding them throws.
void measure(const DataConfig& data, const Tokenizer* tokenizer, InitFacts& facts) {
  constexpr uint64_t kRows = 200;
  facts.num_rows = facts.longest = facts.num_tokens = 0;
  const PreviewOfSet seen =
      preview_rows(data.train.at(0), data, tokenizer, {.rows_of_file = kRows, .files = 1}, [&](const PreviewRow& row) {
        ++facts.num_rows;
        facts.longest = std::max(facts.longest, row.num_tokens);
        facts.num_tokens += row.num_tokens;
      });
  facts.is_sample = seen.is_sample;
}

// The texts that a template makes of short conversations; one that it refuses is empty.
std::vector<std::string> rendered_examples(const Tokenizer& tokenizer, const ChatConfig& config) {
  const auto said = [](std::string role, std::string text) {
    Message message;
    message.role = std::move(role);
    message.content.push_back({std::move(text), std::nullopt});
    return message;
  };
  const std::vector<Message> turns = {said("user", "one"), said("assistant", "two"), said("user", "three"),
                                      said("assistant", "four")};
  std::vector<std::string> texts;
  for (const bool has_system : {true, false}) {
    ChatRecord chat;
    if (has_system) chat.messages.push_back(said("system", "zero"));
    chat.messages.insert(chat.messages.end(), turns.begin(), turns.end());
    try {
      texts.push_back(ChatRenderer(tokenizer, config).render(chat, false).text);
    } catch (const Error&) {
      texts.emplace_back();
    }
    while (!texts.back().empty() && texts.back().back() == '\n') texts.back().pop_back();
  }
  return texts;
}

struct FittingTemplate {
  std::string name;
  size_t num_equal = 0;  // examples that the tokenizer's own template renders the same
  size_t rank = 0;       // 0: it has tokens of its own; "plain", without any words, is last
};

// The built-in templates that fit the tokenizer, best first.
std::vector<FittingTemplate> fitting_templates(const Tokenizer& tokenizer, ChatConfig config) {
  static const std::vector<std::string> kLast = {"alpaca", "deepseek", "mistral", "plain"};
  const std::vector<std::string> names = config.fitting_slots;
  std::vector<std::string> own;
  if (!tokenizer.chat_template().empty()) own = rendered_examples(tokenizer, config);
  std::vector<FittingTemplate> fitting;
  for (const std::string& name : names) {
    config.slots = builtin_slot_template(name);
    config.template_name = name;
    FittingTemplate& found = fitting.emplace_back();
    found.name = name;
    found.rank = static_cast<size_t>(std::find(kLast.begin(), kLast.end(), name) - kLast.begin() + 1) %
                 (kLast.size() + 1);  // 0 of all others
    if (name == "mistral" && spelled_token(tokenizer, "[INST]") >= 0) found.rank = 0;
    const std::vector<std::string> texts = rendered_examples(tokenizer, config);
    for (size_t i = 0; i < own.size(); ++i) found.num_equal += !own[i].empty() && own[i] == texts[i];
  }
  std::stable_sort(fitting.begin(), fitting.end(), [](const FittingTemplate& a, const FittingTemplate& b) {
    return a.num_equal != b.num_equal ? a.num_equal > b.num_equal : a.rank < b.rank;
  });
  return fitting;
}

// The tokenizer's own template if the trained bytes of these rows are certain with it, else the built-in one that is
// most like it, or whose tokens the tokenizer has.
void choose_template(DataConfig data, const Tokenizer& tokenizer, InitFacts& facts) {
  try {
    measure(data, &tokenizer, facts);
    facts.why_template = "the tokenizer's own";
    return;
  } catch (const Error& first) {
    for (const FittingTemplate& fitting : fitting_templates(tokenizer, data.chat)) {
      data.chat.slots = builtin_slot_template(fitting.name);
      data.chat.template_name = facts.data_template = fitting.name;
      try {
        measure(data, &tokenizer, facts);
      } catch (const Error&) {
        continue;
      }
      const std::string reason = printable(first.message().substr(0, first.message().find(": ")), 100);
      facts.why_template = tokenizer.chat_template().empty() ? "built in; the tokenizer has none of its own"
                           : fitting.num_equal > 0 ? "the same text as the tokenizer's own, with which " + reason
                                                   : "built in; with the tokenizer's own " + reason;
      return;
    }
    facts.data_template.clear();
    throw;
  }
}

std::string stem_of(const std::string& path) {
  std::filesystem::path file(path);
  while (file.has_extension()) file.replace_extension();
  const std::string stem = file.filename().string();
  return stem.empty() || stem.front() == '*' ? "run" : stem;
}

// Reads rows before there is a configuration that opens plugins.
FoundFormat format_of(const std::string& data, const std::vector<std::string>& plugin_path) {
  install_memory_allocator();
  MetricsStore metrics;
  HostServices services(0, metrics);
  PluginRegistry registry(PluginIndex(plugin_folders(plugin_path, {}, {})), {}, services);
  services.set_registry(&registry);
  PluginRows row_files(registry);
  return find_format(data, &row_files);
}

int init(const InitArguments& arguments) {
  refuse_other_than_toml(arguments.file);
  Questions questions;
  InitFacts facts;
  facts.model = questions.answer(arguments.model, "--model", "model directory, or hub:Org/Name");
  std::string expanded = facts.model;
  if (const auto problem = expand_hub(expanded))
    throw config_error(fmt::format("--model {}: {}", printable(facts.model), *problem));
  facts.data = questions.answer(arguments.data, "--data", "data file, folder or pattern");
  if (arguments.format.empty())
    facts.format = format_of(facts.data, arguments.plugin_path);
  else
    facts.format = {data_format_from_text(arguments.format), {}, "as --format says"};
  facts.task = questions.answer(arguments.task, "--task", "task, sft or pretrain", task_of(facts.format.format));
  check_task(facts.task, facts.format.format);
  check_method(questions.answer(arguments.method, "--method", "method", "full"));
  facts.name = stem_of(arguments.file);
  facts.output_dir =
      questions.answer(arguments.output_dir, "--output-dir", "directory of the run", "out/" + facts.name);
  if (!arguments.force && path_kind_nofollow(arguments.file) != PathKind::kAbsent)
    throw storage_error("'" + printable(arguments.file) + "' exists, and is not replaced")
        .hint("give another name, or --force");

  // A draft opens the model and the tokenizer, and shows what the rows become.
  facts.longest = 1u << 20;  // so that no row is too long
  const Session session(
      load_config_text(init_toml(facts), arguments.file, {}),
      {.plugin_path = arguments.plugin_path, .target = {.without_device = true, .assume_configured_device = true}});
  read_model(session.settings().model.path, facts);
  const DataNeeds needs = session.data_needs();
  DataConfig data;
  if (facts.task != "sft" || !needs.tokenizer || !needs.tokenizer->chat_template().empty()) {
    data = data_config(needs);
  } else {
    // Without a template of its own, the tokenizer takes one that fits until one is chosen.
    InitFacts draft = facts;
    for (const std::string& name : fitting_template_names(*needs.tokenizer)) draft.data_template = name;
    const Config config = load_config_text(init_toml(draft), arguments.file, {});
    data = data_config({config.settings(), needs.program, needs.tokenizer, needs.first_on_machine, needs.row_files});
    data.chat.slots = nullptr;
    data.chat.template_name = "auto";
  }
  if (facts.task == "sft" && session.tokenizer() != nullptr)
    choose_template(data, *session.tokenizer(), facts);
  else
    measure(data, session.tokenizer(), facts);
  const std::string text = init_toml(facts);
  Config made = load_config_text(text, arguments.file, {});
  made.throw_if_problems();
  if (arguments.force && path_kind_nofollow(arguments.file) == PathKind::kLink)
    throw storage_error("'" + printable(arguments.file) + "' is a link, and is not replaced");
  write_file_atomic(arguments.file, text);
  std::fprintf(output(), "%s is written: %s of %s on %s\n", printable(arguments.file, 4096).c_str(), facts.task.c_str(),
               printable(facts.model, 4096).c_str(), printable(facts.data, 4096).c_str());
  std::fprintf(output(), "next: chassis check %s; chassis data preview %s; chassis train %s\n",
               shell_word(arguments.file).c_str(), shell_word(arguments.file).c_str(),
               shell_word(arguments.file).c_str());
  return 0;
}

}  // namespace

Verb add_init(CLI::App& app) {
  auto arguments = std::make_shared<InitArguments>();
  app.add_option("file", arguments->file, "the TOML file to write")->required();
  app.add_option("--model", arguments->model, "a model directory, or hub:Org/Name[@revision]");
  app.add_option("--data", arguments->data, "a data file, a folder of such files, or a pattern");
  app.add_option("--task", arguments->task, "sft or pretrain; default by the data");
  app.add_option("--method", arguments->method,
                 "full: all parameters are trained; other methods are not available yet");
  app.add_option("--format", arguments->format, "of the data; default by the keys of its rows");
  app.add_option("--output-dir", arguments->output_dir, "directory of the run; default out/NAME-OF-FILE");
  app.add_flag("--force", arguments->force, "replace the file if it exists");
  add_plugin_path(app, arguments->plugin_path);
  return [=] { return init(*arguments); };
}

}  // namespace chassis
