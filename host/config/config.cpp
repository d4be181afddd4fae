// Access to a Config, and the steps that create and finish it.
#include "host/config/config.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "host/base/json.hpp"
#include "host/base/printable.hpp"

namespace chassis {
namespace {

constexpr size_t kMaxPathBytes = 4096;

}  // namespace

Json Config::read_options(const std::vector<OptionSpec>& options, const std::vector<std::string>& assignments) {
  Config config;
  config.root_.type = ValueType::kTable;
  for (const std::string& assignment : assignments) apply_override(config.root_, assignment, Schema());
  TomlValue known;
  known.type = ValueType::kTable;
  for (const OptionSpec& option : options) {
    TomlValue* const value = config.find(option.name);
    if (value != nullptr && config.check_value(*value, option, option.name)) known.set(option.name, std::move(*value));
  }
  config.throw_if_problems();
  return to_json(known);
}

const TomlValue* Config::find(std::string_view key) const { return find_value(root_, key); }

TomlValue* Config::find(std::string_view key) { return const_cast<TomlValue*>(std::as_const(*this).find(key)); }

const TomlValue& Config::at(std::string_view key, ValueType type) const {
  const TomlValue* value = find(key);
  if (value == nullptr || value->type != type) {
    throw_if_problems();
    throw internal_error("the configuration has no '" + std::string(key) + "' that is " + type_text(type));
  }
  return *value;
}

bool Config::has(std::string_view key) const { return find(key) != nullptr; }
int64_t Config::get_int(std::string_view key) const { return at(key, ValueType::kInt).integer; }
double Config::get_double(std::string_view key) const { return at(key, ValueType::kFloat).number; }
const std::string& Config::get_string(std::string_view key) const { return at(key, ValueType::kString).string; }

std::vector<std::string> Config::get_list(std::string_view key) const {
  std::vector<std::string> out;
  for (const TomlValue& item : at(key, ValueType::kArray).children) out.push_back(item.string);
  return out;
}

size_t Config::count(std::string_view key) const {
  const TomlValue* value = find(key);
  return value != nullptr && value->is_array() ? value->children.size() : 0;
}

Json Config::json() const { return to_json(root_); }

SourcePosition Config::position(std::string_view key) const { return position_of(root_, key, file_); }

bool Config::set_by_user(std::string_view key) const {
  const TomlValue* value = find(key);
  return value != nullptr && value->origin.by_user();
}

void Config::drop_defaults(std::string_view table) {
  if (TomlValue* const value = find(table))
    std::erase_if(value->children, [](const TomlValue& child) { return !child.origin.by_user(); });
}

void Config::add_problem(std::string_view key, std::string text) {
  invalid_.emplace(key);
  problems_.push_back({position(key), std::move(text)});
}

void Config::add_problem_at(SourcePosition where, std::string text) {
  problems_.push_back({std::move(where), std::move(text)});
}

void Config::add_problem(std::string_view key, const Error& error) {
  if (!key.empty()) invalid_.emplace(key);
  std::string text = error.message();
  for (size_t i = 0; i < error.facts().size(); ++i)
    text += (i == 0 ? " (" : ", ") + error.facts()[i].first + ": " + error.facts()[i].second;
  if (!error.facts().empty()) text += ')';
  problems_.push_back({error.where().file.empty() && !key.empty() ? position(key) : error.where(), std::move(text),
                       error.code(), error.hint_text()});
}

void Config::throw_if_problems() const {
  if (const std::optional<Error> findings = all_problems()) throw Error(*findings);
}

std::optional<Error> Config::all_problems() const {
  if (problems_.empty()) return std::nullopt;
  std::vector<Problem> sorted = problems_;
  std::stable_sort(sorted.begin(), sorted.end(), [&](const Problem& a, const Problem& b) {
    // The file itself first, then those that it extends; within a file, by line.
    const auto order = [&](const Problem& p) {
      return std::tuple(p.where.file != file_, p.where.file, p.where.line, p.where.column);
    };
    return order(a) < order(b);
  });
  if (sorted.size() == 1) return Error(sorted[0].code, sorted[0].where, sorted[0].text).hint(sorted[0].hint);
  constexpr size_t kMaxShown = 100;
  std::string text = std::to_string(sorted.size()) + " errors in the configuration:";
  std::vector<std::string> hints;
  ExitCode code = sorted[0].code;
  for (size_t i = 0; i < sorted.size(); ++i) {
    const Problem& problem = sorted[i];
    if (problem.code == ExitCode::kConfig) code = ExitCode::kConfig;
    if (i >= kMaxShown) continue;
    const std::string where = printable(problem.where.text(), kMaxPathBytes);
    text += "\n  " + where + (where.empty() ? "" : ": ") + problem.text;
    if (!problem.hint.empty() && std::find(hints.begin(), hints.end(), problem.hint) == hints.end())
      hints.push_back(problem.hint);
  }
  if (sorted.size() > kMaxShown) text += "\n  … and " + std::to_string(sorted.size() - kMaxShown) + " more";
  std::string all_hints;
  for (const std::string& hint : hints) all_hints += (all_hints.empty() ? "" : "\nhint: ") + hint;
  return Error(code, std::move(text)).hint(all_hints);
}

Config make_config(TomlValue root, std::string file, ConfigUse use, const Schema& schema) {
  Config config;
  config.schema_ = &schema;
  config.use_ = use;
  config.file_ = std::move(file);
  config.root_ = std::move(root);
  const TableSpec* top = schema.find("");
  CHASSIS_CHECK(top != nullptr, "a schema has a top level");
  // Adds the tables that are not written down, so that required keys in them are reported as missing.
  for (const TableSpec& spec : schema.tables) {
    const bool always = !spec.is_array && !spec.is_optional && spec.name.find('.') == std::string::npos;
    if (always && !spec.name.empty() && config.root_.find(spec.name) == nullptr)
      config.root_.set(spec.name, TomlValue{});
  }
  config.check_table(config.root_, *top, "");
  for (const TableSpec& spec : schema.tables) {
    if (spec.name.find('.') == std::string::npos) config.fill_defaults(config.root_, spec, spec.name);
  }
  config.derive_defaults();
  const std::optional<Error> findings = config.all_problems();
  config.settings_ =
      read_settings(config.root_, config.file_, findings ? std::make_shared<const Error>(*findings) : nullptr);
  return config;
}

Config load_config(const ConfigSource& source, const std::vector<std::string>& overrides, ConfigUse use,
                   const Schema& schema) {
  TomlValue root = read_config(source);
  for (const std::string& assignment : overrides) apply_override(root, assignment, schema);
  Config config = make_config(std::move(root), source.name, use, schema);
  config.overrides_ = overrides;
  return config;
}

Config load_config(const std::string& path, const std::vector<std::string>& overrides, ConfigUse use,
                   const Schema& schema) {
  return load_config(read_config_source(path), overrides, use, schema);
}

Config load_config_text(std::string_view text, const std::string& name, const std::vector<std::string>& overrides,
                        ConfigUse use, const Schema& schema) {
  return load_config(ConfigSource{name, config_folder(name), std::string(text)}, overrides, use, schema);
}

namespace {

// Removes what no user has set. An item of an array stays, so that the indexes of the others do.
void drop_preset(TomlValue& table) {
  std::erase_if(table.children, [](TomlValue& child) {
    if (!child.is_table() && !child.is_array()) return !child.origin.by_user();
    if (child.is_array()) {
      for (TomlValue& item : child.children)
        if (item.is_table()) drop_preset(item);
      return child.children.empty() && !child.origin.by_user();
    }
    drop_preset(child);
    return child.children.empty() && !child.origin.by_user();
  });
}

}  // namespace

Config Config::with(const std::vector<std::string>& changes, std::vector<std::string>& left_out) const {
  TomlValue root = root_;
  drop_preset(root);
  for (const std::string& change : changes) apply_override(root, change, *schema_);
  for (const PluginSlot& slot : plugin_slots()) {
    const TableSpec* const spec = schema_->find(slot.table);
    if (spec == nullptr || spec->slot != SlotForm::kOne) continue;
    TomlValue* const table = const_cast<TomlValue*>(find_value(std::as_const(root), slot.key));
    const TomlValue* const plugin = table != nullptr ? table->find("plugin") : nullptr;
    if (plugin == nullptr || plugin->type != ValueType::kString || plugin->string == slot.plugin) continue;
    std::erase_if(table->children, [&](const TomlValue& option) {
      const std::string key = slot.key + "." + option.name;
      const bool is_own = spec->find(option.name) == nullptr;
      const bool is_set = std::ranges::any_of(changes, [&](const std::string& change) {
        const std::string changed = change.substr(0, change.find('='));
        return key == changed || key.starts_with(changed + ".") || changed.starts_with(key + ".");
      });
      if (!is_own || is_set) return false;
      left_out.push_back(key);
      return true;
    });
  }
  Config config = make_config(std::move(root), file_, use_, *schema_);
  config.overrides_ = overrides_;
  return config;
}

void Config::finish() {
  // Options in a slot whose plugin was never loaded are unknown keys.
  for (const PluginSlot& slot : plugin_slots()) {
    const bool invalid_plugin = invalid_.contains(slot.key + ".plugin");
    if (!invalid_plugin && !checked_slots_.contains(slot.key)) check_plugin_options(slot.key, slot.plugin, {});
  }
  cross_check();
  throw_if_problems();
}

}  // namespace chassis
