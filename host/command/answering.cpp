// Turns at a terminal or from a pipe, and rows of a file.
#include "host/command/answering.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <optional>
#include <utility>

#include "host/base/log.hpp"
#include "host/base/output.hpp"
#include "host/base/printable.hpp"
#include "host/command/line_input.hpp"
#include "host/save/weights.hpp"

namespace chassis {
namespace {

constexpr int kInterruptedExitCode = 130;  // as shells report SIGINT
constexpr const char* kCommands = "/reset forgets the conversation, /system TEXT sets the system message, /exit ends";

void write_out(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), output());
  flush_output();
}

class Talk {
 public:
  Talk(Session& session, Answerer& answerer) : renderer_(chat_renderer(session)), chat_(answerer, renderer_) {}

  int operator()() {
    if (at_terminal_) log::info("{}; Ctrl-C ends an answer, Ctrl-D the program", kCommands);
    std::string line;
    while (true) {
      if (at_terminal_) write_out("> ");
      const LineInput::Result result = input_.next(line);
      if (result == LineInput::Result::kEnd) break;
      if (result == LineInput::Result::kInterrupted) {
        interrupts_.forget();
        if (!at_terminal_) return kInterruptedExitCode;
        write_out("\n");
        log::info("Ctrl-D or /exit ends the program");
        continue;
      }
      ++line_number_;
      if (!line.empty() && line.back() == '\r') line.pop_back();
      if (line.empty()) continue;
      if (line.front() == '/' && !line.starts_with("//")) {
        if (!obey(line)) break;
        continue;
      }
      if (line.starts_with("//")) line.erase(0, 1);  // a text that begins with a slash
      answer(line);
    }
    if (at_terminal_) write_out("\n");
    return 0;
  }

 private:
  // Returns false if the conversation ends.
  bool obey(const std::string& line) {
    const std::string command = line.substr(0, line.find(' '));
    const std::string rest = command.size() == line.size() ? "" : line.substr(command.size() + 1);
    if (command == "/exit") return false;
    if (command == "/help")
      log::info("{}", kCommands);
    else if (command == "/reset")
      chat_.reset();
    else if (command == "/system")
      chat_.set_system(rest);
    else
      refuse(config_error(fmt::format("unknown command {}", printable(command)))
                 .hint(std::string(kCommands) + "; a text that begins with / is written //"));
    return true;
  }

  void answer(const std::string& line) {
    interrupts_.forget();
    if (!is_utf8(line)) return refuse(config_error("the text is not UTF-8"));
    TextOutput out;
    try {
      const Answer answer = chat_.say(line, [&](std::string_view text) {
        out.add(text);
        return !interrupts_.arrived();
      });
      out.end_line();
      if (answer.finish_reason == "length")
        log::info("(cut after {} tokens; generate.max_new_tokens sets the limit)", answer.num_tokens);
    } catch (const Error& error) {
      if (error.code() != ExitCode::kConfig) throw;
      refuse(error);
    }
    interrupts_.forget();
  }

  // At a terminal, only logs the error, since the user can write another line.
  void refuse(const Error& error) {
    if (at_terminal_) return log::error("{}", error.what());
    throw Error(error.code(), SourcePosition{"standard input", line_number_, 0}, error.message())
        .hint(error.hint_text());
  }

  const ChatRenderer renderer_;
  Conversation chat_;
  LineInput input_;
  Interrupts interrupts_;
  const bool at_terminal_ = input_.is_terminal() && isatty(output_descriptor()) == 1;
  int line_number_ = 0;
};

}  // namespace

TextOutput::TextOutput() : to_terminal_(isatty(output_descriptor()) == 1) {}

void TextOutput::add(std::string_view piece) { write_out(to_terminal_ ? pieces_.add(piece) : std::string(piece)); }

void TextOutput::end_line() { write_out(pieces_.finish() + "\n"); }

int chat_on_standard_input(Session& session, Answerer& answerer) { return Talk(session, answerer)(); }

int answer_rows(Session& session, Answerer& answerer, const std::vector<PromptRow>& rows,
                const std::vector<std::vector<int32_t>>& ids, const std::string& out,
                const std::function<Json()>& generation_record) {
  World& world = session.world();
  std::optional<AnswersFile> file;
  const size_t done = std::stoull(find_on_rank_0(world, "opening " + out, [&] {
    file.emplace(out, rows, generation_record());
    return std::to_string(file->num_answered());
  }));
  if (done > 0) log::info("{}: {} of {} prompts have already been answered", printable(out), done, rows.size());
  using Clock = std::chrono::steady_clock;
  auto told = Clock::now();
  const auto request_of = [&](size_t row) {
    return AnswerRequest{.prompt = ids[row], .stream = "row/" + std::to_string(row), .continues_text = !rows[row].chat};
  };
  answerer.answer_all(done, rows.size(), request_of, [&](size_t row, const Answer& answer) {
    if (file) file->append(rows[row], answer);
    if (Clock::now() - told < std::chrono::seconds(10)) return;
    told = Clock::now();
    log::info("{} of {} prompts are answered", row + 1, rows.size());
  });
  log::info("{} answers in {}", rows.size(), printable(out));
  return 0;
}

}  // namespace chassis
