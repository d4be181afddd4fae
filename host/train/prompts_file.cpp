// Reads and writes one JSON object for each line.
#include "host/train/prompts_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <utility>

#include "host/base/printable.hpp"
#include "host/data/record_reader.hpp"
#include "host/train/made_with.hpp"

namespace chassis {
namespace {

constexpr std::array<const char*, 4> kAnswerKeys = {"answer", "finish_reason", "prompt_tokens", "answer_tokens"};
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 30;

Error row_error(const SourcePosition& where, const std::string& message) {
  return Error(ExitCode::kConfig, where, message);
}

// The lines of a text without their ends, and whether each has one.
std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

Json object_of_line(std::string_view line, const SourcePosition& where) {
  Json row;
  try {
    row = parse_json(line, where.file);
  } catch (const Error& cause) {
    throw Error(ExitCode::kConfig, {where.file, where.line, cause.where().column}, cause.message());
  }
  if (!row.is_object()) throw row_error(where, fmt::format("expected an object, found {}", row.type_name()));
  return row;
}

void require_open_turn(const ChatRecord& chat, const SourcePosition& where) {
  if (chat.messages.empty()) throw row_error(where, "'messages' is empty");
  if (chat.messages.back().role == "assistant")
    throw row_error(where, "the last message is one of the assistant, so there is nothing to answer")
        .hint("leave out the answer that the model is to give");
}

PromptRow prompt_of(std::string_view line, const SourcePosition& where, RowParser& chats) {
  PromptRow row;
  row.row = object_of_line(line, where);
  row.where = where;
  const bool has_prompt = row.row.contains("prompt"), has_messages = row.row.contains("messages");
  if (has_prompt == has_messages)
    throw row_error(where, has_prompt ? "has both 'prompt' and 'messages'" : "has neither 'prompt' nor 'messages'")
        .hint("a row is {\"prompt\": \"a text to continue\"} or {\"messages\": [a conversation to answer]}");
  for (const char* key : kAnswerKeys)
    if (row.row.contains(key))
      throw row_error(where, fmt::format("has a key '{}', which the row of the answer would have", key))
          .hint("rename that key");
  try {
    if (has_prompt && !row.row["prompt"].is_string())
      throw row_error(where, fmt::format("'prompt' must be a string, not {}", row.row["prompt"].type_name()));
    if (has_prompt)
      row.prompt = row.row["prompt"].get<std::string>();
    else
      row.chat = std::get<ChatRecord>(
          chats.parse({.bytes = std::string(line), .line = static_cast<uint64_t>(where.line)}, where.file));
  } catch (const Error& error) {
    if (!error.where().file.empty()) throw;
    throw row_error(where, error.message());
  }
  if (row.chat) require_open_turn(*row.chat, where);
  return row;
}

// Throws unless the kept answers were made with the same as now, so that a file never mixes two models.
void require_made_with(const std::string& path, size_t num_answers, const std::string& beside, const Json& now) {
  const std::string answers = fmt::format("{}: its {} answers", printable(path), num_answers);
  const char* const advice = "choose another --out, or remove this file to answer all prompts again";
  if (path_kind(beside) == PathKind::kAbsent)
    throw config_error(fmt::format("{} cannot be continued: there is no {}, which says what they were made with",
                                   answers, printable(beside)))
        .hint(advice);
  const Json then = parse_json(read_file(beside), beside);
  if (!then.is_object()) throw row_error({beside, 1, 0}, "expected an object").hint(advice);
  if (const std::string text = differences_text(then, now); !text.empty())
    throw config_error(fmt::format("{} were made with other weights or settings:{}", answers, text))
        .hint(std::string(advice) + "; the same weights and settings continue it");
}

}  // namespace

std::vector<PromptRow> read_prompts(const std::string& path) {
  const std::string text = read_file(path, kMaxFileBytes);
  DataSetConfig set;
  set.path = path;
  set.format = DataFormat::kMessages;
  const std::unique_ptr<RowParser> chats = make_row_parser(set, 0);
  std::vector<PromptRow> rows;
  int line = 0;
  for (const std::string_view content : lines_of(text)) {
    ++line;
    if (content.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    rows.push_back(prompt_of(content, {path, line, 0}, *chats));
  }
  if (rows.empty()) throw config_error("'" + printable(path) + "' has no prompt");
  return rows;
}

AnswersFile::AnswersFile(const std::string& path, const std::vector<PromptRow>& prompts, const Json& made_with)
    : file_(File::open_write(path)) {
  std::string text(file_.size(), '\0');
  file_.pread_exact(text.data(), text.size(), 0);
  text.resize(text.find_last_of('\n') + 1);  // a last row without an end was cut short when the program ended
  int line = 0;
  for (const std::string_view content : lines_of(text)) {
    const SourcePosition where{path, ++line, 0};
    const auto refuse = [&](const std::string& what) {
      throw row_error(where, what).hint("choose another --out, or remove this file");
    };
    if (num_answered_ == prompts.size()) refuse(fmt::format("there are only {} prompts", prompts.size()));
    Json row = object_of_line(content, where);
    for (const char* key : kAnswerKeys)
      if (row.erase(key) == 0) refuse(fmt::format("has no '{}', so it is not the row of an answer", key));
    if (const PromptRow& prompt = prompts[num_answered_]; row != prompt.row)
      refuse("is not the answer to " + prompt.where.text());
    ++num_answered_;
  }
  const std::string beside = path + ".made_with.json";
  if (num_answered_ > 0)
    require_made_with(path, num_answered_, beside, made_with);
  else
    write_file_atomic(beside, json_line(made_with) + "\n");
  end_ = text.size();
  file_.truncate(end_);
}

void AnswersFile::append(const PromptRow& prompt, const Answer& answer) {
  Json row = prompt.row;
  row["answer"] = answer.text;
  row["finish_reason"] = answer.finish_reason;
  row["prompt_tokens"] = answer.num_prompt_tokens;
  row["answer_tokens"] = answer.num_tokens;
  const std::string line = json_line(row) + "\n";
  file_.pwrite_exact(line.data(), line.size(), end_);
  end_ += line.size();
  ++num_answered_;
}

}  // namespace chassis
