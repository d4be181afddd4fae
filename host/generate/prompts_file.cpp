// Reads and writes one JSON object for each line.
#include "host/generate/prompts_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "host/base/creation_limit.hpp"
#include "host/base/printable.hpp"
#include "host/data/record_reader.hpp"
#include "host/generate/chat.hpp"
#include "host/generate/generation_record.hpp"

namespace chassis {
namespace {

constexpr std::array<const char*, 4> kAnswerKeys = {"answer", "finish_reason", "prompt_tokens", "answer_tokens"};
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 30;

Error row_error(const SourcePosition& where, const std::string& message) {
  return Error(ExitCode::kConfig, where, message);
}

// The lines of a text, without their line breaks.
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
    throw row_error(where, "the last message is the assistant's, so there is nothing to answer")
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
      row.chat = std::get<ChatRecord>(chats.parse(
          {.bytes = std::string(line), .line = static_cast<uint64_t>(where.line), .maker = {}}, where.file));
  } catch (const Error& error) {
    if (!error.where().file.empty()) throw;
    throw row_error(where, error.message());
  }
  if (row.chat) require_open_turn(*row.chat, where);
  return row;
}

// The record beside a file of answers holds generation_record and this key, so that no other file is taken for a
// record.
constexpr const char* kAnswersKey = "answers";

std::string record_path(const std::string& answers) { return answers + ".made_with.json"; }
std::string file_name(const std::string& path) { return std::filesystem::path(path).filename().string(); }

// The record of `answers`; null if there is none. Throws if the file is not a record, or is that of another file.
Json own_record(const std::string& answers) {
  const std::string path = record_path(answers);
  if (path_kind_nofollow(path) == PathKind::kAbsent) return nullptr;
  const std::string advice = "choose another --out, or remove " + printable(path);
  Json record;
  try {
    record = parse_json(read_file(path), path);
  } catch (const Error& cause) {
    throw row_error(cause.where().file.empty() ? SourcePosition{path, 1, 0} : cause.where(),
                    "was not written by this program: " + cause.message())
        .hint(advice);
  }
  if (!record.is_object() || !record.contains(kAnswersKey) || !record[kAnswersKey].is_string())
    throw row_error({path, 1, 0},
                    fmt::format("was not written by this program: it has no '{}', the name of a file", kAnswersKey))
        .hint(advice);
  if (const std::string name = record[kAnswersKey].get<std::string>(); name != file_name(answers))
    throw row_error({path, 1, 0},
                    fmt::format("belongs to {}, not to {}", printable(name), printable(file_name(answers))))
        .hint(advice);
  record.erase(kAnswersKey);
  return record;
}

// Throws unless the kept answers were made with the same inputs as now, so that a file never mixes two models.
void require_same_record(const std::string& path, size_t num_answers, const Json& then, const Json& now) {
  if (const std::string text = differences_text(then, now); !text.empty())
    throw config_error(fmt::format("{}: its {} answers were made with other weights or settings:{}", printable(path),
                                   num_answers, text))
        .hint(
            "choose another --out, or remove this file to answer all prompts again; the same weights and settings "
            "continue it");
}

// True if an incomplete last line may be the beginning of the answer to this prompt.
bool begins_answer(std::string_view cut, const PromptRow& prompt) {
  std::string head = json_line(prompt.row);
  head.back() = ',';  // was the closing brace
  head += fmt::format("\"{}\":", kAnswerKeys.front());
  return std::string_view(head).starts_with(cut) || cut.starts_with(head);
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

std::vector<std::vector<int32_t>> ids_of_rows(const Session& session, Answerer& answerer,
                                              const std::vector<PromptRow>& rows) {
  std::optional<ChatRenderer> renderer;
  if (std::any_of(rows.begin(), rows.end(), [](const PromptRow& row) { return row.chat.has_value(); })) {
    renderer.emplace(chat_renderer(session));
    answerer.add_stop_ids(renderer->stop_ids());
  }
  std::vector<std::vector<int32_t>> ids;
  for_rows(rows, [&](size_t i) {
    const PromptRow& row = rows[i];
    ids.push_back(row.chat ? ids_of_chat(answerer, *renderer, *row.chat) : answerer.ids_of_text(row.prompt));
    if (ids.back().empty()) throw config_error("the prompt is empty");
    check_answer_length(session.model(), session.program(), static_cast<int64_t>(ids.back().size()), 1);
  });
  return ids;
}

void require_other_file(const std::string& prompts, const std::string& answers) {
  std::error_code absent;
  if (std::filesystem::equivalent(prompts, answers, absent))
    throw config_error(fmt::format("--out '{}' is the file of the prompts", printable(answers)))
        .hint("choose another --out");
}

AnswersFile::AnswersFile(const std::string& path, const std::vector<PromptRow>& prompts,
                         const Json& generation_record) {
  const CreationLimit limit(prompts.empty() ? 0044 : shared_read_mode({prompts.front().where.file}));
  const Json record = own_record(path);
  std::string text;
  if (path_kind(path) != PathKind::kAbsent) {
    file_ = File::open_write(path);
    text.resize(file_.size());
    file_.pread_exact(text.data(), text.size(), 0);
  }
  if (record.is_null() && !text.empty())
    throw config_error(
        fmt::format("'{}' exists, and its answers cannot be continued: there is no {}, which says what they were made "
                    "with",
                    printable(path), printable(record_path(path))))
        .hint("choose another --out, or remove this file to answer all prompts again");
  size_t line = 0;
  for (const std::string_view content : lines_of(text)) {
    const SourcePosition where{path, static_cast<int>(++line), 0};
    const auto refuse = [&](const std::string& what) {
      throw row_error(where, what).hint("choose another --out, or remove this file");
    };
    if (num_answered_ == prompts.size()) refuse(fmt::format("there are only {} prompts", prompts.size()));
    const PromptRow& prompt = prompts[num_answered_];
    const bool is_cut = content.data() + content.size() == text.data() + text.size();  // when the program ended
    if (is_cut && !begins_answer(content, prompt)) refuse("is not the answer to " + prompt.where.text());
    if (is_cut) break;
    Json row = object_of_line(content, where);
    for (const char* key : kAnswerKeys)
      if (row.erase(key) == 0) refuse(fmt::format("has no '{}', so it is not the row of an answer", key));
    if (row != prompt.row) refuse("is not the answer to " + prompt.where.text());
    end_ += content.size() + 1;
    ++num_answered_;
  }
  if (num_answered_ > 0) {
    require_same_record(path, num_answered_, record, generation_record);
  } else {
    Json now = generation_record;
    now[kAnswersKey] = file_name(path);
    write_file_atomic(record_path(path), json_line(now) + "\n");
  }
  if (!file_.is_open()) file_ = File::open_write(path);
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
