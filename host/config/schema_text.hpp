// The documentation that `chassis schema [key]` prints, as text or JSON, from the host's schema and those of the
// plugins.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "host/config/schema.hpp"

namespace chassis {

// A plugin's member and its options.
struct PluginDoc {
  std::string kind;
  std::string name;
  std::string doc;
  std::vector<OptionSpec> options;
  std::vector<std::pair<std::string, std::string>> config = {};  // for a model: keys of model.config and their defaults
};

// `path` is empty (all tables), a table ("train"), a key ("train.seq_len", "optimizer.betas", "data.eval.0.path"), or a
// plugin. Throws a config error with a suggestion if there is no such thing.
std::string schema_text(const Schema& schema, const std::vector<PluginDoc>& plugins, const std::string& path);
// The same as JSON: tables, keys and plugins. Tables come with the options of the plugins that they take.
Json schema_json(const Schema& schema, const std::vector<PluginDoc>& plugins, const std::string& path);

}  // namespace chassis
