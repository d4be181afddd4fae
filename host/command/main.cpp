// chassis: the program. Parses the command line, runs a verb, turns errors into messages and exit codes.
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <new>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/base/end_process.hpp"
#include "host/base/error.hpp"
#include "host/base/log.hpp"
#include "host/base/output.hpp"
#include "host/base/printable.hpp"
#include "host/base/thread_wait.hpp"
#include "host/command/command.hpp"
#include "host/command/early_checks.hpp"
#include "host/config/suggest.hpp"
#include "host/launch/world.hpp"
#include "host/plugin/call.hpp"
#include "host/plugin/crash_report.hpp"

namespace {

// If a standard descriptor is closed, the next file or socket gets its number, and output would go there. Standard
// output is opened read-only, so that printing to it fails.
__attribute__((no_sanitize("address", "undefined", "thread"))) void open_standard_descriptors(int, char**, char**) {
  for (int descriptor = 0; descriptor < 3; ++descriptor) {
    const int access = descriptor == STDOUT_FILENO ? O_RDONLY : O_RDWR;
    if (syscall(SYS_fcntl, descriptor, F_GETFD) < 0 && syscall(SYS_openat, AT_FDCWD, "/dev/null", access) < 0)
      syscall(SYS_openat, AT_FDCWD, "/", O_RDONLY);
  }
}

__attribute__((no_sanitize("address", "undefined", "thread"))) bool starts_with(const char* text, const char* start) {
  int same = 0;
  while (start[same] && text[same] == start[same]) ++same;
  return !start[same];
}

// Lets waiting OpenMP threads stay awake for a moment (base/thread_wait.hpp says why). LibTorch's OpenMP library reads
// the variables when it is loaded, so the program restarts itself once, before any constructor: those of LibTorch take
// 0.2 s.
__attribute__((no_sanitize("address", "undefined", "thread"))) void restart_with_brief_waiting(int, char** argv,
                                                                                               char** environment) {
  constexpr int kMaxVariables = 4096;
  const char* restarted[kMaxVariables + 4];
  int count = 0;
  for (; environment[count]; ++count) {
    if (count == kMaxVariables || starts_with(environment[count], chassis::kWaitPolicyVariable) ||
        starts_with(environment[count], chassis::kSpinCountVariable))
      return;
    restarted[count] = environment[count];
  }
  restarted[count++] = chassis::kWaitPolicy;
  restarted[count++] = chassis::kSpinCount;
  restarted[count++] = chassis::kWaitMarker;
  restarted[count] = nullptr;
  execve("/proc/self/exe", argv, const_cast<char**>(restarted));  // on failure continue: only speed depends on it
}

// Signals that ask the program to stop, and must not end it silently. SIGQUIT is not blocked: it ends a hanging load.
constexpr int kHeldSignals[] = {SIGINT, SIGTERM, SIGHUP};

// Blocks them until main() handles them; the restart keeps them blocked. SIGUSR1, which asks a run to save, stays
// blocked until a run handles it: see RunSignals. Other verbs have nothing to save.
__attribute__((no_sanitize("address", "undefined", "thread"))) void hold_signals() {
  uint64_t mask = 0;  // as the kernel reads it
  for (const int number : kHeldSignals) mask |= uint64_t{1} << (number - 1);
  mask |= uint64_t{1} << (SIGUSR1 - 1);
  syscall(SYS_rt_sigprocmask, SIG_BLOCK, &mask, nullptr, sizeof mask);
}

// The order matters. Runs before any constructor of a library opens a file.
__attribute__((no_sanitize("address", "undefined", "thread"))) void prepare_process(int count, char** argv,
                                                                                    char** environment) {
  open_standard_descriptors(count, argv, environment);
  chassis::require_memory_limits();
  chassis::require_working_directory();
  hold_signals();
  restart_with_brief_waiting(count, argv, environment);
}
// A single pointer: an array would be aligned to 16 bytes, and the gap before it would be called.
__attribute__((section(".preinit_array"), used)) void (*const before_constructors)(int, char**,
                                                                                   char**) = prepare_process;

void end_with_message(int number) {
  const char* const name = sigabbrev_np(number);
  for (const char* part : {"\nSIG", name, ": ended at once\n"})
    if (write(STDERR_FILENO, part, strlen(part)) < 0) break;
  signal(number, SIG_DFL);
  raise(number);  // takes effect when this handler returns
}

// Handles signals until a run does so itself. For ranks of --nproc, the process that started them prints the message.
void answer_signals() {
  const bool is_rank = std::getenv("CHASSIS_RANK") != nullptr;
  sigset_t held;
  sigemptyset(&held);
  for (const int number : kHeldSignals) {
    struct sigaction action {};
    if (!is_rank && sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_DFL)
      signal(number, end_with_message);
    sigaddset(&held, number);
  }
  sigprocmask(SIG_UNBLOCK, &held, nullptr);
}

// The first line and the causes; the rank that failed prints the whole message.
std::string in_one_line(const std::string& text) {
  std::istringstream lines(text);
  std::string out;
  for (std::string line; std::getline(lines, line);)
    if (out.empty() || line.starts_with("caused by: ")) out += (out.empty() ? "" : "; ") + line;
  return out;
}

std::string first_line(const std::string& text) {
  return " " + text.substr(text.find_first_not_of(' '), text.find('\n') - text.find_first_not_of(' '));
}

// The program itself starts hidden verbs, as processes: the parent process reads and checks all of their output. The
// process of `plugins check` runs no code of plugins; it forks, which needs a single thread.
bool guards_itself(const CLI::App& verb) {
  const auto parsed = verb.get_subcommands();
  return std::any_of(parsed.begin(), parsed.end(), [&](const CLI::App* inner) {
    return inner->get_group().empty() || (verb.get_name() == "plugins" && inner->get_name() == "check");
  });
}

// The maximum time of a plugin call without a warning. CHASSIS_CALL_WATCH_S is for tests, and for slow plugins.
std::chrono::milliseconds slow_call_limit() {
  constexpr double kSeconds = 30, kMin = 0.01, kMax = 1e6;
  const char* const given = std::getenv("CHASSIS_CALL_WATCH_S");
  if (given == nullptr) return std::chrono::milliseconds(static_cast<int64_t>(1000 * kSeconds));
  const std::string_view text = given;
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc() || end != text.data() + text.size() || !(seconds >= kMin && seconds <= kMax))
    throw chassis::config_error("CHASSIS_CALL_WATCH_S=" + chassis::printable(text) +
                                ": expected seconds, 0.01 to 1000000")
        .hint("unset it for the default of 30");
  return std::chrono::milliseconds(static_cast<int64_t>(1000 * seconds));
}

// While a verb runs: catches lines that plugins write to standard output, and warns of slow calls.
struct PluginGuards {
  chassis::StrayOutput stray{chassis::call_in_progress};
  chassis::CallWatch watch{slow_call_limit(), [](const std::string& call) {
                             chassis::log::warn("{}; still waiting, Ctrl-C ends the wait", call);
                           }};
};

// `help train` is `train --help`.
std::vector<std::string> without_help_verb(std::vector<std::string> words) {
  if (words.empty() || words.front() != "help") return words;
  words.erase(words.begin());
  words.push_back("--help");
  return words;
}

// The first word that is neither an option nor the value of one.
std::string first_verb(const std::vector<std::string>& words) {
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--plugin-path")
      ++i;
    else if (!words[i].starts_with('-'))
      return words[i];
  }
  return "";
}

void refuse_unknown(const std::string& word, const std::string& before, const std::vector<std::string>& names) {
  if (word.empty() || std::find(names.begin(), names.end(), word) != names.end()) return;
  const std::string meant = chassis::nearest(word, names);
  throw chassis::config_error("unknown command '" + before + word + "'" +
                              (meant.empty() ? "" : " (did you mean '" + meant + "'?)"))
      .hint(before.empty() ? "chassis help lists the commands"
                           : "chassis help " + before.substr(0, before.size() - 1) + " lists its commands");
}

// Refuses an unknown word in the place of a subcommand of `verb`, as in `plugins list`.
void refuse_unknown_below(const CLI::App& verb, std::vector<std::string> words) {
  if (verb.get_require_subcommand_min() == 0) return;
  const auto own = std::find(words.begin(), words.end(), verb.get_name());
  words.erase(words.begin(), own + 1);
  std::vector<std::string> names;
  for (const CLI::App* inner : verb.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(inner->get_name());
  while (words.size() > 1 && words.front() == "--plugin-path") words.erase(words.begin(), words.begin() + 2);
  // After another option, it is not known which word is an option's value.
  if (words.empty() || words.front().starts_with('-')) return;
  refuse_unknown(words.front(), verb.get_name() + " ", names);
}

int run(int argc, char** argv) {
  using namespace chassis;
  CLI::App app("Trains language models by composing hot-loadable strategy modules.", "chassis");
  app.require_subcommand(1);
  app.fallthrough(false);
  app.set_version_flag("--version", version_text, "print versions");
  app.footer("chassis help COMMAND explains a command.");
  std::vector<std::pair<CLI::App*, Verb>> verbs;
  auto add = [&](const char* name, const char* doc, Verb (*declare)(CLI::App&)) {
    CLI::App* verb = app.add_subcommand(name, doc);
    verbs.emplace_back(verb, declare(*verb));
  };
  add("init", "write a first configuration for a model and a data file", add_init);
  add("train", "train or fine-tune a model", add_train);
  add("check", "check a configuration without a device", add_check);
  add("data", "show what a run trains on: rows, tokens, masks", add_data);
  add("plan", "show the memory and traffic that every rank of a run will need", add_plan);
  add("report", "show what runs have done, as text or as a page with charts", add_report);
  add("watch", "follow a run in the terminal", add_watch);
  add("ctl", "ask a running training for its status, or to change while it trains", add_ctl);
  add("eval", "loss, perplexity or the objective's metrics of the evaluation sets", add_eval);
  add("score", "the scores that a reward model or a classifier gives to the rows of a file", add_score);
  add("generate", "continue a text, chat, or answer a file of prompts", add_generate);
  add("serve", "answer requests in OpenAI's format on a port of this machine", add_serve);
  add("ckpt", "list, verify, compare, import, export and prune checkpoints", add_ckpt);
  add("tokenizer", "train a tokenizer; turn text into ids and back", add_tokenizer);
  add("plugins", "list, describe and test plugins", add_plugins);
  add("schema", "document every option", add_schema);
  add("version", "print versions", add_version);
  add("completion", "print a script that completes the command line in bash, zsh or fish", add_completion);
  app.add_subcommand("help", "explain a command");
  accept_plugin_path_everywhere(app);

  std::vector<std::string> names = {"help"};
  for (const auto& [verb, body] : verbs) names.push_back(verb->get_name());
  std::vector<std::string> words = without_help_verb({argv + 1, argv + argc});
  if (words.empty()) throw config_error("no command is given").hint("chassis help lists the commands");
  const std::string verb_name = first_verb(words);
  refuse_unknown(verb_name, "", names);
  if (!verb_name.empty()) refuse_unknown_below(*app.get_subcommand(verb_name), words);
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // the parser expects the last word first
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() != 0) {
      const CLI::App* const verb = verb_name.empty() ? nullptr : app.get_subcommand(verb_name);
      const std::string meant = verb != nullptr ? override_hint(*verb, words) : "";
      const std::string help = "chassis help" + (verb_name.empty() ? "" : " " + verb_name);
      throw config_error(e.what()).hint(meant.empty() ? help : meant);
    }
    std::ostringstream text;  // help or versions
    app.exit(e, text, text);
    std::fputs(text.str().c_str(), output());
    flush_output();
    return 0;
  }
  for (auto& [verb, body] : verbs) {
    if (!verb->parsed()) continue;
    require_open_files();
    if (const std::optional<int> exit_code = body.start_ranks()) return *exit_code;
    std::optional<PluginGuards> guards;
    if (!guards_itself(*verb)) guards.emplace();
    const int exit_code = body.run();
    flush_output();
    return exit_code;
  }
  return static_cast<int>(ExitCode::kConfig);
}

int run_or_report(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const chassis::RemoteError& e) {
    chassis::log::set_level(chassis::log::Level::kInfo);
    chassis::log::info("stopped: {}{}", in_one_line(e.what()),
                       e.note_text().empty() ? "" : ";" + first_line(e.note_text()));
    return static_cast<int>(e.code());
  } catch (...) {
    const chassis::Error error = chassis::current_error();
    chassis::log::error("{}", error.what());
    return static_cast<int>(error.code());
  }
}

}  // namespace

int main(int argc, char** argv) {
  answer_signals();
  signal(SIGXFSZ, SIG_IGN);  // then a file size limit fails the write instead of ending the process
  signal(SIGPIPE, SIG_IGN);
  chassis::report_crashes();
  const chassis::ExitGuard guard;
  const int exit_code = run_or_report(argc, argv);
  chassis::set_run_is_over();
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // these report when the process exits
  // All that a run created has been destroyed. Destructors of static objects are skipped: LibTorch's take 0.1 s.
  std::fflush(nullptr);
  chassis::end_process(exit_code);
#endif
  return exit_code;
}
