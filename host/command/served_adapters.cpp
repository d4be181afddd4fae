// Finds the files of each adapter, and opens a session for it.
#include "host/command/served_adapters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "host/base/log.hpp"
#include "host/base/printable.hpp"
#include "host/base/units.hpp"
#include "host/checkpoint/checkpoint_root.hpp"
#include "host/command/weights_arguments.hpp"
#include "host/save/adapter_files.hpp"
#include "host/save/weights.hpp"

namespace chassis {
namespace {

// The newest checkpoint if `given` is the directory of a run.
std::string directory_of_files(const std::string& given) {
  const std::string run = run_of(given);
  if (!is_run_directory(run)) return given;
  const std::optional<CheckpointInfo> newest = newest_checkpoint(run + "/checkpoints");
  if (!newest) throw no_checkpoint(run);
  return newest->path;
}

// Errors that `action` throws name the argument, not the override that was made from it.
template <class Action>
void naming(const AdapterArgument& argument, const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    if (error.code() == ExitCode::kInternal) throw;
    throw Error(error.code(), printable(argument.text(), 4096) + ": " + error.message())
        .hint(error.hint_text())
        .note(error.note_text());
  }
}

}  // namespace

std::vector<AdapterArgument> read_adapter_arguments(const std::vector<std::string>& given, const std::string& base) {
  std::vector<AdapterArgument> all;
  const auto is_visible = [](char c) { return c > ' ' && c < '\x7f'; };
  for (const std::string& text : given) {
    const size_t equals = text.find('=');
    AdapterArgument next{text.substr(0, equals), equals == text.npos ? "" : text.substr(equals + 1)};
    if (next.name.empty() || next.directory.empty())
      throw config_error("--lora '" + printable(text, 4096) + "' is not of the form NAME=DIR")
          .hint("requests choose the adapter in DIR with \"model\": \"NAME\"");
    if (!std::ranges::all_of(next.name, is_visible))
      throw config_error("--lora '" + printable(text, 4096) +
                         "': a name has visible ASCII characters and no spaces, so that a URL can contain it");
    if (next.name == base)
      throw config_error(next.text() + ": '" + next.name + "' is the name of the base")
          .hint("give the adapter another name, or the base, with run.name=NAME");
    const auto same = std::ranges::find(all, next.name, &AdapterArgument::name);
    if (same != all.end())
      throw config_error(fmt::format("--lora names two adapters '{}': {} and {}", next.name,
                                     printable(same->directory, 4096), printable(next.directory, 4096)));
    all.push_back(std::move(next));
  }
  return all;
}

ServedAdapter::ServedAdapter(AdapterArgument argument, ConfigArguments config, const Session& base, World& world)
    : argument_(std::move(argument)), base_(base) {
  naming(argument_, [&] {
    path_ = directory_of_files(argument_.directory);
    config.overrides.push_back(adapter_override(adapter_plugin_of(path_), path_));
    config.overrides.emplace_back("export={}");  // formats of whole models are refused with an adapter
    session_ =
        std::make_unique<Session>(config.load(ConfigUse::kGeneration),
                                  SessionOptions{.plugin_path = config.plugin_path, .world = &world, .lender = &base});
    check_adapter(*session_, path_);
  });
}

void ServedAdapter::load(const LoadedWeights& base) {
  naming(argument_, [&] {
    session_->allocate();
    load_adapter_on(*session_, path_, base);
  });
  log::info("adapter '{}' of {} has {} in addition to the {} of the base", name(), printable(path_, 4096),
            bytes_text(session_->parameters().stored_bytes(&base_.parameters())),
            bytes_text(base_.parameters().stored_bytes()));
}

}  // namespace chassis
