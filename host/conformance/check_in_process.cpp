// The child process of `plugins check`: runs one test, finds what it changed in the process, and sends the verdict.
#include <fcntl.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "host/base/error.hpp"
#include "host/base/log.hpp"
#include "host/conformance/check_bench.hpp"
#include "host/conformance/check_process.hpp"
#include "host/conformance/check_state.hpp"
#include "host/plugin/call.hpp"
#include "host/plugin/intercept.hpp"

namespace chassis {
namespace {

// If a member fails at its end or keeps tensors, a run counts a warning; here it is a failure.
void expect_no_warnings_of_ends() {
  std::string found;
  for (const auto& [key, count] : counted_warnings())
    if (key.ends_with(": tensors not released") || key == "plugins that did not shut down cleanly")
      found += fmt::format("{}{}, {} times", found.empty() ? "" : "; ", key, count);
  if (!found.empty()) throw plugin_error(found);
}

bool computes(const check::Test& test) { return test.name.starts_with("numerics/"); }

// Called at the request of the parent process, before it ends a test that hangs.
void say_call_in_progress(int) {
  char text[640] = "the call in progress: ";
  const size_t begin = std::strlen(text), size = describe_call(text + begin, sizeof text - begin - 1);
  text[begin + size] = '\n';
  if (size > 0 && ::write(STDERR_FILENO, text, begin + size + 1) < 0) return;
}

// Waits up to 0.2 s for threads that are about to end.
check::ProcessState settled_state(const check::ProcessState& before) {
  check::ProcessState now = check::read_process_state();
  for (int i = 0; i < 100 && now.threads.size() > before.threads.size(); ++i) {
    ::usleep(2000);
    now = check::read_process_state();
  }
  return now;
}

// The working, home and temporary folders, and /dev and /proc, whose entries are not stored files.
std::vector<std::string> own_folders() {
  std::error_code error;
  std::vector<std::string> folders = {"/dev", "/proc", std::filesystem::current_path(error).string(),
                                      std::filesystem::temp_directory_path(error).string()};
  if (const char* const home = std::getenv("HOME")) folders.emplace_back(home);
  std::erase(folders, "");
  for (std::string& folder : folders) {
    folder = std::filesystem::path(folder).lexically_normal().string();
    if (folder.ends_with('/')) folder.pop_back();  // "/" becomes ""
  }
  return folders;
}

// True if all members are of kinds that compute. These use the host's threads: threads of their own would compete with
// those for the cores. Other plugins, such as a metrics server, may have threads of their own.
bool computes_only(const Manifest& manifest) {
  constexpr std::array<std::string_view, 7> kKinds = {"ops",     "optimizer", "parallel", "model",
                                                      "adapter", "quant",     "objective"};
  return std::ranges::all_of(manifest.members, [&](const MemberName& member) {
    return std::ranges::find(kKinds, member.kind) != kKinds.end();
  });
}

void add_actions(const std::string& path, const PluginActions& actions, CheckVerdict& verdict) {
  for (const std::string& text : actions.descriptors) verdict.traces.emplace_back("process/descriptors", text);
  for (const std::string& text : actions.files)
    verdict.traces.emplace_back("process/files", text + ", which is none of the folders that it was given");
  if (actions.threads.empty() || !computes_only(read_plugin_file(path).manifest)) return;
  for (const std::string& text : actions.threads)
    verdict.traces.emplace_back("process/threads", text + "; computing is divided between threads by chassis.task/1");
}

}  // namespace

const check::Test* check::find_test(std::string_view name) {
  for (const Test& test : tests())
    if (test.name == name) return &test;
  return nullptr;
}

std::vector<std::string> check_names() {
  std::vector<std::string> names;
  for (const check::Test& test : check::tests()) names.emplace_back(test.name);
  return names;
}

CheckVerdict examine_in_process(const std::string& path, const std::string& test, ServiceProvider& services,
                                const CheckHooks& hooks) {
  const check::Test* found = check::find_test(test);
  if (found == nullptr) return {CheckOutcome::kFailed, fmt::format("there is no check '{}'", test), {}};
  check::Bench bench{path, services, hooks};
  CheckVerdict verdict;
  using Facts = std::vector<std::pair<std::string, std::string>>;
  const auto facts = [&] { return hooks.process_facts ? hooks.process_facts() : Facts(); };
  std::function<std::vector<std::string>()> overwritten;
  if (found->guard != check::Guard::kNone && hooks.guard_buffers)
    overwritten = hooks.guard_buffers(found->guard == check::Guard::kAfter);
  const auto state = check::read_process_state();
  const Facts facts_before = facts();
  const ActionWatch watch(own_folders());
  try {
    if (found->guard != check::Guard::kNone && !overwritten) throw check::Skip{"this program cannot guard buffers"};
    found->run(bench);
    expect_no_warnings_of_ends();
    if (overwritten)
      if (const auto texts = overwritten(); !texts.empty())
        throw plugin_error(fmt::format("{}", fmt::join(texts, "\n")));
    verdict.outcome = CheckOutcome::kPassed;
    verdict.text = bench.note;
  } catch (const check::Untested& untested) {
    verdict.outcome = CheckOutcome::kUntested;
    verdict.text = untested.reason;
  } catch (const check::BadOption& bad) {
    verdict.outcome = CheckOutcome::kBadOption;
    verdict.text = bad.text;
  } catch (const check::Skip& skip) {
    verdict.outcome = CheckOutcome::kSkipped;
    verdict.text = skip.reason;
  } catch (const std::exception& error) {
    verdict.text = error.what();
  } catch (...) {
    verdict.text = "threw an exception of unknown type";
  }
  const auto now = computes(*found) ? check::read_process_state() : settled_state(state);
  verdict.traces = check::differences(state, now, !computes(*found));
  add_actions(path, watch.actions(), verdict);
  const Facts facts_now = facts();
  for (size_t i = 0; i < std::min(facts_before.size(), facts_now.size()); ++i)
    if (facts_before[i].second != facts_now[i].second)
      verdict.traces.emplace_back("process/state", fmt::format("{} was {}, is {}", facts_before[i].first,
                                                               facts_before[i].second, facts_now[i].second));
  return verdict;
}

int run_check_in_process(const std::string& path, const std::string& test, ServiceProvider& services,
                         const CheckHooks& hooks) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  struct stat info {};
  if (::fstat(check::kVerdictDescriptor, &info) != 0 || !S_ISFIFO(info.st_mode) ||
      ::fcntl(check::kVerdictDescriptor, F_SETFD, FD_CLOEXEC) != 0)
    throw config_error("check-in-process is for internal use by `chassis plugins check`")
        .hint("use `chassis plugins check FILE.so`");
  ::signal(check::kSayCallSignal, say_call_in_progress);
  log::set_level(log::Level::kOff);  // from here on, all output on stderr is the plugin's
  const std::string text = check::verdict_text(examine_in_process(path, test, services, hooks));
  std::fflush(nullptr);
  for (size_t at = 0; at < text.size();) {
    const ssize_t num_bytes = ::write(check::kVerdictDescriptor, text.data() + at, text.size() - at);
    if (num_bytes <= 0) return 1;
    at += static_cast<size_t>(num_bytes);
  }
  return 0;
}

}  // namespace chassis
