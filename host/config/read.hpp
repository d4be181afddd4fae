// Merges files with `extends` and overrides of the command line into one tree. Uses the schema only to tell which keys
// are arrays of tables, and checks nothing else against it.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "host/base/json_fwd.hpp"
#include "host/config/schema.hpp"
#include "host/config/value.hpp"

namespace chassis {

// The text of a configuration. It is read once and passed on, since a pipe cannot be read again.
struct ConfigSource {
  std::string name;    // the file's name in messages
  std::string folder;  // `extends` is relative to it; empty: the current directory
  std::string text;
};

// Reads a regular file or a pipe. Waits at most `timeout` for the pipe, whose `extends` is relative to the current
// directory. Throws a config error.
ConfigSource read_config_source(const std::string& path, std::chrono::milliseconds timeout = std::chrono::seconds(10));
// The folder to which the file's `extends` is relative.
std::string config_folder(const std::string& path);

// Throws a config error with a position if a file is unreadable, malformed, too large or extends itself, or for too
// many files.
TomlValue read_config(const ConfigSource& source);
TomlValue read_config_file(const std::string& path);
TomlValue read_config_text(std::string_view text, const std::string& name);

// Merges tables recursively; everything else in `over` replaces what is in `base`.
void merge(TomlValue& base, TomlValue over);

// "a.b.0.c=value"; "table={}" removes a table that may be left out. Throws a config error if it is malformed, or a part
// of the key is not a table.
void apply_override(TomlValue& root, const std::string& assignment, const Schema& schema);
// Returns "name=value" words as an object, with values as in overrides.
Json read_assignments(const std::vector<std::string>& assignments);

}  // namespace chassis
