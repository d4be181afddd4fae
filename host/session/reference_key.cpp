// Names what the key has, so that a difference can be shown.
#include "host/session/reference_key.hpp"

#include <map>
#include <set>
#include <string>

#include "host/checkpoint/source_directory.hpp"
#include "host/checkpoint/writer.hpp"
#include "host/config/plugin_name.hpp"
#include "host/data/store_key.hpp"

namespace chassis {
namespace {

constexpr int kVersion = 1;

// The directories that weights of the reference come from.
std::vector<std::string> weight_directories(const Settings& settings) {
  std::vector<std::string> paths;
  for (const Setting<std::string>* path : {&settings.model.path, &settings.adapter.path, &settings.reference.path})
    if (path->is_set() && path_kind(*path) == PathKind::kDirectory) paths.push_back(*path);
  return paths;
}

Json file_keys(const std::vector<std::string>& directories) {
  Json files = Json::array();
  for (const std::string& path : directories) {
    const SourceDirectory directory(path);
    for (const SourceDirectory::Entry& entry : directory.files()) files.push_back(file_key(path + "/" + entry.path));
  }
  return files;
}

// The providers of all nodes; their number and their order depend on the mesh.
std::set<std::string> providers_of(const ResolvedProgram& resolved) {
  std::set<std::string> names;
  for (const auto& unit : resolved.units)
    for (const Node& node : unit->nodes)
      if (node.provider != nullptr) names.insert(node.provider->name);
  return names;
}

// The hashes of the libraries of these members.
Json library_hashes(const PluginRegistry& registry, const std::set<std::string>& members) {
  const Json lock = registry.lock();
  Json hashes = Json::object();
  std::map<std::string, Json> found;
  for (const Json& library : lock["plugins"])
    for (const Json& member : library["members"]) found[member.get<std::string>()] = library["sha256"];
  for (const std::string& member : members) hashes[member] = found[member];
  hashes["torch"] = lock["host"]["torch"];
  return hashes;
}

}  // namespace

Json reference_model_key(Session& session, Purpose purpose) {
  const Settings& settings = session.settings();
  const Json config = session.config().json();
  Json key;
  key["version"] = kVersion;
  key["shapes"] = model_hash(session.model(), session.parameters());
  const bool has_adapter = session.adapter() != nullptr && purpose != Purpose::kReference;
  for (const char* table : {"model", "adapter", "quant", "attention", "kernels", "precision"})
    if (has_adapter || std::string(table) != "adapter") key[table] = config.value(table, Json());
  key["weights"] = {{"files", file_keys(weight_directories(settings))}};
  if (!settings.model.path.is_set() || settings.model.init != ModelInit::kPretrained) key["seed"] = *settings.run.seed;
  key["device"] = session.device().spec().name;
  key["compute"] = dtype_name(session.compute());
  std::set<std::string> members = {"model/" + std::string(without_version(session.model().member()))};
  for (const std::string& provider : providers_of(session.compiled().resolved(purpose)))
    members.insert("ops/" + std::string(without_version(provider)));
  key["libraries"] = library_hashes(session.plugins().registry(), members);
  return key;
}

Json reference_key(const Json& model, const RowSource& rows, const ObjectiveDesc& desc, int64_t seq_len) {
  Json key;
  key["ids"] = rows.store().facts().content_hash;
  key["documents"] = rows.store().num_documents();
  // Documents that are too long have no values.
  key["longest"] = rows.num_long_documents() > 0 ? seq_len : 0;
  key["tokens"] = desc.needs_tokens();
  key["model"] = model;
  return key;
}

unsigned reference_file_mode(const Settings& settings) {
  unsigned mode = 0644;
  for (const std::string& path : weight_directories(settings)) mode &= shared_file_mode(path);
  return mode;
}

}  // namespace chassis
