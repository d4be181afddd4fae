// `chassis ckpt import-zero`: a checkpoint of another system becomes a model directory, or a checkpoint to resume from.
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "host/base/json.hpp"
#include "host/base/output.hpp"
#include "host/base/progress.hpp"
#include "host/checkpoint/import.hpp"
#include "host/checkpoint/isolated_scan.hpp"
#include "host/command/command.hpp"
#include "host/command/json_document.hpp"
#include "host/plugin/registry.hpp"
#include "host/service/host_services.hpp"
#include "host/state/float_dtype.hpp"

namespace chassis {
namespace {

struct ImportArguments {
  std::string from, to, format, dtype = "fp32", base;
  bool checkpoint = false, as_json = false;
  std::vector<std::string> plugin_path;
};

// The installed formats, each opened when it is needed.
class Formats {
 public:
  explicit Formats(const std::vector<std::string>& plugin_path)
      : services_(0, metrics_), registry_(PluginIndex(plugin_folders(plugin_path, {}, {})), {}, services_) {}

  const FormatPlugin& open(const std::string& id) {
    instances_.push_back(registry_.open("format", id));
    return *formats_.emplace_back(std::make_unique<FormatPlugin>(*instances_.back()));
  }
  // The formats that read checkpoints of other systems.
  std::vector<std::string> importers() {
    std::vector<std::string> found;
    for (const std::string& id : registry_.index().ids("format"))
      if (open(id).isolated()) found.push_back(id);
    return found;
  }

 private:
  MetricsStore metrics_;
  HostServices services_;
  PluginRegistry registry_;
  std::vector<std::unique_ptr<Instance>> instances_;
  std::vector<std::unique_ptr<FormatPlugin>> formats_;
};

std::vector<std::string> scan_command(const ImportArguments& given, const std::string& format) {
  std::vector<std::string> words = {program_file(), "ckpt", "scan-in-process", given.from, format};
  for (const std::string& folder : given.plugin_path) words.insert(words.end(), {"--plugin-path", folder});
  return words;
}

// Reads the directory with the first format that recognises it.
CheckpointReader read_foreign(const ImportArguments& given, Formats& formats) {
  std::string reasons;
  for (const std::string& format : formats.importers()) {
    auto directory = std::make_unique<SourceDirectory>(given.from);
    std::string reason;
    if (auto scan = scan_isolated(scan_command(given, format), *directory, reason))
      return CheckpointReader(std::move(directory), std::move(*scan));
    reasons += "\n  " + reason;
  }
  if (reasons.empty())
    throw plugin_error("no plugin that imports checkpoints is installed")
        .hint("`chassis plugins list` shows what is installed");
  throw storage_error("'" + given.from + "' is not a checkpoint that can be imported:" + reasons)
      .hint("give the directory that save_checkpoint wrote to, or the folder of one step in it");
}

std::string default_format(const ImportArguments& given) {
  if (!given.format.empty()) return given.format;
  const Config config = load_config_text("schema_version = 1\n", "ckpt import-zero", {}, ConfigUse::kWeights);
  const Settings& settings = config.settings();
  return given.checkpoint ? settings.checkpoint.plugin : settings.exports.plugin;
}

int import(const ImportArguments& given) {
  Formats formats(given.plugin_path);
  const FormatPlugin& format = formats.open(default_format(given));
  CheckpointReader source = read_foreign(given, formats);
  ImportRequest request{.directory = given.to, .resumable = given.checkpoint, .base = given.base};
  request.dtype = float_dtype(given.dtype, "--dtype");
  ProgressBar bar("writing " + given.to);
  request.progress = [&bar](uint64_t done, uint64_t total) { bar.update(done, total, "weights"); };
  const SaveResult saved = import_checkpoint(source, format, request, BucketPair(BucketPair::kUsualBytes));
  if (given.as_json)
    print_document("ckpt_import", saved.json());
  else
    std::fprintf(output(), "%s\n", saved.line().c_str());
  return 0;
}

}  // namespace

std::function<std::optional<int>()> add_ckpt_import(CLI::App& ckpt) {
  auto given = std::make_shared<ImportArguments>();
  CLI::App* verb = ckpt.add_subcommand(
      "import-zero",
      "convert a DeepSpeed ZeRO-1, -2 or -3 checkpoint into a model directory, or into a checkpoint to resume from");
  verb->add_option("path", given->from, "the directory that save_checkpoint wrote to, or the folder of one step in it")
      ->required()
      ->type_name("FOLDER");
  verb->add_option("directory", given->to, "created if missing; replaced only if an import or export wrote it")
      ->required()
      ->type_name("FOLDER");
  verb->add_flag("--checkpoint", given->checkpoint, "a checkpoint to resume from, with the optimizer's states");
  verb->add_option("--dtype", given->dtype, "dtype of the weights; default: fp32, that of the master weights")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  verb->add_option("--format", given->format,
                   "a format plugin; default: that of [export], or of [checkpoint] with --checkpoint");
  verb->add_option("--base", given->base, "a model directory whose config and tokenizer files are copied")
      ->type_name("FOLDER");
  add_json(*verb, given->as_json);
  CLI::App* hidden = ckpt.add_subcommand("scan-in-process", "")->group("");
  hidden->add_option("path", given->from)->required();
  hidden->add_option("format", given->format)->required();
  for (CLI::App* app : {verb, hidden}) add_plugin_path(*app, given->plugin_path);
  return [=]() -> std::optional<int> {
    if (verb->parsed()) return import(*given);
    if (!hidden->parsed()) return std::nullopt;
    Formats formats(given->plugin_path);
    return answer_scan(formats.open(given->format), given->from);
  };
}

}  // namespace chassis
