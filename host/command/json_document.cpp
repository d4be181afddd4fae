#include "host/command/json_document.hpp"

#include <cstdio>
#include <string>

#include "host/base/json.hpp"
#include "host/base/output.hpp"

namespace chassis {

void add_json(CLI::App& verb, bool& as_json) { verb.add_flag("--json", as_json, "print JSON"); }

Json json_document(std::string_view name, const Json& object) {
  Json document = {{"schema", "chassis." + std::string(name) + "/1"}};
  for (const auto& [key, value] : object.items()) document[key] = value;
  return document;
}

void print_document(std::string_view name, const Json& object) {
  const std::string text = json_document(name, object).dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  std::fwrite(text.data(), 1, text.size(), output());
}

}  // namespace chassis
