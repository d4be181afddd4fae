// Files are read depth first: later ones win over earlier ones, and the extending file wins over all of them.
#include "host/config/read.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <set>
#include <unordered_map>

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/pipe.hpp"
#include "host/base/printable.hpp"
#include "host/config/config_files.hpp"
#include "host/config/paths.hpp"
#include "host/config/toml_file.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

// A configuration beyond these limits is a mistake or an attack.
constexpr uint64_t kMaxBytes = 1 << 20;  // per file
constexpr size_t kMaxFiles = 256;        // read for one configuration; one that is read twice counts twice
constexpr size_t kMaxDepth = 32;         // files in a chain of `extends`

std::string identity(const std::string& path) {
  std::error_code error;
  const fs::path canonical = fs::weakly_canonical(path, error);
  return error ? path : canonical.string();
}

// Reads one file and all that it extends.
class FileMerger {
 public:
  TomlValue read(const ConfigSource& source) {
    TomlValue tree = parse_toml(source.text, source.name);
    const TomlValue* extends = tree.find("extends");
    if (extends == nullptr) return tree;
    if (!extends->is_array()) {
      throw Error(ExitCode::kConfig, extends->origin.where,
                  "extends must be a list of file names, not " + std::string(type_text(extends->type)) + " (" +
                      toml_text(*extends) + ")");
    }
    open_.push_back({source.name, identity(source.name)});
    TomlValue merged;
    for (const TomlValue& entry : extends->children) {
      if (entry.type != ValueType::kString || entry.string.find('\0') != std::string::npos) {
        throw Error(ExitCode::kConfig, entry.origin.where,
                    "extends must be a list of file names; " + toml_text(entry) + " is " +
                        (entry.type == ValueType::kString ? "not a file name" : type_text(entry.type)));
      }
      std::string path = entry.string;
      if (const auto problem = expand_home(path))
        throw Error(ExitCode::kConfig, entry.origin.where, "extends " + toml_text(entry) + ": " + *problem);
      merge(merged, read_extended((fs::path(source.folder) / path).lexically_normal().string(), entry.origin.where));
    }
    open_.pop_back();
    tree.erase("extends");
    merge(merged, std::move(tree));
    return merged;
  }

 private:
  struct OpenFile {
    std::string name, identity;
  };

  TomlValue read_extended(const std::string& path, const SourcePosition& asked_by) {
    refuse_cycle(path, asked_by);
    if (open_.size() >= kMaxDepth)
      throw Error(ExitCode::kConfig, asked_by,
                  "extends '" + path + "': more than " + std::to_string(kMaxDepth) + " files extend each other");
    if (++num_files_ > kMaxFiles)
      throw Error(ExitCode::kConfig, asked_by,
                  "extends '" + path + "': this configuration has already read " + std::to_string(kMaxFiles) +
                      " files, the maximum; a file that is extended twice counts twice");
    ConfigSource source{path, config_folder(path), {}};
    try {
      source.text = read_file(path, kMaxBytes);
    } catch (const Error& cause) {
      throw Error(ExitCode::kConfig, asked_by, cause.message()).hint(cause.hint_text());
    }
    return read(source);
  }

  void refuse_cycle(const std::string& path, const SourcePosition& asked_by) const {
    const std::string wanted = identity(path);
    const auto first =
        std::find_if(open_.begin(), open_.end(), [&](const OpenFile& f) { return f.identity == wanted; });
    if (first == open_.end()) return;
    std::string cycle;
    for (auto file = first; file != open_.end(); ++file) cycle += file->name + " → ";
    throw Error(ExitCode::kConfig, asked_by, "extends '" + path + "' makes a cycle: " + cycle + path);
  }

  std::vector<OpenFile> open_;  // the files being read, each extended by the one before
  size_t num_files_ = 0;
};

void add_files(const TomlValue& value, std::set<std::string>& files) {
  if (value.origin.kind == Origin::Kind::kFile) files.insert(value.origin.where.file);
  for (const TomlValue& child : value.children) add_files(child, files);
}

struct Assignment {
  std::vector<std::string> keys;
  std::string value;
};

// Splits off the dotted keys, which may be quoted, up to the first "=" outside of quotes; the rest is the value.
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

TomlValue override_value(const std::string& text, const Origin& origin) {
  std::optional<TomlValue> value = parse_toml_value(text, origin);
  if (!value) {
    const bool structured = !text.empty() && std::string_view("[{\"'").find(text[0]) != std::string_view::npos;
    if (structured) {
      throw Error(ExitCode::kConfig, origin.where, text + " is not a TOML value")
          .hint("strings inside lists and tables need quotes, and the shell must keep them: put the override in '…'");
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

TomlValue empty(ValueType type, const Origin& origin) {
  TomlValue value;
  value.type = type;
  value.origin = origin;
  value.key_where = origin.where;
  return value;
}

}  // namespace

std::string config_folder(const std::string& path) {
  // These are descriptors of this process, not files of the user.
  for (const char* system : {"/dev/", "/proc/"})
    if (path.starts_with(system)) return "";
  try {
    if (path_kind(path) == PathKind::kOther) return "";
  } catch (const Error&) {  // reading it will report why
  }
  return fs::path(path).parent_path().string();
}

ConfigSource read_config_source(const std::string& path, std::chrono::milliseconds timeout) {
  try {
    return {path, config_folder(path), read_file_or_pipe(path, kMaxBytes, timeout)};
  } catch (const Error& cause) {
    throw config_error(cause.message()).hint(cause.hint_text());
  }
}

TomlValue read_config(const ConfigSource& source) { return FileMerger().read(source); }

TomlValue read_config_file(const std::string& path) { return read_config(read_config_source(path)); }

TomlValue read_config_text(std::string_view text, const std::string& name) {
  return read_config({name, fs::path(name).parent_path().string(), std::string(text)});
}

void merge(TomlValue& base, TomlValue over) {
  if (!base.is_table() || !over.is_table()) {
    std::string name = std::move(base.name);
    base = std::move(over);
    base.name = std::move(name);
    return;
  }
  base.origin = over.origin;
  base.key_where = over.key_where;
  std::unordered_map<std::string, size_t> index;
  for (size_t i = 0; i < base.children.size(); ++i) index[base.children[i].name] = i;
  for (TomlValue& child : over.children) {
    const auto old = index.find(child.name);
    if (old != index.end()) {
      merge(base.children[old->second], std::move(child));
    } else {
      base.children.push_back(std::move(child));  // names in a table are unique
    }
  }
}

void apply_override(TomlValue& root, const std::string& assignment, const Schema& schema) {
  const Origin origin{Origin::Kind::kOverride, SourcePosition{"command line '" + printable(assignment) + "'", 0, 0}};
  const auto failure = [&](const std::string& text) { return Error(ExitCode::kConfig, origin.where, text); };
  if (!is_utf8(assignment)) throw failure("an override must be UTF-8 text, as in TOML");
  const std::optional<Assignment> split_text = split(assignment);
  if (!split_text) throw failure("an override has the form key=value").hint("for example run.max_steps=100");
  const auto& [keys, value_text] = *split_text;
  if (keys.size() > kMaxKeyParts)
    throw failure("the key has " + std::to_string(keys.size()) + " parts: the maximum is " +
                  std::to_string(kMaxKeyParts));
  if (keys.front() == "extends") throw failure("extends can be set only in a file");

  TomlValue* node = &root;
  std::string path, table;  // `table` is the path without indexes, as in the schema
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
        throw failure(path + " has " + std::to_string(node->children.size()) +
                      (node->children.size() == 1 ? " item: index " : " items: index ") + keys[i] + " is too large");
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
      TomlValue value = override_value(value_text, origin);
      const TableSpec* spec = schema.find(table);
      const bool removes = value.is_table() && value.children.empty() && spec != nullptr && spec->is_optional;
      if (removes)
        node->erase(keys[i]);
      else
        node->set(keys[i], std::move(value));
      return;
    }
    TomlValue* child = node->find(keys[i]);
    if (child == nullptr) {
      const TableSpec* spec = schema.find(table);
      const bool is_array = spec != nullptr && spec->is_array;
      child = &node->set(keys[i], empty(is_array ? ValueType::kArray : ValueType::kTable, origin));
    }
    node = child;
  }
}

Json read_assignments(const std::vector<std::string>& assignments) {
  TomlValue root = empty(ValueType::kTable, {});
  for (const std::string& assignment : assignments) apply_override(root, assignment, Schema());
  return to_json(root);
}

std::vector<std::string> config_files(const std::string& file) {
  if (path_kind(file) != PathKind::kFile) return {};
  std::set<std::string> files = {file};
  try {
    add_files(read_config_file(file), files);
  } catch (const Error&) {  // the user is changing it
  }
  return {files.begin(), files.end()};
}

}  // namespace chassis
