// A request of an operator to a running training, and its line of JSON. Knows nothing of sockets, and not what a
// request changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "host/base/json_fwd.hpp"

namespace chassis {

// Version of the lines of both directions and of control.json; a line of another version is refused.
inline constexpr int64_t kControlVersion = 1;
// Maximum of a request, without its line break.
inline constexpr size_t kMaxControlLineBytes = size_t{1} << 20;

enum class ControlVerb { kStatus, kCheck, kSwap, kCancel, kCommit, kRollback };

// "status", "check", … in the order of the enumeration.
const std::vector<std::string>& control_verb_names();
const std::string& control_verb_name(ControlVerb verb);
std::optional<ControlVerb> control_verb_named(std::string_view name);

struct ControlRequest {
  ControlVerb verb = ControlVerb::kStatus;
  std::string id;                    // chosen by the client: 1 to 64 letters, digits, '.', '_' or '-'
  int64_t generation = -1;           // the one that the operator expects; -1: any
  std::vector<std::string> set;      // "attention.plugin=sdpa", as the overrides of train
  std::string file;                  // text of a TOML file; "": none
  std::string file_name;             // for messages, and for relative paths in the text
  std::vector<std::string> plugins;  // "adamw@2.0.0"
};

// Reads a line, with or without its line break. A config error says what is wrong: length, encoding, version, unknown
// or missing fields, types, or changes that the verb does not take.
ControlRequest parse_control_request(std::string_view line);
// The line without its line break. Throws the same errors.
std::string control_line(const ControlRequest& request);

// Checks the version of a message; `where` names it.
void check_control_version(const Json& message, const std::string& where);

}  // namespace chassis
