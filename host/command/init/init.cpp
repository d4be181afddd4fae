// `chassis init`: a first configuration from a model directory and a data file, by flags or by questions.
#include <fmt/format.h>
#include <fmt/ranges.h>
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
#include "host/config/task_text.hpp"
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

void check_method(const MethodWords& method, const InitFacts& facts) {
  if (method.weights.empty())
    throw config_error(fmt::format("{} is none of full, lora and qlora", printable(facts.method)));
  if (method.weights == "full" && facts.is_quantized)
    throw config_error(
        fmt::format("--method full trains all weights, and those of {} are quantized", printable(facts.model, 4096)))
        .hint("--method qlora trains an adapter next to them");
}

// The task for rows of the format if nothing else is said.
Task usual_task(DataFormat format) {
  if (format == DataFormat::kText || format == DataFormat::kTokens) return Task::kPretrain;
  const InitMethod* const method = usual_init_method(format);
  return method == nullptr ? Task::kSft : method->task;
}

// "sft or pretrain": the tasks that train rows of the format.
std::string task_names(DataFormat format) {
  std::string text;
  for (const TaskSpec& task : kTasks)
    if (std::ranges::count(task.formats, format) > 0)
      text += fmt::format("{}{}", text.empty() ? "" : " or ", to_text(task.task));
  return text;
}

// Throws unless the task can be trained with data of the format.
void check_task(Task task, const FoundFormat& found) {
  if (std::ranges::count(spec_of(task).formats, found.format) > 0) return;
  Error error = config_error(fmt::format("--task {} trains on rows of format {}, and the data is \"{}\"", to_text(task),
                                         formats_text(spec_of(task)), to_text(found.format)));
  if (task == Task::kSft && found.better)
    throw error.hint(fmt::format("--format {} trains {} alone", to_text(found.better->format),
                                 found.format == DataFormat::kPreference ? "the better answers" : "the answers"));
  throw error.hint(
      fmt::format("--task {} trains it; --format names another format", to_text(usual_task(found.format))));
}

// Sets the task and the objective, by --task and --method.
void read_task(const std::string& task_word, const InitMethod* method, InitFacts& facts) {
  const std::optional<Task> task = choice_from<Task>(task_word);
  if (!task) {
    std::string names;
    for (const std::string_view name : kChoiceNames<Task>)
      names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
    const bool is_method = find_init_method(task_word) != nullptr;
    throw config_error("--task " + printable(task_word) + " is unknown")
        .hint(is_method ? "--method " + task_word + " chooses it" : "it is one of " + names);
  }
  facts.task = *task;
  facts.objective = method;
  if (method == nullptr) {
    check_task(*task, facts.format);
    facts.objective = usual_init_method(facts.format.format, *task);
    return;
  }
  if (method->task != *task)
    throw config_error(fmt::format("--method {} trains task {}, and --task says {}", method->name,
                                   to_text(method->task), to_text(*task)));
  facts.split_pairs = method->format == DataFormat::kLabelled && facts.format.format == DataFormat::kPreference;
  if (method->format != facts.format.format && !facts.split_pairs)
    throw config_error(fmt::format("--method {} trains on rows of format \"{}\", and the data is \"{}\"", method->name,
                                   to_text(method->format), to_text(facts.format.format)))
        .hint(facts.format.why.empty() ? "" : facts.format.why + "; --format names another format");
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

// Rules for rows that are too long, in the order in which they are tried. Answers that an objective compares are not
// cut.
std::vector<Overflow> ways_to_cut(Task task) {
  if (task == Task::kClassify) return {Overflow::kTruncate};
  if (!spec_of(task).objective.empty()) return {Overflow::kTruncateLeftPrompt};
  return {Overflow::kTruncate, Overflow::kTruncateLeftPrompt};
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
  if (!spec_of(facts.task).has_answers) {
    if (!facts.is_sample && facts.num_tokens < seq_len)
      throw config_error(fmt::format("{} has {} tokens in all, and a row of a run has at least {}",
                                     printable(facts.data, 4096), facts.num_tokens, seq_len))
          .hint("use more text");
  } else {
    refuse_if_many(sample, true);
    facts.num_too_long = sample.num_longer_than(seq_len);
    if (static_cast<double>(facts.num_too_long) > data.max_drop_ratio * static_cast<double>(sample.lengths.size())) {
      data.seq_len = static_cast<int64_t>(seq_len);
      for (const Overflow overflow : ways_to_cut(facts.task)) {
        data.overflow = overflow;
        facts.overflow = to_text(overflow);
        const bool is_last = overflow == ways_to_cut(facts.task).back();
        if (!refuse_if_many(sample_rows(data.train.at(0), data, tokenizer), is_last)) break;
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
template <class F>
auto with_row_files(const std::vector<std::string>& plugin_path, F&& read) {
  install_memory_allocator();
  MetricsStore metrics;
  HostServices services(0, metrics);
  PluginRegistry registry(PluginIndex(plugin_folders(plugin_path, {}, {})), {}, services);
  services.set_registry(&registry);
  PluginRows row_files(registry);
  return read(row_files);
}

FoundFormat format_of(const std::string& data, const std::vector<std::string>& plugin_path) {
  return with_row_files(plugin_path, [&](PluginRows& row_files) { return find_format(data, &row_files); });
}

// The format of --format. Pairs can be read as one that trains the better answers alone, and labelled answers as one
// that trains all.
FoundFormat given_format(const InitArguments& arguments, const std::string& data) {
  const DataFormat format = data_format_from_text(arguments.format);
  try {
    FoundFormat found = format_of(data, arguments.plugin_path);
    if (found.better && found.better->format == format) {
      const bool is_pair = found.format == DataFormat::kPreference;
      return {format, found.better->columns,
              is_pair ? "the better answers of pairs, as --format says" : "all answers, as --format says"};
    }
    if (found.format == format) {
      found.why = "as --format says";
      return found;
    }
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
  const bool has_chats = spec_of(facts.task).has_answers, has_given = !facts.data_template.empty();
  DataConfig data;
  if (!has_chats || has_given || !needs.tokenizer || !needs.tokenizer->chat_template().empty()) {
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
  if (!has_chats || has_given || !session.tokenizer()) {
    if (has_given) facts.why_template = "as --template says";
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
          {"objective", known(facts.objective ? std::string(facts.objective->plugin) : "")},
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
  const MethodWords methods = method_words(arguments.method);
  const Task task = methods.objective ? methods.objective->task : usual_task(facts.format.format);
  read_task(questions.answer(arguments.task, "--task", "task, " + task_names(facts.format.format),
                             std::string(to_text(task))),
            methods.objective, facts);
  if (facts.task == Task::kClassify)
    facts.labels = with_row_files(arguments.plugin_path, [&](PluginRows& row_files) {
      return scan_labels(facts.data, facts.format.columns, &row_files);
    });
  facts.method = questions.answer(methods.weights, "--method", "method, full, lora or qlora",
                                  facts.is_quantized ? "qlora" : "full");
  check_method(method_words(facts.method), facts);
  facts.data_template = arguments.chat_template;
  if (!facts.data_template.empty() && !has_template(facts))
    throw config_error(fmt::format("--template has no effect with --task {}, which has no conversations in this data",
                                   to_text(facts.task)));
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
  const std::string_view what = facts.objective ? facts.objective->name : to_text(facts.task);
  std::fprintf(output(), "wrote %s: %s of %s on %s\n", printable(arguments.file, 4096).c_str(),
               std::string(what).c_str(), printable(facts.model, 4096).c_str(), printable(facts.data, 4096).c_str());
  std::fprintf(output(), "next: chassis check %s; chassis data preview %s; chassis train %s\n",
               shell_word(arguments.file).c_str(), shell_word(arguments.file).c_str(),
               shell_word(arguments.file).c_str());
  return 0;
}

// The choices of an option, as the scripts for shells read them: "{a,b}".
std::string braced(std::string names) {
  std::erase(names, ' ');
  return "{" + names + "}";
}

}  // namespace

Verb add_init(CLI::App& app) {
  auto arguments = std::make_shared<InitArguments>();
  app.add_option("file", arguments->file, "the TOML file to write")->required()->type_name("FILE.toml");
  app.add_option("--model", arguments->model, "a model directory, or hub:Org/Name[@revision]")->type_name("FOLDER");
  app.add_option("--data", arguments->data, "a data file, a folder of such files, or a pattern")->type_name("PATH");
  app.add_option("--task", arguments->task, "what is trained; default: chosen by --method or by the data")
      ->type_name(braced(fmt::format("{}", fmt::join(kChoiceNames<Task>, ","))));
  app.add_option("--method", arguments->method,
                 "full: all parameters are trained (the default); lora: small branches next to the frozen ones; qlora: "
                 "the same next to ones in 4 bits. dpo, orpo, simpo, reward: from pairs of answers; kto: from answers "
                 "that are good or bad; classify: classes or values of texts; grpo: from answers with rewards. Both, "
                 "such as dpo,lora")
      ->type_name(braced(method_names()));
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
