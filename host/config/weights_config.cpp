// Builds the tree of a configuration key by key.
#include "host/config/weights_config.hpp"

#include <string_view>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/printable.hpp"
#include "host/config/read.hpp"
#include "host/config/schema.hpp"
#include "host/config/value.hpp"

namespace chassis {
namespace {

// Sets one key of a table to a text or, if `flag` is true, to true.
void set_key(TomlValue& root, std::string_view table, std::string_view key, const std::string& text,
             bool flag = false) {
  const std::string typed = std::string(table) + "." + std::string(key) + "=" + text;
  const Origin origin{Origin::Kind::kOverride, SourcePosition{"command line '" + printable(typed) + "'", 0, 0}};
  if (!is_utf8(text)) throw Error(ExitCode::kConfig, origin.where, "an override must be UTF-8 text, as in TOML");
  TomlValue value;
  value.type = flag ? ValueType::kBool : ValueType::kString;
  value.boolean = flag;
  if (!flag) value.string = text;
  value.typed_text = text;
  value.origin = origin;
  value.key_where = origin.where;
  if (root.find(table) == nullptr) {
    TomlValue empty;
    empty.origin = origin;
    empty.key_where = origin.where;
    root.set(table, std::move(empty));
  }
  root.find(table)->set(key, std::move(value));
}

}  // namespace

Config weights_config(const WeightsConfig& values, const std::string& name) {
  TomlValue root = read_config_text("schema_version = 1\n", name);
  const auto set_if_given = [&](std::string_view table, std::string_view key, const std::string& text) {
    if (!text.empty()) set_key(root, table, key, text);
  };
  set_key(root, "model", "path", values.model);
  set_key(root, "model", "init", "random");
  set_key(root, "run", "device", "cpu");
  set_key(root, "export", "dtype", values.dtype);
  set_if_given("adapter", "plugin", values.adapter_plugin);
  set_if_given("adapter", "path", values.adapter);
  if (values.merges_adapter) set_key(root, "export", "merge", "true", true);
  for (const std::string& option : values.quant_options) apply_override(root, option, host_schema());
  set_if_given("quant", "plugin", values.quant_plugin);
  set_if_given("export", "plugin", values.format);
  return make_config(std::move(root), name, ConfigUse::kWeights, host_schema());
}

}  // namespace chassis
