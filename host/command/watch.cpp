// `chassis watch`: follows a run from its files. Works for any user who may read them, and does not disturb the run.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <thread>

#include "host/base/error.hpp"
#include "host/base/file.hpp"
#include "host/base/log.hpp"
#include "host/base/output.hpp"
#include "host/command/command.hpp"
#include "host/command/line_input.hpp"
#include "host/command/terminal.hpp"
#include "host/report/run_summary.hpp"

namespace chassis {
namespace {

using namespace std::chrono_literals;

struct WatchArguments {
  std::string run;
  double interval_s = 1.0;
  bool once = false;
};

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), output());
  std::fflush(output());
}

// Lines of at most `width` characters: a longer one would wrap, and take two lines of the terminal.
std::string cut_lines(const std::string& text, size_t width) {
  std::string out;
  size_t column = 0;
  for (const char c : text) {
    if (c == '\n') column = 0;
    const bool begins_character = (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    if (c != '\n' && begins_character) ++column;
    if (column <= width) out += c;
  }
  return out;
}

// True if a run that is about to start may make this its directory, or has done so: it locks checkpoints/ before it
// writes run.json.
bool may_become_a_run(const std::string& path) {
  std::error_code ignored;
  if (path_kind(path) == PathKind::kDirectory)
    return std::filesystem::is_empty(path, ignored) ||
           path_kind_nofollow(path + "/checkpoints") == PathKind::kDirectory;
  const std::filesystem::path whole(path);
  const std::filesystem::path parent = whole.has_filename() ? whole.parent_path() : whole.parent_path().parent_path();
  return !path.empty() && path_kind(path) == PathKind::kAbsent &&
         path_kind(parent.empty() ? "." : parent.string()) == PathKind::kDirectory;
}

std::unique_ptr<RunReader> open_when_there(const std::string& path, bool waits, Interrupts& interrupts) {
  for (bool told = false;; told = true) {
    try {
      return std::make_unique<RunReader>(path);
    } catch (const Error& error) {
      if (!waits || error.code() != ExitCode::kConfig || !may_become_a_run(path)) throw;
      if (!told) log::info("{}; waiting for it (Ctrl-C ends)", error.message());
    }
    std::this_thread::sleep_for(0.2s);
    if (interrupts.arrived()) return nullptr;
  }
}

// Draws the summary over the one before.
class Screen {
 public:
  explicit Screen(bool redraws) : redraws_(redraws) {}
  void show(const std::string& text) {
    if (redraws_ && num_lines_ > 0) print(fmt::format("\x1b[{}A\x1b[J", num_lines_));
    print(text);
    num_lines_ = std::count(text.begin(), text.end(), '\n');
  }

 private:
  const bool redraws_;
  int64_t num_lines_ = 0;
};

}  // namespace

Verb add_watch(CLI::App& app) {
  auto arguments = std::make_shared<WatchArguments>();
  app.add_option("run", arguments->run, "the run.output_dir of a run")->required()->type_name("FOLDER");
  app.add_option("--interval", arguments->interval_s, "seconds between updates")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  app.add_flag("--once", arguments->once, "show it once");
  return [=] {
    if (!(arguments->interval_s >= 0.1)) throw config_error("--interval is not a number of seconds");
    const bool is_terminal = isatty(output_descriptor()) == 1;
    const auto interval = std::chrono::duration<double>(arguments->interval_s);
    Interrupts interrupts;
    const std::unique_ptr<RunReader> opened =
        open_when_there(arguments->run, is_terminal && !arguments->once, interrupts);
    if (!opened) return 0;
    RunReader& run = *opened;
    Screen screen(is_terminal);
    for (bool is_new = true;; is_new = run.poll()) {
      // A run whose end is not known is followed too, until its state changes.
      const bool has_ended = run.state() != RunStatus::kRunning && run.state() != RunStatus::kUnknown;
      const SummaryStyle style = terminal_style();
      const std::string text = summary_text(run, style);
      if (is_terminal)
        screen.show(cut_lines(text, style.width));
      else if (is_new || has_ended)
        screen.show(text);
      if (has_ended || arguments->once || interrupts.arrived()) return 0;
      for (auto left = interval; left.count() > 0.0 && !interrupts.arrived(); left -= 0.1s)
        std::this_thread::sleep_for(std::min<std::chrono::duration<double>>(left, 0.1s));
      if (interrupts.arrived()) return 0;
    }
  };
}

}  // namespace chassis
