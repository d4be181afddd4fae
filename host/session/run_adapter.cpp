// Reads the configuration of an adapter that is continued, and asks the model how files name its parameters.
#include "host/session/run_adapter.hpp"

#include "host/base/file.hpp"
#include "host/base/json.hpp"

namespace chassis {
namespace {

constexpr uint64_t kMaxAdapterConfigBytes = uint64_t{16} << 20;

std::string adapter_config(const Setting<std::string>& directory) {
  if (!directory.is_set()) return "";
  const std::string path = *directory + "/" + kAdapterConfigName;
  std::string text;
  bool is_there = false;
  try {
    is_there = path_kind(path) != PathKind::kAbsent;
    if (is_there) text = read_file(path, kMaxAdapterConfigBytes);
  } catch (const Error& cause) {
    throw config_error(directory, "adapter.path: " + cause.message()).hint(cause.hint_text());
  }
  if (!text.empty()) {
    parse_json(text, path);  // refuses JSON that could crash the plugin's parser
    return text;
  }
  if (is_there) throw config_error(directory, "adapter.path: " + path + " is empty");
  throw config_error(directory, "adapter.path: there is no " + path)
      .hint("give a directory as saved by PEFT's save_pretrained, or an export of a run with [adapter]");
}

}  // namespace

RunAdapter::RunAdapter(const Settings::Adapter& settings, RunPlugins& plugins, const RunModel& model)
    : member_(*settings.plugin),
      instance_(plugins.create(settings.key(), "adapter", member_)),
      plugin_(*instance_),
      pass_(plugin_, [&model](const Program& recorded) { return file_names(model, recorded); }) {
  const std::string config = adapter_config(settings.path);
  try {
    plugin_.configure(config);
  } catch (const Error& e) {
    if (config.empty()) throw;
    throw Error(e.code(), settings.path.where(), *settings.path + "/" + kAdapterConfigName + ": " + e.message())
        .hint(e.hint_text());
  }
}

FileNames file_names(const RunModel& model, const Program& recorded) { return file_names(model.plugin(), recorded); }

FileNames file_names(const ModelPlugin& model, const Program& recorded) {
  const ParameterTable parameters(recorded, ProgramLayout{});
  const DiskLayout mapping = model.disk_mapping(parameters);
  FileNames names;
  for (const auto& p : parameters.all()) {
    const std::string in_file = mapping.parts(p->name).front().disk_name;
    names.of[p->name] = in_file;
    names.in_file[in_file].push_back(p->name);
  }
  return names;
}

}  // namespace chassis
