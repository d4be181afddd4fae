// --json: a verb prints one JSON document in place of its text, and nothing else on standard output.
#pragma once

#include <CLI/CLI.hpp>
#include <string_view>

#include "host/base/json_fwd.hpp"

namespace chassis {

// Declares --json.
void add_json(CLI::App& verb, bool& as_json);
// The document of a verb: "schema": "chassis.NAME/1", then the members of `object`.
Json json_document(std::string_view name, const Json& object);
// Prints it. Text that is not UTF-8 is shown with replacement characters.
void print_document(std::string_view name, const Json& object);

}  // namespace chassis
