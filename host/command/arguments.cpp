// The arguments that verbs share: the configuration and its overrides, --plugin-path and --nproc.
#include <algorithm>
#include <filesystem>
#include <utility>

#include "host/base/device_types.hpp"
#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/base/printable.hpp"
#include "host/base/thread_wait.hpp"
#include "host/command/command.hpp"
#include "host/config/foreign.hpp"
#include "host/config/keys.hpp"
#include "host/config/schema.hpp"
#include "host/launch/failed_start.hpp"
#include "host/launch/gpus.hpp"
#include "host/launch/launch.hpp"
#include "host/launch/spawn.hpp"
#include "host/plugin/crash_report.hpp"
#include "host/session/target.hpp"
#include "host/train/run_report.hpp"

namespace chassis {
namespace {

// One rank per visible GPU if a strategy divides the run and no launcher has started ranks; else 1.
int ranks_by_default(const Config& config) {
  if (config.num_problems() > 0 || config.settings().parallel.empty()) return 1;
  const std::string& device = config.settings().run.device;
  const DeviceSpec* const named = device_spec_named(device);
  if (named ? !named->accelerator : device != "auto") return 1;
  if (!discover_launch(process_environment()).source.empty()) return 1;
  int num_gpus = 0;
  for (const DeviceSpec& spec : device_specs())
    if (num_gpus == 0 && (!named || named == &spec)) num_gpus = num_visible_by_copy(spec);
  if (num_gpus > 1) log::info("starting {} processes, one per visible GPU; --nproc sets another number", num_gpus);
  return num_gpus;
}

constexpr const char* kPluginPath = "--plugin-path";

bool is_override(const std::string& word) {
  std::error_code ignored;
  return word.find('=') != std::string::npos && !std::filesystem::exists(word, ignored);
}

CLI::Option* declare_plugin_path(CLI::App& app) {
  return app
      .add_option(
          kPluginPath, [](const CLI::results_t&) { return true; },
          "a folder with plugins, searched before [plugins] path, CHASSIS_PLUGIN_PATH and the installed plugins")
      ->type_name("FOLDER")
      ->expected(1)
      ->take_all();
}

void collect_plugin_path(const CLI::App& app, std::vector<std::string>& folders, bool from_above = true) {
  if (from_above && app.get_parent() != nullptr) collect_plugin_path(*app.get_parent(), folders);
  if (const CLI::Option* option = app.get_option_no_throw(kPluginPath))
    for (const std::string& folder : option->results()) folders.push_back(folder);
}

// The configuration that stands for a directory of a run or of a model; nothing for any other path.
std::optional<ConfigSource> source_of_directory(const std::string& path) {
  if (path_kind(path) != PathKind::kDirectory) return std::nullopt;
  if (path_kind(path + "/resolved.toml") != PathKind::kAbsent) return read_config_source(path + "/resolved.toml");
  if (path_kind(path + "/config.json") == PathKind::kAbsent) return std::nullopt;
  std::error_code ignored;
  const std::string name = std::filesystem::canonical(path, ignored).filename().string();
  const auto quoted = [](const std::string& text) { return json_line(Json(text)); };  // TOML has the same escapes
  const std::string run = name.empty() ? "" : "[run]\nname = " + quoted(name) + "\n";
  return ConfigSource{.name = path, .folder = "", .text = run + "[model]\npath = " + quoted(path) + "\n"};
}

[[noreturn]] void refuse_directory(const std::string& path) {
  const bool is_adapter = path_kind(path + "/adapter_config.json") != PathKind::kAbsent;
  throw config_error(
      "'" + printable(path) + "' is " +
      (is_adapter ? "an adapter, which needs its base model" : "neither the directory of a run nor that of a model"))
      .hint(is_adapter ? "give the directory of its run, or a TOML file with --from " + shell_word(path)
                       : "a run has resolved.toml, and a model config.json");
}

}  // namespace

void refuse_other_than_toml(const std::string& file) {
  const std::string shown = "'" + printable(file) + "'";
  if (file.find("://") != std::string::npos)
    throw config_error(shown + " is a URL").hint("configurations are read from files: download it first");
  if (file.ends_with(".yaml") || file.ends_with(".yml"))
    throw config_error(shown + " is YAML, judging by its name, and configurations are TOML")
        .hint("chassis schema lists every table and key");
  std::error_code ignored;
  if (!std::filesystem::is_directory(file, ignored)) return;
  if (std::filesystem::exists(file + "/resolved.toml", ignored))
    throw config_error(shown + " is the directory of a run").hint("its configuration is " + file + "/resolved.toml");
  if (std::filesystem::exists(file + "/config.json", ignored))
    throw config_error(shown + " is a model directory, not a configuration")
        .hint("write a TOML file with [model] path = \"" + file + "\", and give that");
}

void add_plugin_path(CLI::App& verb, std::vector<std::string>& folders) {
  if (verb.get_option_no_throw(kPluginPath) == nullptr) declare_plugin_path(verb);
  verb.final_callback([&verb, &folders] {
    folders.clear();
    collect_plugin_path(verb, folders);
    for (const CLI::App* part : verb.get_subcommands()) collect_plugin_path(*part, folders, /*from_above=*/false);
  });
}

void accept_plugin_path_everywhere(CLI::App& program) {
  if (program.get_option_no_throw(kPluginPath) == nullptr) declare_plugin_path(program);
  for (CLI::App* part : program.get_subcommands([](CLI::App*) { return true; })) accept_plugin_path_everywhere(*part);
}

std::string override_hint(const CLI::App& verb, const std::vector<std::string>& words) {
  if (verb.get_option_no_throw("config") == nullptr) return "";
  for (size_t i = 0; i < words.size(); ++i) {
    if (!words[i].starts_with("--") || words[i].size() == 2) continue;
    const size_t equals = words[i].find('=');
    const std::string option = words[i].substr(0, equals);
    if (verb.get_option_no_throw(option) != nullptr) continue;
    std::string name = option.substr(2), value = "VALUE";
    std::replace(name.begin(), name.end(), '-', '_');
    if (equals != std::string::npos)
      value = words[i].substr(equals + 1);
    else if (i + 1 < words.size() && !words[i + 1].starts_with('-') && words[i + 1].find('=') == std::string::npos)
      value = words[i + 1];
    const std::string form = "keys of the configuration are written without dashes, after the file: ";
    const Schema& schema = host_schema();
    const std::string plain = without_indexes(name);
    const bool is_dotted =
        plain.find('.') != std::string::npos && schema.find(plain.substr(0, plain.find('.'))) != nullptr;
    const ForeignKey* const foreign = is_dotted ? nullptr : find_foreign_key(name);
    const std::string key = is_dotted ? name : key_elsewhere(schema, name);
    if (foreign == nullptr && !key.empty()) return form + key + "=" + printable(value);
    if (foreign != nullptr)
      return std::string(foreign->key) + " of " + std::string(foreign->trainer) + ": " + std::string(foreign->answer) +
             "; " + form + "key=value";
    return form + "key=value; chassis schema lists them; options: chassis help " + verb.get_name();
  }
  return "";
}

void ConfigArguments::add_to(CLI::App& app) {
  app.add_option("config", file, "a TOML file, or a pipe such as /dev/stdin")->required()->type_name("FILE.toml");
  app.add_option("overrides", overrides, "key.path=value, after the file")->type_name("KEY=VALUE");
  app.parse_complete_callback([this] { find_file(); });
  app.add_flag("--locked", locked, "refuse plugins whose hash is not in plugins.lock in run.output_dir");
  add_plugin_path(app, plugin_path);
}

std::vector<std::string> ConfigArguments::all_overrides() const {
  std::vector<std::string> all = overrides;
  if (locked) all.push_back("plugins.locked=true");
  return all;
}

// Overrides may come before the file, which is the first word that is not an override.
void ConfigArguments::find_file() {
  std::set<std::string> given;
  for (const std::string& word : overrides)
    if (const std::string key = word.substr(0, word.find('=')); is_override(word) && !given.insert(key).second)
      counted_warning("keys given twice on the command line",
                      printable(key) + " is given twice on the command line; the last one counts");
  if (!is_override(file)) return;
  const auto found = std::find_if_not(overrides.begin(), overrides.end(), is_override);
  if (found == overrides.end())
    throw config_error("no configuration file is given, only '" + printable(file) + "'").hint("FILE is a TOML file");
  std::string first = std::exchange(file, *found);
  overrides.erase(found);
  overrides.insert(overrides.begin(), std::move(first));
}

const ConfigSource& ConfigArguments::source() const {
  if (!source_ && takes_directories) {
    source_ = source_of_directory(file);
    if (!source_ && path_kind(file) == PathKind::kDirectory) refuse_directory(file);
  }
  if (!source_) {
    refuse_other_than_toml(file);
    source_ = read_config_source(file);
  }
  return *source_;
}

void ConfigArguments::add_ranks_to(CLI::App& app) {
  app.add_option("--nproc", num_ranks,
                 "processes on this machine; default: as torchrun, srun or mpirun started this one; otherwise, with "
                 "[[parallel]], one per GPU")
      ->check(CLI::Range(1, 4096));
}

std::optional<int> ConfigArguments::run_ranks(ConfigUse use) const {
  int count = num_ranks;
  const auto find_ranks = [&] {
    Config loaded = load(use);
    if (count == 0) count = ranks_by_default(loaded);
    std::error_code ignored;
    if (loaded.num_problems() == 0 && std::filesystem::is_regular_file(file, ignored)) {  // a pipe is read only once
      const int here = count > 1 ? count : discover_launch(process_environment()).local_world_size;
      sleep_at_once_if_cores_are_shared(planned_rank_threads(loaded.settings().run, here), here);
    }
    return loaded;
  };
  // A rank that was started by hand tells the others if it cannot use the configuration.
  const Config config = num_ranks == 0 ? telling_waiting_ranks(find_ranks) : find_ranks();
  if (count <= 1) return std::nullopt;
  config.throw_if_problems();  // once, not on every rank
  const std::optional<int> exit_code = chassis::run_ranks(count);
  if (!exit_code) ExitGuard::guard_copy();
  return exit_code;
}

}  // namespace chassis
