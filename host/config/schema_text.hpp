// The documentation that `chassis schema [key]` prints, from the host's schema and those of the plugins.
#pragma once

#include <string>
#include <vector>

#include "host/config/schema.hpp"

namespace chassis {

// A plugin's member and its options.
struct PluginDoc {
  std::string kind;
  std::string name;
  std::string doc;
  std::vector<OptionSpec> options;
};

// `key` is empty (all tables), a table ("train"), or a key ("train.seq_len", "optimizer.betas"). Throws a config error
// with a suggestion if there is no such thing.
std::string schema_text(const Schema& schema, const std::vector<PluginDoc>& plugins, const std::string& key);

}  // namespace chassis
