// The two ways of `chassis generate` to answer more than one prompt.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "host/base/printable.hpp"
#include "host/generate/answer.hpp"
#include "host/generate/chat.hpp"
#include "host/generate/prompts_file.hpp"
#include "host/session/session.hpp"

namespace chassis {

// Reads lines of standard input, each a turn of the user or a command, and prints answers as they arrive, until the
// input ends or /exit. Returns the exit code.
int chat_on_standard_input(Session& session, Answerer& answerer);

// [all-ranks] Answers the rows, whose ids are given, generate.batch_size of them at once; rank 0 writes the answers to
// the file `out` in the order of the rows, and calls `generation_record` for AnswersFile.
int answer_rows(Session& session, Answerer& answerer, const std::vector<PromptRow>& rows,
                const std::vector<std::vector<int32_t>>& ids, const std::string& out,
                const std::function<Json()>& generation_record);

// Writes pieces of a text to standard output: unchanged to a file or a pipe, and without harmful control characters to
// a terminal.
class TextOutput {
 public:
  TextOutput();
  void add(std::string_view piece);
  // Writes what is held back, and a line break.
  void end_line();

 private:
  bool to_terminal_;
  PrintablePieces pieces_;
};

}  // namespace chassis
