// Strict in both directions: what one side would refuse, the other does not send.
#include "host/control/control_request.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "host/base/error.hpp"
#include "host/base/json.hpp"
#include "host/base/printable.hpp"

namespace chassis {
namespace {

constexpr const char* kRequest = "request";
constexpr size_t kMaxIdLength = 64;

bool takes_changes(ControlVerb verb) { return verb == ControlVerb::kCheck || verb == ControlVerb::kSwap; }

std::vector<std::string> read_texts(const Json& values, const std::string& key) {
  if (!values.is_array())
    throw config_error(fmt::format("{}: '{}' must be a list of strings, not {}", kRequest, key, values.type_name()));
  std::vector<std::string> texts;
  for (const Json& value : values) {
    if (!value.is_string())
      throw config_error(
          fmt::format("{}: '{}' must be a list of strings, but has {}", kRequest, key, value.type_name()));
    texts.push_back(value.get<std::string>());
  }
  return texts;
}

void check_id(const std::string& id) {
  const bool is_plain = std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  });
  if (id.empty() || id.size() > kMaxIdLength || !is_plain)
    throw config_error(fmt::format("{}: 'id' is '{}', expected 1 to {} letters, digits, '.', '_' or '-'", kRequest,
                                   printable(id), kMaxIdLength));
}

// Each item is two parts with `separator` between them, neither of them empty.
void check_pairs(const std::vector<std::string>& items, char separator, bool allows_empty_end, const char* expected) {
  for (const std::string& item : items) {
    const size_t at = item.find(separator);
    if (at == std::string::npos || at == 0 || (at + 1 == item.size() && !allows_empty_end))
      throw config_error(fmt::format("{}: '{}' is not of the form {}", kRequest, printable(item), expected));
  }
}

void check_request(const ControlRequest& request) {
  check_id(request.id);
  if (request.generation < -1)
    throw config_error(
        fmt::format("{}: 'generation' is {}, expected 0 or more, or -1 for any", kRequest, request.generation));
  check_pairs(request.set, '=', true, "KEY=VALUE");
  check_pairs(request.plugins, '@', false, "ID@VERSION");
  if (request.file.empty() && !request.file_name.empty())
    throw config_error(
        fmt::format("{}: 'file_name' is '{}', but 'file' is missing or empty", kRequest, printable(request.file_name)));
  const bool has_changes = !request.set.empty() || !request.file.empty() || !request.plugins.empty();
  const std::string& verb = control_verb_name(request.verb);
  if (has_changes && !takes_changes(request.verb))
    throw config_error(fmt::format("{}: '{}' takes no changes", kRequest, verb))
        .hint("'set', 'file' and 'plugins' are for check and swap");
  if (!has_changes && takes_changes(request.verb))
    throw config_error(fmt::format("{}: '{}' has nothing to change", kRequest, verb))
        .hint("give KEY=VALUE, a file or a plugin");
}

}  // namespace

const std::vector<std::string>& control_verb_names() {
  static const std::vector<std::string> names = {"status", "check", "swap", "cancel", "commit", "rollback"};
  return names;
}

const std::string& control_verb_name(ControlVerb verb) { return control_verb_names()[static_cast<size_t>(verb)]; }

std::optional<ControlVerb> control_verb_named(std::string_view name) {
  const std::vector<std::string>& names = control_verb_names();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return std::nullopt;
  return static_cast<ControlVerb>(found - names.begin());
}

void check_control_version(const Json& message, const std::string& where) {
  const int64_t version = json_int(message, "control", where);
  if (version != kControlVersion)
    throw config_error(fmt::format("{}: version {} of the control protocol; this release has version {}", where,
                                   version, kControlVersion))
        .hint("use the chassis that the run was started with");
}

ControlRequest parse_control_request(std::string_view line) {
  if (line.ends_with('\n')) line.remove_suffix(1);
  if (line.size() > kMaxControlLineBytes)
    throw config_error(fmt::format("{}: a line of {} bytes, maximum {}", kRequest, line.size(), kMaxControlLineBytes));
  if (!is_utf8(line)) throw config_error(fmt::format("{}: the line is not UTF-8", kRequest));
  const Json message = parse_json(line, kRequest);
  check_control_version(message, kRequest);
  ControlRequest request;
  const std::string verb = json_string(message, "verb", kRequest);
  const std::optional<ControlVerb> known = control_verb_named(verb);
  if (!known)
    throw config_error(fmt::format("{}: unknown verb '{}'", kRequest, printable(verb)))
        .hint(fmt::format("the verbs are {}", fmt::join(control_verb_names(), ", ")));
  request.verb = *known;
  request.id = json_string(message, "id", kRequest);
  for (const auto& [key, value] : message.items()) {
    if (key == "generation") {
      request.generation = json_int(message, key, kRequest);
    } else if (key == "set") {
      request.set = read_texts(value, key);
    } else if (key == "file") {
      request.file = json_string(message, key, kRequest);
    } else if (key == "file_name") {
      request.file_name = json_string(message, key, kRequest);
    } else if (key == "plugins") {
      request.plugins = read_texts(value, key);
    } else if (key != "control" && key != "verb" && key != "id") {
      throw config_error(fmt::format("{}: unknown field '{}'", kRequest, printable(key)))
          .hint("the fields are control, verb, id, generation, set, file, file_name, plugins");
    }
  }
  check_request(request);
  return request;
}

std::string control_line(const ControlRequest& request) {
  Json message = {{"control", kControlVersion}, {"verb", control_verb_name(request.verb)}, {"id", request.id}};
  if (request.generation >= 0) message["generation"] = request.generation;
  if (!request.set.empty()) message["set"] = request.set;
  if (!request.file.empty()) message["file"] = request.file;
  if (!request.file_name.empty()) message["file_name"] = request.file_name;
  if (!request.plugins.empty()) message["plugins"] = request.plugins;
  for (const auto& [key, value] : message.items())
    for (const Json& part : value.is_array() ? value : Json::array({value}))
      if (part.is_string() && !is_utf8(part.get_ref<const std::string&>()))
        throw config_error(fmt::format("{}: '{}' is not UTF-8", kRequest, key));
  check_request(request);
  std::string line = json_line(message);
  if (line.size() > kMaxControlLineBytes)
    throw config_error(fmt::format("{}: a line of {} bytes, maximum {}", kRequest, line.size(), kMaxControlLineBytes));
  return line;
}

}  // namespace chassis
