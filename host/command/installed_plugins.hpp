// The installed plugins with their options, for the documentation of keys and for completion.
#pragma once

#include <string>
#include <vector>

#include "host/config/schema_text.hpp"

namespace chassis {

// Loads every usable plugin; one that cannot be loaded is a counted warning. With `key` "model.config", includes the
// keys of the models' configs.
std::vector<PluginDoc> installed_plugin_docs(const std::vector<std::string>& plugin_path, const std::string& key = "");

}  // namespace chassis
