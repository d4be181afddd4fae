// `chassis init`: a first configuration from a model directory and a data file, by flags or by questions.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/base/output.hpp"
#include "host/base/printable.hpp"
#include "host/checkpoint/format_plugin.hpp"
#include "host/checkpoint/source_directory.hpp"
#include "host/command/command.hpp"
#include "host/command/init/init_config.hpp"
#include "host/command/init/init_template.hpp"
#include "host/command/json_document.hpp"
#include "host/command/line_input.hpp"
#include "host/config/paths.hpp"
#include "host/data/row_sample.hpp"
#include "host/plugin/registry.hpp"
#include "host/save/quantize.hpp"
#include "host/save/saved_tensors.hpp"
#include "host/service/host_services.hpp"
#include "host/service/memory.hpp"
#include "host/session/run_adapter.hpp"
#include "host/session/session.hpp"
#include "host/text/plugin_rows.hpp"
#include "host/text/slot_template_file.hpp"
#include "host/train/run_report.hpp"

namespace chassis {
namespace {

struct InitArguments {
  std::string file, model, data, task, method, format, chat_template, output_dir;
  std::vector<std::string> plugin_path;
  bool force = false, as_json = false;
};

// Asks for missing values at a terminal; otherwise a missing value is an error.
class Questions {
 public:
  explicit Questions(bool may_ask)
      : at_terminal_(may_ask && input_.is_terminal() && isatty(output_descriptor()) == 1) {}
  std::string answer(const std::string& given, const std::string& flag, const std::string& question,
                     const std::string& preset = "") {
    if (!given.empty()) return given;
    if (!at_terminal_) {
      if (!preset.empty()) return preset;
      throw config_error(flag + " is missing: " + question)
          .hint("chassis init --model DIR --data FILE; at a terminal, it asks for what is left out");
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
  const bool at_terminal_;
};

void check_method(const std::string& method, const InitFacts& facts) {
  if (method == "full" && facts.is_quantized)
    throw config_error(
        fmt::format("--method full trains all weights, and those of {} are quantized", printable(facts.model, 4096)))
        .hint("--method qlora trains an adapter next to them");
  if (method == "full" || method == "lora" || method == "qlora") return;
  throw config_error(fmt::format("--method {} is unknown", printable(method)))
      .hint(
          "--method full trains all parameters, lora small branches next to the frozen ones, qlora the same next to "
          "ones in 4 bits");
}

Task task_of(DataFormat format) {
  return format == DataFormat::kText || format == DataFormat::kTokens ? Task::kPretrain : Task::kSft;
}

// The task of --task, which must train data of the format.
Task read_task(const std::string& given, const FoundFormat& found) {
  if (found.format == DataFormat::kPreference)
    throw config_error("the data has pairs of a better and a worse answer, and no task trains on pairs yet")
        .hint(found.better ? fmt::format("--format {} trains the better answers alone", to_text(found.better->format))
                           : "write the better answers as messages to another file");
  const std::optional<Task> task = choice_from<Task>(given);
  if (!task || *task == Task::kReward)
    throw config_error("--task " + printable(given) + " is unknown").hint("it is sft or pretrain");
  if (task == Task::kPretrain && task_of(found.format) != Task::kPretrain)
    throw config_error(
        fmt::format("--task pretrain trains on text or tokens, and the data is {}", to_text(found.format)));
  return *task;
}

// Returns the model's folder.
std::string check_model(const std::string& given) {
  std::string path = given;
  if (const auto problem = expand_hub(path))
    throw config_error(fmt::format("--model {}: {}", printable(given), *problem));
  if (const auto problem = expand_home(path))
    throw config_error(fmt::format("--model {}: {}", printable(given), *problem));
  if (path_kind(path) == PathKind::kDirectory) return path;
  throw config_error(fmt::format("--model {}: {}", printable(given, 4096),
                                 path_kind(path) == PathKind::kAbsent ? "there is no such folder" : "is not a folder"))
      .hint(hub_hint(given).empty() ? "give a folder as saved by transformers' save_pretrained" : hub_hint(given));
}

void read_model(const std::string& directory, InitFacts& facts) {
  const std::string path = directory + "/config.json";
  const Json config = parse_json(read_file(path), path);
  facts.max_positions =
      json_int_or(config, "max_position_embeddings", json_int_or(config, "n_positions", 0, path), path);
  const int64_t heads = json_int_or(config, "num_attention_heads", 0, path);
  if (heads > 0)
    facts.narrowest = json_int_or(config, "num_key_value_heads", heads, path) *
                      json_int_or(config, "head_dim", json_int_or(config, "hidden_size", 0, path) / heads, path);
  facts.stored_dtype = json_string_or(config, "dtype", json_string_or(config, "torch_dtype", "", path), path);
  if (config.contains("architectures") && config["architectures"].is_array() && !config["architectures"].empty() &&
      config["architectures"][0].is_string())
    facts.architecture = printable(config["architectures"][0].get<std::string>(), 80);
}

// Refuses rows that `chassis train` would refuse, and decides how to treat those that are too long.
void use_sample(const RowSample& sample, DataConfig data, const Tokenizer* tokenizer, InitFacts& facts) {
  const auto refuse_if_many = [&](const RowSample& rows, bool is_last) {
    if (static_cast<double>(rows.num_dropped()) <= data.max_drop_ratio * static_cast<double>(rows.num_rows))
      return false;
    if (!is_last) return true;
    std::string reasons;
    for (const auto& [reason, count] : rows.dropped)
      reasons += fmt::format("{}{} ({})", reasons.empty() ? "" : "; ", reason, count);
    throw config_error(fmt::format("{} of {} rows of {} cannot be used, and a run stops above data.max_drop_ratio = "
                                   "{:g}: {}; the first is {}",
                                   rows.num_dropped(), rows.num_rows, printable(facts.data, 4096), data.max_drop_ratio,
                                   reasons, rows.first_dropped))
        .hint(
            "only answers of the assistant are trained; other names of roles and keys are given in [[data.train]] "
            "tags and columns");
  };
  if (sample.num_rows == 0)
    throw config_error(fmt::format("{} has no document to train on", printable(facts.data, 4096)));
  facts.num_files = sample.num_files;
  facts.num_rows = sample.num_rows;
  facts.longest = sample.longest();
  facts.num_tokens = sample.num_tokens;
  facts.is_sample = sample.is_part;
  const auto seq_len = static_cast<uint64_t>(seq_len_of(facts));
  if (facts.task == Task::kPretrain) {
    if (!facts.is_sample && facts.num_tokens < seq_len)
      throw config_error(fmt::format("{} has {} tokens in all, and a row of a run has at least {}",
                                     printable(facts.data, 4096), facts.num_tokens, seq_len))
          .hint("use more text");
  } else {
    refuse_if_many(sample, true);
    facts.num_too_long = sample.num_longer_than(seq_len);
    if (static_cast<double>(facts.num_too_long) > data.max_drop_ratio * static_cast<double>(sample.lengths.size())) {
      data.seq_len = static_cast<int64_t>(seq_len);
      for (const Overflow overflow : {Overflow::kTruncate, Overflow::kTruncateLeftPrompt}) {
        data.overflow = overflow;
        facts.overflow = to_text(overflow);
        if (!refuse_if_many(sample_rows(data.train.at(0), data, tokenizer), overflow != Overflow::kTruncate)) break;
      }
      log::warn("{} of {} rows are longer than seq_len {}, so they are cut: data.overflow = \"{}\"", facts.num_too_long,
                facts.num_rows, seq_len, facts.overflow);
    }
  }
  for (const auto& [what, times] : sample.changes)
    log::warn("{}: {} ({} times in {} rows)", printable(facts.data, 4096), what, times, sample.num_rows);
}

std::string stem_of(const std::string& path) {
  std::filesystem::path file(path);
  while (file.has_extension()) file.replace_extension();
  const std::string stem = file.filename().string();
  return stem.empty() || stem.front() == '*' ? "run" : stem;
}

// Reads rows before a configuration exists that opens plugins.
FoundFormat format_of(const std::string& data, const std::vector<std::string>& plugin_path) {
  install_memory_allocator();
  MetricsStore metrics;
  HostServices services(0, metrics);
  PluginRegistry registry(PluginIndex(plugin_folders(plugin_path, {}, {})), {}, services);
  services.set_registry(&registry);
  PluginRows row_files(registry);
  return find_format(data, &row_files);
}

// The format of --format. Pairs can be read as one that trains the better answers alone.
FoundFormat given_format(const InitArguments& arguments, const std::string& data) {
  const DataFormat format = data_format_from_text(arguments.format);
  try {
    const FoundFormat found = format_of(data, arguments.plugin_path);
    if (found.format == DataFormat::kPreference && found.better && found.better->format == format)
      return {format, found.better->columns, "the better answers of pairs, as --format says"};
  } catch (const Error&) {  // the format is given because it cannot be found
  }
  return {format, {}, "as --format says"};
}

// The ends of the names of modules whose weight in files is that of several linears.
std::set<std::string> joined_modules(const Session& session) {
  std::set<std::string> ends;
  for (const auto& [name, parameters] : file_names(session.model(), session.program()).in_file) {
    const std::string module = name.substr(0, name.rfind('.'));
    if (parameters.size() > 1) ends.insert(module.substr(module.rfind('.') + 1));
  }
  return ends;
}

// Throws if the model's weights are there and cannot be read. A folder without weights is accepted: a run may start
// from random ones.
void check_weights_readable(Session& session) {
  const std::string& path = session.settings().model.path;
  try {
    open_directory(session, path);
  } catch (const OtherFormat&) {
    if (!SourceDirectory(path).links().empty())
      throw;  // links that lead nowhere, such as those of a download cut short
  }
}

// Opens the model and the tokenizer with a draft of the configuration, and fills in the facts about the encoded rows.
void measure(const InitArguments& arguments, const std::string& draft_name, InitFacts& facts) {
  facts.longest = 1u << 20;  // so that no row is too long
  InitFacts first = facts;
  first.method = "full";  // the rank of an adapter needs the model's sizes
  Session session(
      load_config_text(init_toml(first), draft_name, {}, ConfigUse::kWeights),
      {.plugin_path = arguments.plugin_path, .target = {.without_device = true, .assume_configured_device = true}});
  check_weights_readable(session);
  read_model(session.settings().model.path, facts);
  facts.joined = joined_modules(session);
  const DataNeeds needs = session.data_needs();
  const bool is_sft = facts.task == Task::kSft, has_template = !facts.data_template.empty();
  DataConfig data;
  if (!is_sft || has_template || !needs.tokenizer || !needs.tokenizer->chat_template().empty()) {
    data = data_config(needs);
  } else {
    // If the tokenizer has no template of its own, uses one that fits until one is chosen.
    InitFacts draft = facts;
    for (const std::string& name : fitting_template_names(*needs.tokenizer)) draft.data_template = name;
    const Config config = load_config_text(init_toml(draft), draft_name, {});
    data = data_config({config.settings(), needs.program, needs.tokenizer, needs.first_on_machine, needs.row_files});
    data.chat.slots = nullptr;
    data.chat.template_name = "auto";
  }
  if (!is_sft || has_template || !session.tokenizer()) {
    if (has_template) facts.why_template = "as --template says";
    return use_sample(sample_rows(data.train.at(0), data, session.tokenizer()), data, session.tokenizer(), facts);
  }
  const ChosenTemplate chosen = choose_template(data, *session.tokenizer());
  facts.data_template = chosen.name;
  facts.why_template = chosen.why;
  data.chat = chosen.chat;
  use_sample(chosen.sample, data, session.tokenizer(), facts);
}

Json init_json(const std::string& file, const InitFacts& facts) {
  const auto known = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  return {{"file", file},
          {"task", to_text(facts.task)},
          {"method", facts.method},
          {"model", facts.model},
          {"data", facts.data},
          {"format", to_text(facts.format.format)},
          {"template", known(facts.data_template)},
          {"output_dir", facts.output_dir},
          {"seq_len", seq_len_of(facts)},
          {"files", facts.num_files},
          {"rows", facts.num_rows},
          {"is_sample", facts.is_sample},
          {"tokens", facts.num_tokens},
          {"longest", facts.longest},
          {"too_long", facts.num_too_long}};
}

int init(const InitArguments& arguments) {
  refuse_other_than_toml(arguments.file);
  Questions questions(/*may_ask=*/!arguments.as_json);
  InitFacts facts;
  facts.model = questions.answer(arguments.model, "--model", "model directory, or hub:Org/Name");
  facts.is_quantized = has_quantized_weights(check_model(facts.model));
  facts.data = questions.answer(arguments.data, "--data", "data file, folder or pattern");
  facts.format =
      arguments.format.empty() ? format_of(facts.data, arguments.plugin_path) : given_format(arguments, facts.data);
  const std::string usual_task(to_text(task_of(facts.format.format)));
  facts.task = read_task(questions.answer(arguments.task, "--task", "task, sft or pretrain", usual_task), facts.format);
  facts.method = questions.answer(arguments.method, "--method", "method, full, lora or qlora",
                                  facts.is_quantized ? "qlora" : "full");
  check_method(facts.method, facts);
  facts.data_template = arguments.chat_template;
  if (!facts.data_template.empty() && facts.task != Task::kSft)
    throw config_error("--template has no effect with --task pretrain, which has no conversations");
  facts.name = stem_of(arguments.file);
  facts.output_dir =
      questions.answer(arguments.output_dir, "--output-dir", "directory of the run", "out/" + facts.name);
  if (!arguments.force && path_kind_nofollow(arguments.file) != PathKind::kAbsent)
    throw storage_error("'" + printable(arguments.file) + "' exists, and is not replaced")
        .hint("give another name, or --force");

  // Errors must not point to lines of a file that is not written.
  const std::string draft_name = "draft of " + arguments.file;
  try {
    measure(arguments, draft_name, facts);
  } catch (const Error& error) {
    if (error.where().file != draft_name) throw;
    throw Error(error.code(), error.message()).hint(error.hint_text());
  }
  const std::string text = init_toml(facts);
  Config made = load_config_text(text, arguments.file, {});
  made.throw_if_problems();
  if (arguments.force && path_kind_nofollow(arguments.file) == PathKind::kLink)
    throw storage_error("'" + printable(arguments.file) + "' is a link, and is not replaced");
  write_file_atomic(arguments.file, text);
  if (arguments.as_json) {
    print_document("init", init_json(arguments.file, facts));
    return 0;
  }
  std::fprintf(output(), "wrote %s: %s of %s on %s\n", printable(arguments.file, 4096).c_str(),
               std::string(to_text(facts.task)).c_str(), printable(facts.model, 4096).c_str(),
               printable(facts.data, 4096).c_str());
  std::fprintf(output(), "next: chassis check %s; chassis data preview %s; chassis train %s\n",
               shell_word(arguments.file).c_str(), shell_word(arguments.file).c_str(),
               shell_word(arguments.file).c_str());
  return 0;
}

}  // namespace

Verb add_init(CLI::App& app) {
  auto arguments = std::make_shared<InitArguments>();
  app.add_option("file", arguments->file, "the TOML file to write")->required()->type_name("FILE.toml");
  app.add_option("--model", arguments->model, "a model directory, or hub:Org/Name[@revision]")->type_name("FOLDER");
  app.add_option("--data", arguments->data, "a data file, a folder of such files, or a pattern")->type_name("PATH");
  app.add_option("--task", arguments->task, "sft or pretrain; default: chosen by the data");
  app.add_option("--method", arguments->method,
                 "full: all parameters are trained (the default); lora: small branches next to the frozen ones; qlora: "
                 "the same next to ones in 4 bits");
  app.add_option("--format", arguments->format, "format of the data; default: found by the keys of its rows");
  app.add_option("--template", arguments->chat_template,
                 "the chat template: a built-in one, or a file; default the tokenizer's own");
  app.add_option("--output-dir", arguments->output_dir, "directory of the run; default out/NAME-OF-FILE")
      ->type_name("FOLDER");
  app.add_flag("--force", arguments->force, "replace the file if it exists");
  add_json(app, arguments->as_json);
  add_plugin_path(app, arguments->plugin_path);
  return [=] { return init(*arguments); };
}

}  // namespace chassis
