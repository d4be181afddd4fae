// Files with `extends` and overrides of the command line, merged into one tree; nothing is checked against a schema
// except which keys are arrays of tables.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "host/config/schema.hpp"
#include "host/config/value.hpp"

namespace chassis {

// Throws a config error with a position: unreadable or malformed files, cycles.
Value read_config_file(const std::string& path);
Value read_config_text(std::string_view text, const std::string& name);

// Tables are merged deeply, everything else is replaced.
void merge(Value& base, Value over);

// "a.b.0.c=value". Throws a config error if that has no form or leads through something that is no table.
void apply_override(Value& root, const std::string& assignment, const Schema& schema);

}  // namespace chassis
