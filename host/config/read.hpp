// Files with `extends` and overrides of the command line, merged into one tree; nothing is checked against a schema
// except which keys are arrays of tables.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "host/config/schema.hpp"
#include "host/config/value.hpp"

namespace chassis {

// The text of a configuration. It is read once and handed on, since a pipe cannot be read again.
struct ConfigSource {
  std::string name;    // of the file, in messages
  std::string folder;  // from which `extends` looks; empty: the current directory
  std::string text;
};

// Of a regular file, or of a pipe, whose `extends` looks from the current directory. Throws a config error.
ConfigSource read_config_source(const std::string& path,
                                std::chrono::milliseconds patience = std::chrono::seconds(10));
// The folder from which `extends` of the file looks.
std::string config_folder(const std::string& path);

// Throws a config error with a position: unreadable or malformed files, cycles, files without end.
Value read_config(const ConfigSource& source);
Value read_config_file(const std::string& path);
Value read_config_text(std::string_view text, const std::string& name);

// Tables are merged deeply, everything else is replaced.
void merge(Value& base, Value over);

// "a.b.0.c=value". Throws a config error if that has no form or leads through something that is no table.
void apply_override(Value& root, const std::string& assignment, const Schema& schema);

}  // namespace chassis
