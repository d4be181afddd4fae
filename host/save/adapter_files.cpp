// Finds the module of each added parameter, and reads keys of adapter_config.json.
#include "host/save/adapter_files.hpp"

#include <algorithm>
#include <filesystem>

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/base/lower_case.hpp"
#include "host/base/printable.hpp"
#include "host/checkpoint/checkpoint_manifest.hpp"
#include "host/checkpoint/inspect.hpp"
#include "host/save/adapter_parts.hpp"

namespace chassis {
namespace {

constexpr uint64_t kMaxConfigBytes = uint64_t{16} << 20;

bool same_directory(const std::string& a, const std::string& b) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::equivalent(a, b, error) && !error) return true;
  // "Org/Name" on the Hub matches a folder ".../Name".
  const auto last = [](const std::string& path) {
    const fs::path whole = fs::path(path).lexically_normal();
    return whole.has_filename() ? whole.filename() : whole.parent_path().filename();
  };
  return last(a) == last(b);
}

std::string without_last_part(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

}  // namespace

void refuse_adapter_format(const std::string& format) {
  if (format == kAdapterFormat)
    throw config_error("--format " + format + " holds an adapter, and a whole model is written")
        .hint("leave out --format for a model directory");
}

bool is_adapter_directory(const std::string& path) {
  if (path_kind(path) != PathKind::kDirectory) return false;
  SourceDirectory directory(path);
  if (directory.find_file(kManifestName) >= 0) return CheckpointManifest::read(directory).format == kAdapterFormat;
  return directory.find_file(kAdapterConfigName) >= 0;
}

std::string adapter_plugin_of(const std::string& path) {
  const std::string file = path + "/" + kAdapterConfigName;
  if (path_kind(file) == PathKind::kAbsent)
    throw config_error("'" + path + "' has no " + kAdapterConfigName)
        .hint("an adapter is a directory as PEFT's save_pretrained writes it, or a checkpoint of a run with [adapter]");
  compare_with_manifest(path);
  const Json json = parse_json(read_file(file, kMaxConfigBytes), file);
  if (!json.is_object()) throw config_error(file + " is not a JSON object");
  const std::string plugin = lower_case(json_string(json, "peft_type", file));
  const auto is_plain = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; };
  if (plugin.empty() || !std::all_of(plugin.begin(), plugin.end(), is_plain))
    throw config_error(file + ": peft_type names no plugin");
  return plugin;
}

std::string named_base(const std::string& adapter) {
  const std::string path = adapter + "/" + kAdapterConfigName;
  if (path_kind(path) == PathKind::kAbsent) return "";
  return json_string_or(parse_json(read_file(path, kMaxConfigBytes), path), "base_model_name_or_path", "", path);
}

void compare_base_name(const std::string& adapter, const std::string& base, const std::string& given_as) {
  const std::string named = named_base(adapter);
  if (!named.empty() && !same_directory(named, base))
    counted_warning("the adapter was made for another model", adapter + "/" + kAdapterConfigName +
                                                                  ": base_model_name_or_path is " + printable(named) +
                                                                  ", " + given_as + " is " + base);
}

bool exports_adapter(const Session& session) {
  const Settings::Export& exports = session.settings().exports;
  return session.adapter() != nullptr && !exports.merge && exports.plugin == kAdapterFormat;
}

std::string adapter_config(const Session& session) {
  const Setting<std::string>& base = session.settings().model.path;
  return session.adapter()->plugin().config(base.is_set() ? *base : "", session.model().plugin().config());
}

std::string tied_branch_text(const std::string& module) {
  return "the branch of '" + module +
         "' cannot be merged: its weight is tied to another module, which would change too";
}

std::map<std::string, std::string> tied_slots(const Program& program) {
  std::map<std::string, std::string> tied;
  for (const Chain& chain : program.chains)
    for (size_t i = 0; i < chain.blocks.size(); ++i)
      for (const ParameterSlot& slot : program.blocks[chain.blocks[i]].slots)
        if (!slot.tied_to.empty()) tied[chain.parameter_name(i, slot)] = slot.tied_to;
  return tied;
}

AdapterNames::AdapterNames(const Session& session, std::span<const DiskTensor> in_files)
    : mapping_(session.disk_mapping()) {
  if (session.adapter() != nullptr)
    placed_ =
        adapter_parts(session.adapter()->plugin(), session.parameters(), session.model().plugin().config(), in_files);
  std::map<std::string, Module> all;
  for (const auto& p : session.parameters().all()) {
    if (p->added) continue;
    Module& module = all[without_last_part(p->name)];
    if (module.recorded.empty()) module.in_files = without_last_part(mapping_.parts(p->name).front().disk_name);
    module.recorded.push_back(p.get());
  }
  for (const auto& [slot, owner] : tied_slots(session.program())) {
    Module& module = all[without_last_part(slot)];
    if (module.recorded.empty()) module.in_files = without_last_part(slot);
    module.is_tied = true;
  }
  for (const auto& p : session.parameters().all()) {
    if (!p->added) continue;
    std::string name = without_last_part(p->name);
    while (!name.empty() && !all.contains(name)) name = without_last_part(name);
    CHASSIS_CHECK(all.contains(name), p->name);
    all[name].added.push_back(p.get());
  }
  for (auto& [name, module] : all) {
    if (module.added.empty()) continue;
    for (const auto* list : {&module.added, &module.recorded})
      for (const Parameter* p : *list) module_of_[p->name] = name;
    modules_[name] = std::move(module);
  }
  const Program& program = session.program();
  for (const Chain& chain : program.chains)
    for (size_t i = 0; i < chain.blocks.size(); ++i)
      for (const ParameterSlot& slot : program.blocks[chain.blocks[i]].slots)
        for (const std::string& other : slot.shared_by) {
          ParameterSlot named = slot;
          named.name = other;
          modules_[chain.parameter_name(i, named)].shared.push_back(
              session.parameters().find(chain.parameter_name(i, slot)));
        }
}

const AdapterNames::Module* AdapterNames::module_of(const Parameter& p) const {
  const auto found = module_of_.find(p.name);
  return found == module_of_.end() ? nullptr : &modules_.at(found->second);
}

std::string AdapterNames::name_in_module(const Parameter& p) const {
  const std::string& module = module_of_.at(p.name);
  return module.empty() ? p.name : p.name.substr(module.size() + 1);
}

std::vector<StoredPart> AdapterNames::parts(const Parameter& p) const {
  const Module* const module = module_of(p);
  if (const auto placed = placed_.find(p.name); placed != placed_.end()) return placed->second;
  if (p.added) {
    const std::string& prefix = module->in_files;
    return {StoredPart::whole((prefix.empty() ? "" : prefix + ".") + name_in_module(p), p.descriptor.global_shape)};
  }
  std::vector<StoredPart> parts = mapping_.parts(p.name);
  if (module != nullptr)  // PEFT wraps a module that has a branch; its own parameters are those of base_layer
    for (StoredPart& part : parts) {
      const std::string prefix = without_last_part(part.disk_name);
      part.disk_name = prefix + ".base_layer" + part.disk_name.substr(prefix.size());
    }
  return parts;
}

}  // namespace chassis
