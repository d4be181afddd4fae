// Rendering of Error: one text with position, message, facts, causes, hint and note.
#include "host/base/error.hpp"

#include <exception>
#include <filesystem>
#include <new>
#include <system_error>

#include "host/base/limit_text.hpp"
#include "host/base/printable.hpp"

namespace chassis {
namespace {

constexpr size_t kMaxPositionBytes = 4096;  // as long as a path

// There may be no memory for the text.
std::string limits_or_empty(std::string (*text)()) {
  try {
    return text();
  } catch (const std::exception&) {
    return "";
  }
}

std::string after_colon(const std::string& limits) { return ": " + (limits.empty() ? "ulimit -v, ulimit -u" : limits); }

}  // namespace

std::string SourcePosition::text() const {
  std::string out = file;
  if (line > 0) {
    if (!out.empty()) out += ':';
    out += std::to_string(line);
    if (column > 0) out += ':' + std::to_string(column);
  }
  return out;
}

Error::Error(ExitCode code, std::string message) : Error(code, SourcePosition{}, std::move(message)) {}

Error::Error(ExitCode code, SourcePosition where, std::string message)
    : code_(code), where_(std::move(where)), message_(std::move(message)) {
  render();
}

Error& Error::hint(std::string text) {
  hint_ = std::move(text);
  render();
  return *this;
}

Error& Error::with(std::string key, std::string value) {
  facts_.emplace_back(std::move(key), std::move(value));
  render();
  return *this;
}

Error& Error::caused_by(const std::exception& cause) {
  if (!cause_.empty()) cause_ += "\ncaused by: ";
  cause_ += cause.what();
  if (const auto* error = dynamic_cast<const Error*>(&cause)) is_from_another_rank_ |= error->is_from_another_rank();
  render();
  return *this;
}

Error& Error::note(std::string lines) {
  note_ = std::move(lines);
  render();
  return *this;
}

Error& Error::from_another_rank() {
  is_from_another_rank_ = true;
  return *this;
}

const char* Error::what() const noexcept { return text_.c_str(); }

void Error::render() {
  text_ = printable(where_.text(), kMaxPositionBytes);
  if (!text_.empty()) text_ += ": ";
  text_ += printable_message(message_);
  for (size_t i = 0; i < facts_.size(); ++i)
    text_ += (i == 0 ? " (" : ", ") + facts_[i].first + ": " + printable(facts_[i].second);
  if (!facts_.empty()) text_ += ')';
  if (!cause_.empty()) text_ += "\ncaused by: " + printable_message(cause_);
  if (!hint_.empty()) text_ += "\nhint: " + printable_message(hint_);
  if (!note_.empty()) text_ += "\n" + printable_message(note_);
}

Error config_error(std::string message) { return Error(ExitCode::kConfig, std::move(message)); }
Error plugin_error(std::string message) { return Error(ExitCode::kPlugin, std::move(message)); }
Error storage_error(std::string message) { return Error(ExitCode::kStorage, std::move(message)); }
Error internal_error(std::string message) { return Error(ExitCode::kInternal, std::move(message)); }

Error current_error() {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    Error error(ExitCode::kOutOfMemory, "out of host memory");
    if (const std::string limits = limits_or_empty(memory_limits_text); !limits.empty())
      error.hint(limits + "; raise what is too low");
    return error;
  } catch (const std::filesystem::filesystem_error& error) {
    return storage_error("cannot use '" + error.path1().string() + "': " + error.code().message());
  } catch (const std::system_error& error) {
    // Thrown when there is no memory for the stack of a thread.
    if (error.code() == std::errc::resource_unavailable_try_again)
      return Error(ExitCode::kOutOfMemory, "out of host memory, or of threads: no further thread can start")
          .hint("see the limits of memory and processes" + after_colon(limits_or_empty(thread_limits_text)) +
                ", and those of the container");
    return internal_error("internal error: " + std::string(error.what()));
  } catch (const std::exception& error) {
    return internal_error("internal error: " + std::string(error.what()));
  } catch (...) {
    return internal_error("internal error: an exception of unknown type");
  }
}

void invariant_failed(const char* expression, const char* file, int line, std::string_view detail) {
  std::string message = "broken invariant: " + std::string(detail) + " [" + expression + "]";
  throw Error(ExitCode::kInternal, SourcePosition{file, line, 0}, std::move(message));
}

}  // namespace chassis
