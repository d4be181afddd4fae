// extends: depth first, later files win over earlier ones, the extending file over all of them.
#include "host/config/read.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>

#include "host/base/file.hpp"
#include "host/config/toml_file.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

std::string identity(const std::string& path) {
  std::error_code error;
  const fs::path canonical = fs::weakly_canonical(path, error);
  return error ? path : canonical.string();
}

Value read_text(std::string_view text, const std::string& name, std::vector<std::string>& open_files);

Value read_path(const std::string& path, const SourcePosition& asked_by, std::vector<std::string>& open_files) {
  const auto cycle = std::find(open_files.begin(), open_files.end(), identity(path));
  if (cycle != open_files.end()) {
    throw Error(ExitCode::kConfig, asked_by, "extends '" + path + "', which extends this file: a cycle");
  }
  std::string text;
  try {
    if (fs::is_directory(path)) throw config_error("'" + path + "' is a directory, not a configuration file");
    text = read_file(path);
  } catch (const Error& cause) {
    throw Error(ExitCode::kConfig, asked_by, cause.message());
  }
  return read_text(text, path, open_files);
}

Value read_text(std::string_view text, const std::string& name, std::vector<std::string>& open_files) {
  Value tree = parse_toml(text, name);
  const Value* extends = tree.find("extends");
  if (extends == nullptr) return tree;
  if (!extends->is_array()) {
    throw Error(ExitCode::kConfig, extends->origin.where,
                "extends must be a list of strings, not " + std::string(type_text(extends->type)) + " (" +
                    toml_text(*extends) + ")");
  }
  open_files.push_back(identity(name));
  Value merged;
  for (const Value& entry : extends->children) {
    if (entry.type != ValueType::kString) {
      throw Error(ExitCode::kConfig, entry.origin.where,
                  "extends must be a list of strings; " + toml_text(entry) + " is " + type_text(entry.type));
    }
    const fs::path path = fs::path(name).parent_path() / entry.string;
    merge(merged, read_path(path.lexically_normal().string(), entry.origin.where, open_files));
  }
  open_files.pop_back();
  tree.erase("extends");
  merge(merged, std::move(tree));
  return merged;
}

struct Assignment {
  std::vector<std::string> keys;
  std::string value;
};

// Dotted keys with optional quotes, up to the first "=" outside of them.
std::optional<Assignment> split(const std::string& text) {
  Assignment out;
  std::string key;
  char quote = 0;
  bool was_quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote != 0) {
      if (c == quote) {
        quote = 0;
      } else {
        key += c;
      }
    } else if (c == '"' || c == '\'') {
      quote = c;
      was_quoted = true;
    } else if (c == '.' || c == '=') {
      if (key.empty() && !was_quoted) return std::nullopt;
      out.keys.push_back(std::exchange(key, ""));
      was_quoted = false;
      if (c == '=') {
        out.value = text.substr(i + 1);
        return out;
      }
    } else if (c != ' ') {
      key += c;
    }
  }
  return std::nullopt;
}

Value override_value(const std::string& text, const Origin& origin) {
  std::optional<Value> value = parse_toml_value(text, origin);
  if (!value) {
    const bool structured = !text.empty() && std::string_view("[{\"'").find(text[0]) != std::string_view::npos;
    if (structured) {
      throw Error(ExitCode::kConfig, origin.where, text + " is not a TOML value")
          .hint("strings inside lists and tables need quotes, which the shell must not eat");
    }
    value.emplace();
    value->type = ValueType::kString;
    value->string = text;
    value->origin = origin;
    value->key_where = origin.where;
  }
  value->typed_text = text;
  return *std::move(value);
}

Value empty(ValueType type, const Origin& origin) {
  Value value;
  value.type = type;
  value.origin = origin;
  value.key_where = origin.where;
  return value;
}

}  // namespace

Value read_config_file(const std::string& path) {
  std::vector<std::string> open_files;
  return read_path(path, {}, open_files);
}

Value read_config_text(std::string_view text, const std::string& name) {
  std::vector<std::string> open_files;
  return read_text(text, name, open_files);
}

void merge(Value& base, Value over) {
  if (!base.is_table() || !over.is_table()) {
    std::string name = std::move(base.name);
    base = std::move(over);
    base.name = std::move(name);
    return;
  }
  base.origin = over.origin;
  base.key_where = over.key_where;
  for (Value& child : over.children) {
    if (Value* old = base.find(child.name)) {
      merge(*old, std::move(child));
    } else {
      base.children.push_back(std::move(child));
    }
  }
}

void apply_override(Value& root, const std::string& assignment, const Schema& schema) {
  const Origin origin{Origin::Kind::kOverride, SourcePosition{"command line '" + assignment + "'", 0, 0}};
  const auto failure = [&](const std::string& text) { return Error(ExitCode::kConfig, origin.where, text); };
  const std::optional<Assignment> split_text = split(assignment);
  if (!split_text) throw failure("an override has the form key=value").hint("for example run.max_steps=100");
  const auto& [keys, value_text] = *split_text;
  if (keys.front() == "extends") throw failure("extends belongs into a file");

  Value* node = &root;
  std::string path, table;  // `table` as the schema knows it: without indexes
  for (size_t i = 0; i < keys.size(); ++i) {
    const bool last = i + 1 == keys.size();
    if (node->is_array()) {
      size_t index = 0;
      const auto [end, error] = std::from_chars(keys[i].data(), keys[i].data() + keys[i].size(), index);
      if (error != std::errc() || end != keys[i].data() + keys[i].size()) {
        throw failure(path + " is a list: its items are called " + path + ".0, " + path + ".1, …, not '" + keys[i] +
                      "'");
      }
      if (index > node->children.size()) {
        throw failure(path + " has " + std::to_string(node->children.size()) + " items: index " + keys[i] +
                      " is too large");
      }
      if (index == node->children.size()) node->children.push_back(empty(ValueType::kTable, origin));
      node = &node->children[index];
      path += "." + keys[i];
      if (last) merge(*node, override_value(value_text, origin));
      continue;
    }
    if (!node->is_table()) throw failure(path + " is " + type_text(node->type) + ", not a table");
    path += (path.empty() ? "" : ".") + keys[i];
    table += (table.empty() ? "" : ".") + keys[i];
    if (last) {
      node->set(keys[i], override_value(value_text, origin));
      return;
    }
    Value* child = node->find(keys[i]);
    if (child == nullptr) {
      const TableSpec* spec = schema.find(table);
      const bool is_array = spec != nullptr && spec->is_array;
      child = &node->set(keys[i], empty(is_array ? ValueType::kArray : ValueType::kTable, origin));
    }
    node = child;
  }
}

}  // namespace chassis
