// The exception type of the host, and the exit codes.
// A message names the object, both numbers and what to try; positions point into the user's files.
#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace chassis {

enum class ExitCode : int {
  kOk = 0,
  kInternal = 1,
  kConfig = 2,
  kPlugin = 3,
  kOutOfMemory = 4,
  kCommunication = 5,
  kNumeric = 6,
  kStorage = 7,
  kRolledBack = 8,  // of `chassis ctl`: a change to a run was undone, and the run goes on
  kStopped = 75,
};

// A position in one of the user's files; line and column start at 1, 0 means unknown.
struct SourcePosition {
  std::string file;
  int line = 0;
  int column = 0;

  // "file:line:column", shorter where parts are unknown.
  std::string text() const;
};

class Error : public std::exception {
 public:
  Error(ExitCode code, std::string message);
  Error(ExitCode code, SourcePosition where, std::string message);

  // Advice; shown on a separate line.
  Error& hint(std::string text);
  // A fact such as ("rank", "3"); shown after the message.
  Error& with(std::string key, std::string value);
  // The cause of this error; shown on lines "caused by: …". If it is from another rank, so is this error.
  Error& caused_by(const std::exception& cause);
  // Further lines, indented; shown last.
  Error& note(std::string lines);
  // Another rank reported this error, and this rank only passes it on.
  Error& from_another_rank();

  ExitCode code() const noexcept { return code_; }
  const SourcePosition& where() const noexcept { return where_; }
  const std::string& message() const noexcept { return message_; }
  const std::string& hint_text() const noexcept { return hint_; }
  const std::vector<std::pair<std::string, std::string>>& facts() const noexcept { return facts_; }
  const std::string& note_text() const noexcept { return note_; }
  bool is_from_another_rank() const noexcept { return is_from_another_rank_; }
  // The whole text: position, message, facts, causes, hint, note. Foreign text in it is escaped.
  const char* what() const noexcept override;

 private:
  void render();
  ExitCode code_;
  SourcePosition where_;
  std::string message_, hint_, cause_, note_, text_;
  std::vector<std::pair<std::string, std::string>> facts_;
  bool is_from_another_rank_ = false;
};

// Errors with the usual codes.
Error config_error(std::string message);
Error plugin_error(std::string message);
Error storage_error(std::string message);
Error internal_error(std::string message);

// The exception that is being handled: an Error as it is, a lack of memory or threads as kOutOfMemory, a
// filesystem_error as kStorage, any other as internal_error.
Error current_error();

// A broken invariant; also checked in release builds. Throws internal_error with file and line.
[[noreturn]] void invariant_failed(const char* expression, const char* file, int line, std::string_view detail);
#define CHASSIS_CHECK(expression, detail) \
  ((expression) ? (void)0 : ::chassis::invariant_failed(#expression, __FILE__, __LINE__, (detail)))

}  // namespace chassis
