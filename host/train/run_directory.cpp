// Locks, checks and writes the run directory.
#include "host/train/run_directory.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <random>
#include <system_error>
#include <thread>

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/base/printable.hpp"
#include "host/checkpoint/output_directory.hpp"
#include "host/checkpoint/staged_directory.hpp"
#include "host/checkpoint/writer.hpp"
#include "host/save/resume_differences.hpp"
#include "host/service/device.hpp"
#include "host/session/providers.hpp"

namespace chassis {
namespace {

constexpr char kRunFile[] = "run.json";
constexpr const char* kFiles[] = {kRunFile,        "resolved.toml", "plugins.lock", "log.txt",    "metrics.jsonl",
                                  "samples.jsonl", "events.jsonl",  "report.json",  "ranks.json", "control.json"};
constexpr std::string_view kTokenStart = ".same-";
constexpr std::string_view kResolvedStart = "# Every key of the run";
constexpr std::string_view kEventsStart = "{\"event\":", kReportStart = "{\n  \"schema\": \"chassis.run/";
constexpr std::string_view kLockStart = "{\n  \"plugins_lock\":";

void compare(const RunIdentity& before, const RunIdentity& now, const std::string& path, const Config& config) {
  auto differs = [&](const std::string& what, const std::string& was, const std::string& is,
                     const std::string& no_difference, const std::string& more = "") {
    if (was == is) return;
    std::string differences;
    for (const std::string& table : {what, std::string(what == "data" ? "tokenizer" : "adapter")})
      for (const auto& [key, text] : settings_that_differ(path, table, config))
        differences += "\n  " + key + " " + text;
    throw config_error(config.settings().run.output_dir,
                       "run.output_dir " + path + " holds another run: its " + what + " is " + was.substr(0, 12) +
                           ", this one's is " + is.substr(0, 12) +
                           (differences.empty() ? "; " + no_difference : differences + more))
        .hint("choose another run.output_dir, or restore the " + what + " of that run" +
              (what == "data" ? "; model.path = \"" + path + "/final\" starts from its weights with other data" : ""));
  };
  differs("model", before.model, now.model, "no setting differs, so a file of model.path does");
  const std::string files = content_differences(before.content, now.content);
  const bool is_known = !before.content.empty();
  differs("data", before.data, now.data,
          !files.empty() ? "no setting differs:" + files
          : is_known     ? "no setting differs, and the files are the same, so it is the tokenizer or the program"
                         : "no setting differs, so the files have other content",
          files);
}

// Throws if a data set's folder is the run directory: the run's own files would be read as data.
void refuse_data_folder(const std::string& path, const Settings::Data& data) {
  const auto refuse_if_same = [&](const Settings::DataSet& set) {
    std::error_code error;
    if (!std::filesystem::equivalent(*set.path, path, error) || error) return;
    throw config_error(set.path, set.path.key() +
                                     " is run.output_dir itself: files of the run, such as log.txt, "
                                     "would be read as data")
        .hint("choose another run.output_dir");
  };
  for (const Settings::TrainSet& set : data.train) refuse_if_same(set);
  for (const Settings::EvalSet& set : data.eval) refuse_if_same(set);
}

std::string new_token() {
  std::random_device random;
  char text[24];
  std::snprintf(text, sizeof text, "%s%08x%08x", kTokenStart.data(), random(), random());
  return text;
}

std::string absolute(const std::string& path) {
  std::error_code error;
  const auto whole = std::filesystem::absolute(path, error);
  return error ? path : whole.lexically_normal().string();
}

void check_writable(const std::string& folder) {
  if (::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) == 0) return;
  throw storage_error("cannot write into '" + folder + "': " + std::generic_category().message(errno))
      .hint("otherwise the first save would fail; correct its permissions, or choose another run.output_dir");
}

// Checks a folder that a save or an export will create or replace.
void check_target(const std::string& path, bool is_step = false) {
  check_replaceable(path, is_step);
  if (path_kind_nofollow(path) == PathKind::kDirectory) check_writable(path);
}

// The step in a name such as "step-000500", where "step-" is `prefix`; nothing for any other name.
std::optional<int64_t> step_in(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  return error == std::errc() && end == name.data() + name.size() ? std::optional(step) : std::nullopt;
}

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw storage_error("'" + path + "' is in the way: " + why).hint("move it away, or choose another run.output_dir");
}

// Throws if a file exists and does not begin with `start`, as this program writes it.
void require_start(const std::string& path, std::string_view start) {
  if (path_kind_nofollow(path) == PathKind::kAbsent) return;
  std::string found(start.size(), '\0');
  found.resize(File::open_nofollow(path).pread_some(found.data(), found.size(), 0));
  if (!found.empty() && found != start) refuse(path, "this program did not write it");
}

// Throws unless the link `best`, or the file that stands for it on a file system without links, may be replaced.
void check_best_link(const std::string& path) {
  const PathKind kind = path_kind_nofollow(path);
  if (kind == PathKind::kAbsent || kind == PathKind::kLink) return;
  if (kind != PathKind::kFile) refuse(path, "it is not the link that eval.keep_best makes");
  require_start(path, "checkpoints/step-");
}

// Throws unless the folder, and those of the sets inside it, are absent or can be written to.
void check_generations(const std::string& path, const Settings::Eval& eval) {
  const auto check = [](const std::string& folder) {
    const PathKind kind = path_kind_nofollow(folder);
    if (kind == PathKind::kAbsent) return;
    if (kind != PathKind::kDirectory) refuse(folder, "it is not a folder");
    check_writable(folder);
  };
  if (eval.generate.empty()) return;
  check(path);
  for (const Settings::GenerationSet& set : eval.generate) check(path + "/" + *set.name);
}

// Reads run.json; nothing if it does not exist.
std::optional<RunIdentity> read_identity(const std::string& path, bool& has_saved) {
  if (path_kind_nofollow(path) == PathKind::kAbsent) return std::nullopt;
  try {
    const Json run = parse_json(read_file(path), path), identity = json_at(run, "identity", path);
    has_saved = run.contains("has_saved") && run["has_saved"] == true;
    return RunIdentity{json_string(identity, "model", path), json_string(identity, "data", path),
                       identity.value("content", Json::object())};
  } catch (const Error& cause) {
    if (cause.code() != ExitCode::kConfig) throw;
    refuse(path, "it does not describe a run of this program (" + cause.message() + ")");
  }
}

// The step of a directory that this program exported; nothing for any other path.
std::optional<int64_t> step_of_export(const std::string& path) {
  if (path_kind_nofollow(path) != PathKind::kDirectory ||
      path_kind_nofollow(path + "/" + kManifestName) == PathKind::kAbsent)
    return std::nullopt;
  SourceDirectory directory(path);
  return CheckpointManifest::read(directory).step;
}

std::string listed(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

std::string weights_to_start_from(const std::string& final) {
  return path_kind_nofollow(final) == PathKind::kAbsent
             ? ""
             : ", where model.path = \"" + final + "\" starts from its weights";
}

// Throws if the path of an open file or directory no longer leads to it.
void require_at_its_path(const File& held) {
  struct stat here {
  }, there{};
  const bool is_absent = ::stat(held.path().c_str(), &there) != 0;
  if (::fstat(held.descriptor(), &here) != 0) throw file_error("cannot access", held.path(), errno);
  if (!is_absent && here.st_dev == there.st_dev && here.st_ino == there.st_ino) return;
  std::error_code error;
  const std::string now =
      std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(held.descriptor()), error).string();
  const bool is_gone = error || here.st_nlink == 0 || now.ends_with(" (deleted)");
  throw storage_error("'" + held.path() + "' was " + (is_gone ? "removed" : "renamed to '" + printable(now) + "'") +
                      (is_absent ? "" : ", and replaced by another,") + " while this run held it")
      .hint(is_gone ? "keep the run directory as it is while a run trains"
                    : "rename it back; the same command then continues the run from its last checkpoint");
}

// Reads one byte: some files can be opened but not read.
void check_readable(const File& file) {
  char byte;
  file.pread_some(&byte, 1, 0);
}

}  // namespace

RunDirectory::RunDirectory(std::string path, World& world) : path_(std::move(path)), world_(world) {
  world_.run_and_agree("locking the run directory", [this] {
    if (world_.rank() != 0) return;
    check_run_directory(path_);
    lock();
    for (const DirectoryEntry& entry : list_directory(path_))
      if (entry.name.starts_with(kTokenStart)) ::unlink(file(entry.name).c_str());
  });
  if (world_.size() > 1) check_same_directory();
}

// The lock of the directory itself holds even if checkpoints/ is removed together with its own lock. Some network file
// systems do not lock directories.
void RunDirectory::lock() {
  create_directories(path_);
  const std::string checkpoints = file("checkpoints"), lock = checkpoints + "/.lock";
  held_.push_back(File::open_directory(path_));
  const bool is_locked = ::flock(held_.front().descriptor(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  const auto in_use = [&] {
    return storage_error("'" + path_ + "' is in use by another run, whose checkpoints/ were removed")
        .hint("stop it, or choose another run.output_dir");
  };
  if (is_locked && path_kind_nofollow(lock) == PathKind::kAbsent) throw in_use();
  root_.emplace(checkpoints);  // throws an error with the process id, if its lock is still there
  if (is_locked) throw in_use();
  held_.push_back(File::open_directory(checkpoints));
  held_.push_back(File::open_nofollow(lock));
}

void RunDirectory::check_held() const {
  for (const File& held : held_) require_at_its_path(held);
}

// Rank 0 creates a file with a random name, and the other ranks look for it.
void RunDirectory::check_same_directory() {
  std::string token;
  world_.run_and_agree("marking the run directory", [&] {
    if (world_.rank() != 0) return;
    token = new_token();
    File::create_exclusive(file(token));
  });
  const std::vector<std::string> all = world_.exchange("mark of the run directory", token + "\n" + absolute(path_));
  const std::string first = all[0].substr(0, all[0].find('\n'));
  const auto look = [&] {
    constexpr int kTries = 10;  // a network file system may be slow
    for (int i = 1; i < kTries && path_kind_nofollow(file(first)) == PathKind::kAbsent; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (path_kind_nofollow(file(first)) != PathKind::kFile)
      throw config_error("run.output_dir is not the same directory on all ranks: rank 0 writes to '" +
                         all[0].substr(first.size() + 1) + "', rank " + std::to_string(world_.rank()) + " to '" +
                         absolute(path_) + "'")
          .hint("start all ranks in the same folder, or give an absolute path on a file system that all of them share");
    check_writable(path_);
    check_writable(file("checkpoints"));
  };
  try {
    world_.run_and_agree("looking for the run directory", look);
  } catch (...) {
    if (world_.rank() == 0) ::unlink(file(token).c_str());
    throw;
  }
  if (world_.rank() == 0) ::unlink(file(token).c_str());
}

void RunDirectory::check_names(const Settings& settings) {
  world_.run_and_agree("checking the run directory", [&] {
    if (world_.rank() != 0) return;
    check_writable(path_);
    if (path_kind_nofollow(file("checkpoints")) == PathKind::kDirectory) check_writable(file("checkpoints"));
    for (const char* name : kFiles) {
      const PathKind kind = path_kind_nofollow(file(name));
      if (kind == PathKind::kAbsent) continue;
      if (kind == PathKind::kLink) refuse(file(name), "it is a link");
      if (kind != PathKind::kFile) refuse(file(name), "it is not a regular file");
      check_readable(File::open_read(file(name)));
    }
    if (settings.eval.keeps_best()) check_best_link(file("best"));
    check_generations(file(kGenerationsFolder), settings.eval);
    before_ = read_identity(file(kRunFile), has_saved_);
    if (!before_) {
      require_start(file("resolved.toml"), kResolvedStart);
      require_start(file("plugins.lock"), kLockStart);
    }
    require_start(file("events.jsonl"), kEventsStart);
    require_start(file("report.json"), kReportStart);
    refuse_data_folder(path_, settings.data);
    scan_metrics_file(file("metrics.jsonl"), 0);
    if (!settings.sample.prompts->empty()) scan_metrics_file(file("samples.jsonl"), 0);
    if (settings.checkpoint.self_test) check_target(file("self-test"));
    if (settings.exports.when != ExportWhen::kNever) check_target(file("final"));
    if (!settings.model.path.is_set() || settings.exports.when == ExportWhen::kNever) return;
    for (const CopiedFile& carried : files_to_copy(settings.model.path, {"config.json"})) check_readable(*carried.file);
  });
}

// False for a run that failed before its first step, which has nothing to lose.
bool RunDirectory::holds_work() const {
  return !list_checkpoints(file("checkpoints")).empty() || scan_metrics_file(file("metrics.jsonl"), 0).holds_own() ||
         path_kind_nofollow(file("final")) != PathKind::kAbsent;
}

void RunDirectory::check_identity(const Config& config, const RunIdentity& identity) {
  world_.run_and_agree("opening the run directory", [&] {
    if (world_.rank() != 0) return;
    const Settings& settings = config.settings();
    if (before_ && holds_work()) compare(*before_, identity, path_, config);
    if (settings.run.resume == Resume::kNever && !list_checkpoints(file("checkpoints")).empty())
      throw config_error(settings.run.resume,
                         "run.resume = \"never\", but " + path_ + " has checkpoints that a new run would replace")
          .hint("set \"auto\" to resume, or choose another run.output_dir");
    if (settings.run.resume == Resume::kAuto && checkpoints_to_resume(file("checkpoints")).empty())
      check_start_anew(settings);
  });
}

// Throws if the directory has results but no checkpoint to resume from. A run that was killed before its first
// checkpoint may start again; its metrics are kept.
void RunDirectory::check_start_anew(const Settings& settings) {
  std::vector<std::string> found;
  const MetricsScan metrics = scan_metrics_file(file("metrics.jsonl"), INT64_MAX);
  if (metrics.last_step > 0) found.push_back("metrics.jsonl reaches step " + std::to_string(metrics.last_step));
  keeps_metrics_ = !found.empty();
  const size_t num_unsaved = has_saved_ ? 0 : found.size();
  for (const DirectoryEntry& entry : list_directory(path_))
    if (entry.name == "final" || step_in(entry.name, "export-step-"))
      if (const auto step = step_of_export(file(entry.name)))
        found.push_back(entry.name + "/ is of step " + std::to_string(*step));
  for (const CheckpointInfo& info : list_checkpoints(file("checkpoints")))
    found.push_back("checkpoints/" + info.name + " was set aside");
  if (found.size() <= num_unsaved) return;
  throw config_error(
      settings.run.output_dir,
      "run.output_dir " + path_ + " holds results of a run, but no checkpoint to resume from: " + listed(found))
      .hint("put its checkpoints back; or choose another run.output_dir" + weights_to_start_from(file("final")) +
            "; run.resume = \"never\" trains from step 1 here and replaces these files");
}

void RunDirectory::set_later_steps_aside(const std::string& checkpoint, int64_t step) {
  world_.run_and_agree("setting later checkpoints aside", [&] {
    if (world_.rank() != 0) return;
    const std::vector<CheckpointInfo> later = checkpoints_after(file("checkpoints"), step);
    if (later.empty()) return;
    const std::vector<std::string> kept = root_->set_aside_after(step);
    keeps_metrics_ = true;
    const bool is_one = kept.size() == 1;
    std::string text =
        "the run continues from " + checkpoint + " at step " + std::to_string(step) + ", and " + path_ +
        " has reached step " + std::to_string(later.back().step) + ": " + listed(kept) + (is_one ? " is" : " are") +
        " kept in checkpoints/, and \"auto\" does not resume from " +
        (is_one ? "it; delete it when you no longer need it" : "them; delete them when you no longer need them");
    if (path_kind_nofollow(file("final")) != PathKind::kAbsent) text += "; final/ is replaced at the end";
    counted_warning("later checkpoints set aside", text);
  });
}

void RunDirectory::check_steps(const Settings& settings, int64_t first_step, int64_t last_step) {
  world_.run_and_agree("checking the names of checkpoints", [&] {
    if (world_.rank() != 0) return;
    const auto check = [&](const std::string& folder, const std::string& prefix) {
      for (const DirectoryEntry& entry : list_directory(folder)) {
        const auto step = step_in(entry.name, prefix);
        if (step && *step > first_step && *step <= last_step) check_target(folder + "/" + entry.name, true);
      }
    };
    check(file("checkpoints"), "step-");
    if (settings.exports.when == ExportWhen::kEvery) check(path_, "export-step-");
  });
}

void RunDirectory::describe(const Config& config, const PluginRegistry& plugins, const CompiledProgram& program) const {
  write_file_atomic(file("plugins.lock"), plugins_lock(plugins, program).dump(2) + "\n");
  write_file_atomic(file("resolved.toml"), config.resolved_toml());
}

void RunDirectory::start(const Config& config, const PluginRegistry& plugins, const CompiledProgram& program,
                         const RunIdentity& identity) {
  world_.run_and_agree("writing the run directory", [&] {
    if (world_.rank() != 0) return;
    log::add_file(file("log.txt"));
    ::unlink(file("ranks.json").c_str());  // left by the ranks of an earlier start
    describe(config, plugins, program);
    about_ = {{"name", *config.settings().run.name},
              {"version", CHASSIS_VERSION},
              {"device", device_name(program.options().device)},
              {"identity", {{"model", identity.model}, {"data", identity.data}, {"content", identity.content}}}};
    has_saved_ = !list_checkpoints(file("checkpoints")).empty();
    write_run_file();
  });
}

void RunDirectory::write_run_file() const {
  Json run = about_;
  run["has_saved"] = has_saved_;
  write_file_atomic(file(kRunFile), run.dump(2) + "\n");
}

void RunDirectory::note_saved() {
  if (world_.rank() != 0 || std::exchange(has_saved_, true)) return;
  write_run_file();
}

void RunDirectory::write_report(const Json& facts) const {
  write_file_atomic(file("report.json"), facts.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

MetricsFile RunDirectory::open_metrics(int64_t step) {
  return open_metrics_file(file("metrics.jsonl"), step, before_.has_value() && !keeps_metrics_);
}

MetricsFile RunDirectory::open_samples(int64_t step) {
  return open_metrics_file(file("samples.jsonl"), step, before_.has_value() && !keeps_metrics_,
                           /*has_every_step=*/false);
}

}  // namespace chassis
