// Guesses the format from keys, and composes the text of the file.
#include "host/command/init/init_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <initializer_list>
#include <set>
#include <string_view>

#include "host/base/json.hpp"
#include "host/base/lower_case.hpp"
#include "host/base/printable.hpp"
#include "host/config/task_table.hpp"
#include "host/config/value.hpp"
#include "host/data/data_files.hpp"
#include "host/data/file_type.hpp"
#include "host/data/record_reader.hpp"

namespace chassis {
namespace {

constexpr uint64_t kRowsToLookAt = 50, kSftEpochs = 3;
constexpr uint64_t kMinSteps = 10;
constexpr uint64_t kMinRowsToEvaluate = 500;  // so many that eval_fraction certainly takes a few
constexpr const char* kFormats =
    "text, alpaca, sharegpt, messages, prompt_completion, segments, tokens, preference, labelled, classification, "
    "rollouts and distillation";

std::string listed(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + printable(name, 40);
  return text;
}

// True if the first message of the list has this key.
bool first_has(const Json& list, const char* key) {
  return list.is_array() && !list.empty() && list[0].is_object() && list[0].contains(key);
}

// The format that reads only the better answers of a row with pairs, or all answers of labelled rows.
std::optional<RowFormat> format_of_answers(const Json& row, const char* answer_key) {
  const Json& answer = row[answer_key];
  const auto is = [&](const char* key, bool (Json::*type)() const noexcept) {
    return row.contains(key) && (row[key].*type)();
  };
  const auto named = [&](DataFormat format, const char* name) {
    RowFormat found{format, {}};
    if (std::string_view(name) != answer_key) found.columns[name] = answer_key;
    return found;
  };
  if (answer.is_string()) {
    if (is("prompt", &Json::is_string)) return named(DataFormat::kPromptCompletion, "completion");
    if (is("instruction", &Json::is_string)) return named(DataFormat::kAlpaca, "output");
    return std::nullopt;
  }
  if (is("prompt", &Json::is_array)) return named(DataFormat::kPromptCompletion, "completion");
  if (first_has(answer, "role")) return named(DataFormat::kMessages, "messages");
  if (first_has(answer, "from")) return named(DataFormat::kShareGpt, "conversations");
  return std::nullopt;
}

// A label of an answer that is good or bad, also in a .csv file.
bool is_good_or_bad(const Json& value) {
  if (value.is_boolean()) return true;
  if (value.is_number()) return value == 0 || value == 1;
  if (!value.is_string()) return false;
  const std::string word = lower_case(value.get_ref<const std::string&>());
  return word == "true" || word == "false" || word == "0" || word == "1";
}

// Formats for an objective, whose rows often have keys of other formats too.
std::optional<FoundFormat> format_for_objective(const Json& row) {
  const auto has = [&](const char* key) { return row.contains(key) && !row[key].is_null(); };
  for (const auto& [chosen, rejected] :
       {std::pair("chosen", "rejected"), std::pair("chosen_response", "rejected_response")}) {
    if (!has(chosen) || !has(rejected)) continue;
    FoundFormat found{DataFormat::kPreference, {}, ""};
    found.better = format_of_answers(row, chosen);
    return found;
  }
  if (has("completions") && row["completions"].is_array()) {
    FoundFormat found{DataFormat::kRollouts, {}, ""};
    found.has_logps = first_has(row["completions"], "logps");
    return found;
  }
  if ((has("target_token_ids") && has("target_logprobs")) || (has("logprobs") && row["logprobs"].is_array()))
    return FoundFormat{DataFormat::kDistillation, {}, ""};
  for (const char* label : {"label", "kto_tag"}) {
    if (!has(label) || !is_good_or_bad(row[label])) continue;
    for (const char* answer : {"completion", "output", "messages", "conversations"}) {
      const bool is_list = first_has(row.value(answer, Json()), "role") || first_has(row.value(answer, Json()), "from");
      // The class of a conversation is a number too, but not true or false.
      if (!has(answer) || (row[answer].is_array() && !is_list) || (is_list && row[label].is_number())) continue;
      FoundFormat found{DataFormat::kLabelled, {}, ""};
      found.better = format_of_answers(row, answer);
      return found;
    }
  }
  const auto has_target = [&] {
    return (has("label") && !row["label"].is_structured()) || (has("labels") && row["labels"].is_array()) ||
           (has("value") && row["value"].is_number()) || (has("values") && row["values"].is_array());
  };
  if (has("text") && row["text"].is_string() && has_target()) return FoundFormat{DataFormat::kClassification, {}, ""};
  for (const char* list : {"messages", "conversations"})
    if (has(list) && has_target() && !row.value("label", Json()).is_string())
      return FoundFormat{DataFormat::kClassification, {}, ""};
  return std::nullopt;
}

std::optional<FoundFormat> format_of_row(const Json& row) {
  const auto has = [&](std::initializer_list<const char*> keys) {
    return std::all_of(keys.begin(), keys.end(), [&](const char* key) { return row.contains(key); });
  };
  if (auto found = format_for_objective(row)) return found;
  for (const char* key : {"messages", "conversations", "conversation", "dialog", "dialogue", "chat"}) {
    if (!row.contains(key)) continue;
    const bool is_openai = first_has(row[key], "role"), is_sharegpt = first_has(row[key], "from");
    if (!is_openai && !is_sharegpt) continue;
    const std::string usual = is_openai ? "messages" : "conversations";
    FoundFormat found{is_openai ? DataFormat::kMessages : DataFormat::kShareGpt, {}, ""};
    if (key != usual) found.columns[usual] = key;
    return found;
  }
  if (has({"instruction", "output"})) return FoundFormat{DataFormat::kAlpaca, {}, ""};
  if (has({"segments"})) return FoundFormat{DataFormat::kSegments, {}, ""};
  if (has({"input_ids"})) return FoundFormat{DataFormat::kTokens, {}, ""};
  for (const auto& [prompt, completion] : {std::pair("prompt", "completion"), std::pair("prompt", "response"),
                                           std::pair("question", "answer"), std::pair("input", "output")}) {
    if (!has({prompt, completion})) continue;
    FoundFormat found{DataFormat::kPromptCompletion, {}, ""};
    if (std::string_view(prompt) != "prompt") found.columns["prompt"] = prompt;
    if (std::string_view(completion) != "completion") found.columns["completion"] = completion;
    return found;
  }
  if (has({"text"})) return FoundFormat{DataFormat::kText, {}, ""};
  return std::nullopt;
}

std::string toml_of(const std::string& text) { return toml_text(from_json(Json(text), {})); }

// "key = value" followed by the comment; the comments of a table are aligned.
std::string line(const std::string& assignment, const std::string& comment = "") {
  return comment.empty() ? assignment + "\n" : fmt::format("{:<35} # {}\n", assignment, comment);
}

std::string data_set(const InitFacts& facts) {
  std::string text = "[[data.train]]\n" + line("path = " + toml_of(facts.data));
  text += line(fmt::format("format = \"{}\"", to_text(facts.format.format)), facts.format.why);
  if (facts.split_pairs) text += line("split_pairs = true", "chosen answers are good, and rejected ones bad");
  if (facts.format.columns.empty()) return text;
  std::string columns;
  for (const auto& [name, key] : facts.format.columns)
    columns += fmt::format("{}{} = {}", columns.empty() ? "" : ", ", name, toml_of(key));
  return text + line(fmt::format("columns = {{ {} }}", columns), "the names of its keys");
}

// The files of a path whose format is not known yet; sets a format that can read them. Throws the first format's error.
std::vector<std::string> find_files(DataSetConfig& set) {
  std::optional<Error> first;
  for (const DataFormat format :
       {DataFormat::kMessages, DataFormat::kPromptCompletion, DataFormat::kText, DataFormat::kTokens}) {
    set.format = format;
    try {
      return data_files(set);
    } catch (const Error& error) {
      if (!first) first = error;
    }
  }
  throw *first;
}

}  // namespace

FoundFormat find_format(const std::string& path, RowFiles* row_files) {
  DataSetConfig set;
  set.path = path;
  set.row_files = row_files;
  set.key = "--data";
  set.all_columns = true;
  const std::vector<std::string> files = find_files(set);
  const FileType type = file_type(files.front(), row_files);
  if (type == FileType::kPlainText) return FoundFormat(DataFormat::kText, {}, "each line is a document");
  if (type == FileType::kTokens) return FoundFormat(DataFormat::kTokens, {}, "a file of token ids");
  const std::unique_ptr<RowReader> rows = open_rows(files.front(), set);
  std::optional<FoundFormat> found;
  std::set<std::string> keys;
  uint64_t count = 0;
  for (RawRow raw; count < kRowsToLookAt && rows->next(raw); ++count) {
    const SourcePosition where{files.front(), static_cast<int>(raw.line), 0};
    Json row;
    try {
      row = parse_json(raw.bytes, files.front());
    } catch (const Error& error) {
      throw Error(ExitCode::kConfig, where, error.message());
    }
    if (!row.is_object())
      throw Error(ExitCode::kConfig, where, "expected an object, found " + std::string(row.type_name()));
    for (const auto& [key, value] : row.items()) keys.insert(key);
    if (!found) found = format_of_row(row);
  }
  if (count == 0) throw config_error("'" + printable(files.front()) + "' has no rows");
  if (!found)
    throw config_error(fmt::format("'{}': rows with the keys {} fit no format", printable(files.front()), listed(keys)))
        .hint(
            fmt::format("set it with --format: {}; other names of keys are given in [[data.train]] columns", kFormats));
  found->why = "its rows have the keys " + listed(keys);
  return *found;
}

bool has_template(const InitFacts& facts) {
  const bool has_texts = facts.task == Task::kClassify && facts.labels.has_texts;
  return spec_of(facts.task).has_answers && facts.format.format != DataFormat::kSegments && !has_texts;
}

int64_t seq_len_of(const InitFacts& facts) {
  constexpr uint64_t kMin = 256, kMax = 4096, kMinOfText = 64;
  constexpr uint64_t kSequencesOfPair = 2, kSequencesOfLabelled = 2, kSequencesOfRollouts = 8;
  const uint64_t num_sequences = facts.format.format == DataFormat::kPreference ? kSequencesOfPair
                                 : facts.format.format == DataFormat::kLabelled ? kSequencesOfLabelled
                                 : facts.format.format == DataFormat::kRollouts ? kSequencesOfRollouts
                                                                                : 1;
  uint64_t length = std::clamp(std::bit_ceil(std::max<uint64_t>(facts.longest, 1)), kMin, kMax * num_sequences);
  if (facts.task == Task::kPretrain) length = 1024;  // documents are joined and split
  if (facts.max_positions > 0) length = std::min(length, static_cast<uint64_t>(facts.max_positions) * num_sequences);
  if (facts.task == Task::kPretrain && facts.num_rows > 0 && !facts.is_sample)
    while (length > kMinOfText && facts.num_tokens < kMinSteps * length) length = std::bit_floor(length - 1);
  return static_cast<int64_t>(length);
}

namespace {

uint64_t epochs_of(const InitFacts& facts) {
  if (facts.objective != nullptr) return facts.objective->epochs;
  return facts.task == Task::kSft ? kSftEpochs : 1;
}

// Words for comments: how the task uses rows, and how long they are.
struct TaskWords {
  const char* trained;
  const char* longest;
};
TaskWords words_of(const InitFacts& facts) {
  switch (facts.task) {
    case Task::kPretrain:
      return {"every token is trained", ""};
    case Task::kSft:
      return {"only the answers are trained", "the longest of {} has {} tokens{}"};
    case Task::kPreference:
      if (facts.format.format == DataFormat::kLabelled || facts.split_pairs)
        return {"answers are good or bad", "the longest answer of {} has {} tokens with its mismatch{}"};
      return {"one answer is better than the other",
              "both answers of the longest of {} have {} tokens with their prompts{}"};
    case Task::kReward:
      return {"a score that is higher for better answers",
              "both answers of the longest of {} have {} tokens with their prompts{}"};
    case Task::kClassify:
      return {"scores of whole texts", "the longest of {} has {} tokens{}"};
    case Task::kPolicy:
      return {"answers with higher rewards become likelier",
              "all answers of the longest of {} have {} tokens with their prompts{}"};
    case Task::kDistill:
      return {"a teacher's likeliest tokens are learned", "the longest of {} has {} tokens{}"};
  }
  return {"", ""};
}

std::string adapter_table(const InitFacts& facts) {
  std::string text =
      "\n[adapter]\n" + line("plugin = \"lora\"", "the model stays frozen; the export is in PEFT's format");
  constexpr int64_t kRank = 16;
  const int64_t rank = facts.narrowest > 0 ? std::min(kRank, facts.narrowest) : kRank;
  text += line(fmt::format("rank = {}", rank), "of the branch next to each linear but the head");
  text += line(fmt::format("alpha = {}.0", 2 * rank), "branches are multiplied by alpha / rank");
  text += line("dropout = 0.0");
  if (facts.joined.empty()) return text;
  std::string names;
  for (const std::string& name : facts.joined) names += (names.empty() ? "" : ", ") + toml_of(name);
  return text +
         line("exclude = [" + names + "]", "each joins several linears in the files, and cannot have a branch yet");
}

std::string quant_table(const InitFacts& facts) {
  if (facts.is_quantized)
    return "\n[quant]\n" + line("plugin = \"bnb4\"", "reads the weights as the model's config.json says");
  if (facts.method != "qlora") return "";
  return "\n[quant]\n" + line("plugin = \"bnb4\"", "the frozen linears in 4 bits, on the CPU") +
         line("type = \"nf4\"") + line("double_quant = true", "the scales of blocks in 8 bits, too");
}

std::string data_table(const InitFacts& facts, const std::string& rows) {
  std::string text = "\n[data]\n";
  if (has_template(facts))
    text +=
        line("template = " + toml_of(facts.data_template.empty() ? "auto" : facts.data_template), facts.why_template);
  if (!facts.labels.classes.empty()) {
    std::string names;
    for (const std::string& name : facts.labels.classes) names += (names.empty() ? "" : ", ") + toml_of(name);
    text += line("classes = [" + names + "]", "names of the labels, in the order of their indices");
  }
  const std::string fraction = "eval_fraction = 0.02";
  text += facts.num_rows >= kMinRowsToEvaluate
              ? line(fraction, "this fraction of the rows is evaluated, not trained")
              : line("# " + fraction, "would evaluate this fraction of the rows instead of training on it");
  if (!facts.overflow.empty())
    text += line("overflow = " + toml_of(facts.overflow),
                 fmt::format("{} of {} are longer than seq_len; \"drop\" leaves them out, with max_drop_ratio",
                             facts.num_too_long, rows));
  return text;
}

std::string objective_tables(const InitFacts& facts) {
  if (facts.objective == nullptr) return "";
  std::string text = "\n[objective]\n" + line(fmt::format("plugin = \"{}\"", facts.objective->plugin));
  for (const auto& [assignment, comment] : facts.objective->options)
    text += line(std::string(assignment), std::string(comment));
  if (facts.task == Task::kPolicy && facts.format.has_logps)
    text += line("clip_low = 0.2") + line("clip_high = 0.2", "0.28 lets rare tokens grow");
  else if (facts.task == Task::kPolicy)
    text += line("old_logps = \"model\"", "the answers have no \"logps\" of the policy that wrote them");
  if (facts.task == Task::kClassify) {
    const bool is_regression = facts.labels.kind == "regression";
    text +=
        line(fmt::format("kind = \"{}\"", facts.labels.kind), is_regression                  ? "values"
                                                              : facts.labels.kind == "multi" ? "any number of classes"
                                                                                             : "one class");
    text += line(fmt::format("num_labels = {}", facts.labels.num_labels),
                 fmt::format("{}{}", is_regression ? "values of a row" : "classes",
                             facts.labels.is_part ? ", in the rows that were looked at" : ""));
  }
  return text;
}

}  // namespace

InitSteps steps_of(const InitFacts& facts) {
  InitSteps steps;
  if (facts.num_rows == 0) return steps;
  // Packing joins short rows.
  const auto length = static_cast<uint64_t>(seq_len_of(facts));
  const uint64_t packed = std::max<uint64_t>(1, (facts.num_tokens + length - 1) / length);
  const bool has_answers = spec_of(facts.task).has_answers;
  const uint64_t rows = has_answers ? std::min(packed, facts.num_rows) * epochs_of(facts) : packed;
  while (steps.rows_of_step > 1 && rows < kMinSteps * static_cast<uint64_t>(steps.rows_of_step))
    steps.rows_of_step /= 2;
  steps.num_steps = static_cast<int64_t>(std::max<uint64_t>(1, rows / static_cast<uint64_t>(steps.rows_of_step)));
  steps.warmup_steps = std::min(steps.warmup_steps, steps.num_steps / 10);
  return steps;
}

std::string init_toml(const InitFacts& facts) {
  const bool has_answers = spec_of(facts.task).has_answers, is_lora = facts.method != "full" && !facts.method.empty();
  std::string rows =
      facts.is_sample ? fmt::format("the first {} rows", facts.num_rows) : fmt::format("{} rows", facts.num_rows);
  if (facts.num_files > 1) rows += fmt::format(" of {} files", facts.num_files);
  std::string positions;
  if (facts.max_positions > 0) positions = fmt::format("; the model was made for {}", facts.max_positions);
  std::string text =
      "# Made by `chassis init`; `chassis schema` documents every key, `chassis schema TABLE` one table.\n"
      "schema_version = 1\n\n[run]\n";
  text += line("name = " + toml_of(facts.name)) + line("output_dir = " + toml_of(facts.output_dir));
  text += line(fmt::format("epochs = {}", epochs_of(facts)), "passes over the data; or max_steps");
  text += "\n[model]\n" + line("path = " + toml_of(facts.model), facts.architecture);
  if (is_lora) text += adapter_table(facts);
  text += quant_table(facts);
  if (has_answers) text += data_table(facts, rows);
  text += "\n" + data_set(facts);
  text += "\n[train]\n";
  const TaskWords words = words_of(facts);
  text += line(fmt::format("task = \"{}\"", to_text(facts.task)), words.trained);
  text += line(fmt::format("seq_len = {}", seq_len_of(facts)),
               has_answers ? fmt::format(fmt::runtime(words.longest), rows, facts.longest, positions)
                           : "tokens per row" + positions);
  text += line("micro_batch_size = 1", "rows at a time on one device");
  const InitSteps steps = steps_of(facts);
  text += line(fmt::format("global_batch_size = {}", steps.rows_of_step),
               steps.num_steps == 0 ? std::string("rows of one step")
                                    : fmt::format("rows of one step; {} {} steps in all",
                                                  facts.is_sample ? "more than" : "about", steps.num_steps));
  text += objective_tables(facts);
  text +=
      "\n[precision]\n" + line("compute = \"auto\"", "bf16 on a GPU, fp32 on a CPU; the weights are stored as " +
                                                         (facts.stored_dtype.empty() ? "float32" : facts.stored_dtype));
  const std::string_view lr = facts.objective ? (is_lora ? facts.objective->adapter_lr : facts.objective->lr)
                              : is_lora       ? "2e-4"
                              : has_answers   ? "2e-5"
                                              : "1e-4";
  text += "\n[optimizer]\n" + line("plugin = \"adamw\"") + line(fmt::format("lr = {}", lr), "the peak");
  text += "\n[schedule]\n" + line("name = \"cosine\"") + line(fmt::format("warmup_steps = {}", steps.warmup_steps)) +
          line("min_lr_ratio = 0.1");
  if (has_answers && !spec_of(facts.task).has_scores)
    text += "\n[sample]\n" + line("prompts = []", "questions whose answers the log shows, such as [\"Who are you?\"]") +
            line("# every_steps = 50", "also during the run; else only after the last step");
  return text;
}

}  // namespace chassis
