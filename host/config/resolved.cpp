// The resolved configuration as TOML: every key in the order of the schema, with its origin as a comment.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "host/base/printable.hpp"
#include "host/config/config.hpp"

namespace chassis {
namespace {

constexpr size_t kCommentColumn = 44;

// Paths on the command line need not be UTF-8; this file must be.
std::string comment(const Origin& origin) { return printable(origin.text(), 4096); }

void write_key(std::string& out, const TomlValue& value) {
  std::string line = fmt::format("{} = {}", toml_key(value.name), toml_text(value));
  line.resize(std::max(line.size() + 2, kCommentColumn), ' ');
  out += line + "# " + comment(value.origin) + "\n";
}

void write_body(std::string& out, const TomlValue& table, const Schema& schema, const TableSpec& spec);

void write_table(std::string& out, const TomlValue& value, const Schema& schema, const TableSpec& spec) {
  if (spec.is_array) {
    for (const TomlValue& item : value.children) {
      out += "\n[[" + spec.name + "]]\n";
      write_body(out, item, schema, spec);
    }
    return;
  }
  // A table without keys is written too: it may switch something on.
  if (!spec.name.empty()) out += "\n[" + spec.name + "]\n";
  write_body(out, value, schema, spec);
}

void write_body(std::string& out, const TomlValue& table, const Schema& schema, const TableSpec& spec) {
  const std::string prefix = spec.name.empty() ? "" : spec.name + ".";
  for (const OptionSpec& option : spec.keys) {
    if (const TomlValue* value = table.find(option.name); value != nullptr && option.name != "extends")
      write_key(out, *value);
  }
  std::vector<const TomlValue*> option_tables;
  for (const TomlValue& child : table.children) {
    if (spec.find(child.name) != nullptr || schema.find(prefix + child.name) != nullptr) continue;
    if (spec.slot == SlotForm::kList) {
      option_tables.push_back(&child);
    } else {
      write_key(out, child);
    }
  }
  for (const TomlValue* options : option_tables) {
    out += "\n[" + prefix + toml_key(options->name) + "]\n";
    for (const TomlValue& option : options->children) write_key(out, option);
  }
  for (const TableSpec& inner : schema.tables) {
    const bool is_inside = !inner.name.empty() && inner.name.starts_with(prefix) &&
                           inner.name.find('.', prefix.size()) == std::string::npos;
    if (!is_inside) continue;
    if (const TomlValue* value = table.find(inner.name.substr(prefix.size()))) write_table(out, *value, schema, inner);
  }
}

}  // namespace

std::string Config::resolved_toml() const {
  std::error_code ignored;
  const std::string folder = std::filesystem::current_path(ignored).string();
  std::string out =
      "# Every key of the run, and where it came from. Together with the files that it names, this file gives the same "
      "run;\n"
      "# relative paths start at " +
      printable(folder, 4096) + ".\n";
  write_table(out, root_, *schema_, *schema_->find(""));
  return out;
}

}  // namespace chassis
