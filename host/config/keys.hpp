// All keys of the host. Their rows in keys.cpp give the schema, and they fill Settings.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "host/base/error.hpp"
#include "host/config/schema.hpp"
#include "host/config/settings.hpp"
#include "host/config/value.hpp"

namespace chassis {

struct ReadKey;  // settings_reader.hpp

// Everything that the host understands.
const Schema& host_schema();

// Reads a checked tree. `file` is the position of keys that no file sets; `findings` are the problems that loading
// found, or NULL. Appends the keys to `read`, unless it is NULL.
std::unique_ptr<const Settings> read_settings(const TomlValue& root, const std::string& file,
                                              std::shared_ptr<const Error> findings,
                                              std::vector<ReadKey>* read = nullptr);

}  // namespace chassis
