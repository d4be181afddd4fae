// Files of prompts, and the file of their answers, which a second run continues.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/data/record.hpp"
#include "host/generate/answer.hpp"
#include "host/session/session.hpp"

namespace chassis {

// A row {"prompt": …}, a text to continue, or {"messages": […]}, a conversation to answer.
struct PromptRow {
  Json row;  // as it was read; its other keys are copied
  SourcePosition where;
  std::string prompt;
  std::optional<ChatRecord> chat;
};

// Calls `check` for each row; an error gets the position of the row.
template <class Check>
void for_rows(const std::vector<PromptRow>& rows, Check&& check) {
  for (size_t i = 0; i < rows.size(); ++i) {
    try {
      check(i);
    } catch (const Error& error) {
      throw Error(error.code(), rows[i].where, error.message()).hint(error.hint_text());
    }
  }
}

// Reads all rows of a .jsonl file. Throws a config error at the line of the first bad one.
std::vector<PromptRow> read_prompts(const std::string& path);

// The ids of all prompts, so that a row that the template refuses is an error before the first answer. Adds the
// template's stop ids to the answerer. Needs no weights. Errors have the position of the row.
std::vector<std::vector<int32_t>> ids_of_rows(const Session& session, Answerer& answerer,
                                              const std::vector<PromptRow>& rows);

// Throws a config error if both names lead to one file, through links or not.
void require_other_file(const std::string& prompts, const std::string& answers);

// One row for each prompt, in the same order: the keys of the prompt's row, answer, finish_reason, prompt_tokens and
// answer_tokens. An answer is in the file as soon as those of all earlier rows are. PATH.made_with.json records how
// they were made, and shows that the file is this program's own.
class AnswersFile {
 public:
  // If the file exists and is not empty, PATH.made_with.json must name it. Keeps its complete rows, which must answer
  // the first prompts and be made with the same inputs. Otherwise throws a config error and changes nothing.
  AnswersFile(const std::string& path, const std::vector<PromptRow>& prompts, const Json& generation_record);

  size_t num_answered() const { return num_answered_; }
  void append(const PromptRow& prompt, const Answer& answer);

 private:
  File file_;
  uint64_t end_ = 0;
  size_t num_answered_ = 0;
};

}  // namespace chassis
