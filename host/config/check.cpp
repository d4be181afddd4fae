// Checks every key against its specification, and fills in the defaults of the host's keys.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <system_error>

#include "host/base/json.hpp"
#include "host/base/pattern.hpp"
#include "host/base/printable.hpp"
#include "host/config/config.hpp"
#include "host/config/foreign.hpp"
#include "host/config/paths.hpp"
#include "host/config/plugin_name.hpp"
#include "host/config/suggest.hpp"
#include "host/config/toml_file.hpp"

namespace chassis {
namespace {

constexpr size_t kMaxNames = 16;  // listed in a message

SourcePosition where_of(const TomlValue& value) {
  return value.key_where.file.empty() ? value.origin.where : value.key_where;
}

// A value for a message, shortened if it is long.
std::string shown(const TomlValue& value) {
  std::string text = toml_text(value);
  if (text.size() > 60) text = text.substr(0, 57) + "…";
  return text;
}

// The item type of a list, or the type itself.
ValueType wanted_type(OptionType type) {
  switch (type) {
    case OptionType::kBool:
      return ValueType::kBool;
    case OptionType::kInt:
    case OptionType::kIntList:
      return ValueType::kInt;
    case OptionType::kFloat:
    case OptionType::kFloatList:
      return ValueType::kFloat;
    case OptionType::kString:
    case OptionType::kStringList:
      return ValueType::kString;
    case OptionType::kTable:
      break;
  }
  return ValueType::kTable;
}

// "a,b" as a list. An item that is not a TOML value is a string.
void split_words(TomlValue& value, ValueType wanted) {
  const std::string text = value.typed_text;
  const Origin origin = value.origin;
  value.type = ValueType::kArray;
  value.string.clear();
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(',', start), text.size());
    const std::string word = text.substr(start, end - start);
    std::optional<TomlValue> item;
    if (wanted != ValueType::kString) item = parse_toml_value(word, origin);
    if (!item) {
      item.emplace();
      item->type = ValueType::kString;
      item->string = word;
      item->origin = origin;
      item->key_where = origin.where;
    }
    value.children.push_back(*std::move(item));
    start = end + 1;
  }
}

bool is_list(OptionType type) {
  return type == OptionType::kStringList || type == OptionType::kIntList || type == OptionType::kFloatList;
}

// True for an integer of more than 64 bits. TOML has none, so that on the command line it is read as text.
bool is_beyond_int64(const std::string& text) {
  int64_t value = 0;
  return std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc::result_out_of_range;
}

// True for a number that a double cannot hold, such as 1e400. On the command line it is read as text too.
bool is_beyond_double(const std::string& text) {
  double value = 0;
  return std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc::result_out_of_range;
}

// Advice on making the type fit; empty if there is no simple way.
std::string type_advice(const OptionSpec& spec, const TomlValue& value) {
  if (is_list(spec.type) && value.type == wanted_type(spec.type)) return " (write [" + toml_text(value) + "])";
  if (value.type == ValueType::kString && spec.type != OptionType::kTable && !is_list(spec.type)) {
    const bool plain = !value.string.empty() && value.string.find_first_not_of("0123456789.+-eE_") == std::string::npos;
    const bool truth = value.string == "true" || value.string == "false";
    if (spec.type == OptionType::kInt && plain && is_beyond_int64(value.string))
      return fmt::format(" (the largest integer is {})", std::numeric_limits<int64_t>::max());
    if (spec.type == OptionType::kFloat && plain && is_beyond_double(value.string))
      return fmt::format(" (the largest number is {:.4g}, the smallest {:.4g})", std::numeric_limits<double>::max(),
                         std::numeric_limits<double>::min());
    if (spec.type == OptionType::kBool ? truth : plain) return " (remove the quotes)";
  }
  if (spec.type == OptionType::kInt && value.type == ValueType::kFloat && std::floor(value.number) == value.number &&
      std::abs(value.number) < 1e15) {
    return fmt::format(" (write {})", static_cast<int64_t>(value.number));
  }
  if (spec.type == OptionType::kString && value.type != ValueType::kTable && value.type != ValueType::kArray) {
    return " (put it in quotes)";
  }
  return "";
}

// The problem with the content of one number or string; empty if it is valid.
std::string content_problem(const OptionSpec& spec, const TomlValue& value, const std::string& key) {
  if (value.type == ValueType::kInt || value.type == ValueType::kFloat) {
    const double number = value.type == ValueType::kInt ? static_cast<double>(value.integer) : value.number;
    if (!std::isfinite(number)) return fmt::format("{} = {} is not a finite number", key, shown(value));
    if ((spec.min && number < *spec.min) || (spec.max && number > *spec.max)) {
      return fmt::format("{} = {} is out of range: must be {}", key, shown(value), range_text(spec));
    }
  }
  // The system would read a path only up to the NUL.
  if (value.type == ValueType::kString && value.string.find('\0') != std::string::npos)
    return fmt::format("{} = {} contains a NUL character", key, shown(value));
  if (value.type == ValueType::kString && spec.is_path && value.string.empty())
    return fmt::format("{} is empty: expected a path", key);
  if (value.type == ValueType::kString && spec.is_pattern) {
    try {
      Pattern parsed(value.string);
    } catch (const Error& cause) {
      return fmt::format("{}: {}", key, cause.message());
    }
  }
  if (value.type == ValueType::kString && !spec.choices.empty() &&
      std::find(spec.choices.begin(), spec.choices.end(), value.string) == spec.choices.end()) {
    const std::vector<std::string> offered = offered_choices(key, spec);
    std::string text = fmt::format("{} = {} is not {}", key, shown(value), choices_text(offered));
    if (const std::string_view instead = foreign_method(key, value.string); !instead.empty())
      return fmt::format("{}: {}", text, instead);
    const std::string meant(foreign_choice(value.string));
    const std::string near = meant.empty()                            ? nearest(value.string, offered)
                             : std::ranges::count(offered, meant) > 0 ? meant
                                                                      : "";
    return near.empty() ? text : text + " (did you mean \"" + near + "\"?)";
  }
  return "";
}

// The first number in a table that is not finite, which JSON cannot express; plugins get the table as JSON. NULL if
// there is none.
const TomlValue* not_finite(const TomlValue& value) {
  if (value.type == ValueType::kFloat && !std::isfinite(value.number)) return &value;
  for (const TomlValue& child : value.children)
    if (const TomlValue* found = not_finite(child)) return found;
  return nullptr;
}

// The tables of the schema directly inside `table`, each by the last part of its name.
std::vector<std::string> tables_inside(const Schema& schema, const std::string& table) {
  std::vector<std::string> names;
  for (const TableSpec& spec : schema.tables) {
    const size_t dot = spec.name.rfind('.');
    const std::string parent = dot == std::string::npos ? "" : spec.name.substr(0, dot);
    if (!spec.name.empty() && parent == table)
      names.push_back(dot == std::string::npos ? spec.name : spec.name.substr(dot + 1));
  }
  return names;
}

// The text to write in place of `table = value`. For a slot, the user meant the name of the plugin.
std::string table_advice(const TableSpec& table, const TomlValue& value) {
  const bool names_plugin = value.type == ValueType::kString && table.slot != SlotForm::kNone;
  if (!names_plugin) return "[" + table.name + "]";
  const bool is_list = table.slot == SlotForm::kList;
  const bool on_command_line = value.origin.kind == Origin::Kind::kOverride;
  const std::string_view ours = table.name == "optimizer" ? foreign_optimizer(value.string) : "";
  const std::string name = !ours.empty() && !on_command_line ? fmt::format("\"{}\"", ours)
                           : !ours.empty()                   ? std::string(ours)
                           : on_command_line                 ? printable(value.string)
                                                             : toml_text(value);
  const std::string item = is_list && !on_command_line ? "[" + name + "]" : name;
  return table.name + "." + (is_list ? table.list_key : "plugin") + (on_command_line ? "=" : " = ") + item;
}

bool has_foreign_key(const TomlValue& table, const std::string& key) {
  return is_foreign_table(key) ||
         std::any_of(table.children.begin(), table.children.end(),
                     [&](const TomlValue& child) { return find_foreign_key(joined_key(key, child.name)) != nullptr; });
}

}  // namespace

void Config::unknown_key(const TomlValue& child, const std::string& key, const std::vector<std::string>& known) {
  const bool is_group =
      child.is_table() || (child.is_array() && !child.children.empty() && child.children[0].is_table());
  if (child.is_table() && !child.children.empty() && has_foreign_key(child, key)) {
    for (const TomlValue& inside : child.children) unknown_key(inside, joined_key(key, inside.name), {});
    return;
  }
  const std::string leaf = key.substr(key.rfind('.') == std::string::npos ? 0 : key.rfind('.') + 1);
  const std::string name = printable(key);
  std::string text = "unknown key '" + name + "'";
  if (is_group) text = child.is_array() ? "unknown table [[" + name + "]]" : "unknown table [" + name + "]";
  if (const ForeignKey* foreign = find_foreign_key(without_indexes(key))) {
    text += fmt::format(" of {}: {}", foreign->trainer, foreign->answer);
  } else if (const std::string elsewhere = key_elsewhere(*schema_, leaf); !elsewhere.empty() && !is_group) {
    text += fmt::format(" (it is a key of another table: {})", elsewhere);
  } else if (const std::string near = nearest(leaf, known); !near.empty()) {
    text += fmt::format(" (did you mean '{}'?)", near);
  } else if (!known.empty() && known.size() <= kMaxNames) {
    std::string all;
    for (const std::string& other : known) all += (all.empty() ? "" : ", ") + other;
    text += fmt::format(" (known here: {})", all);
  }
  problems_.push_back({where_of(child), std::move(text)});
}

bool Config::check_value(TomlValue& value, const OptionSpec& spec, const std::string& key) {
  const ValueType wanted = wanted_type(spec.type);
  // On the command line run.name=123 means the text.
  if (spec.type == OptionType::kString && value.origin.kind == Origin::Kind::kOverride &&
      value.type != ValueType::kString && !value.is_table() && !value.is_array()) {
    value.type = ValueType::kString;
    value.string = value.typed_text;
  }
  // A key may have "true" as a choice.
  if (value.type == ValueType::kBool && spec.type == OptionType::kString &&
      std::find(spec.choices.begin(), spec.choices.end(), toml_text(value)) != spec.choices.end()) {
    value.string = toml_text(value);
    value.type = ValueType::kString;
  }
  const auto widen = [&](TomlValue& v) {
    if (wanted == ValueType::kFloat && v.type == ValueType::kInt) {
      v.type = ValueType::kFloat;
      v.number = static_cast<double>(v.integer);
    }
  };
  widen(value);
  // On the command line log.sinks=console,jsonl means both. A regular expression may contain commas.
  if (is_list(spec.type) && value.origin.kind == Origin::Kind::kOverride && value.type == ValueType::kString &&
      value.string == value.typed_text && (!spec.is_pattern || value.string.find(',') == std::string::npos)) {
    split_words(value, wanted);
  }
  const size_t before = problems_.size();
  const auto expand = [&](TomlValue& v) {
    const std::string written = shown(v);
    if (!spec.is_path || v.type != ValueType::kString) return;
    const auto problem = spec.may_be_hub && v.string.starts_with("hub:") ? expand_hub(v.string) : expand_home(v.string);
    if (problem) problems_.push_back({v.origin.where, fmt::format("{} = {}: {}", key, written, *problem)});
  };
  expand(value);
  if (is_list(spec.type) && value.is_array()) {
    const TomlValue* first_of_other_type = nullptr;
    size_t num_of_other_type = 0;
    for (TomlValue& item : value.children) {
      widen(item);
      expand(item);
      if (item.type != wanted) {
        if (num_of_other_type++ == 0) first_of_other_type = &item;
      } else if (std::string problem = content_problem(spec, item, key); !problem.empty()) {
        problems_.push_back({item.origin.where, std::move(problem)});
      }
    }
    if (first_of_other_type != nullptr) {
      const TomlValue& item = *first_of_other_type;
      std::string problem =
          fmt::format("{} must be {}; {} is {}", key, type_text(spec.type), shown(item), type_text(item.type));
      if (num_of_other_type > 1)
        problem += fmt::format(", and {} more item{} of other types", num_of_other_type - 1,
                               num_of_other_type == 2 ? " is" : "s are");
      problems_.push_back({item.origin.where, std::move(problem)});
    }
  } else if (is_list(spec.type) || value.type != wanted) {
    problems_.push_back(
        {value.origin.where, fmt::format("{} must be {}, not {} ({}){}", key, type_text(spec.type),
                                         type_text(value.type), shown(value), type_advice(spec, value))});
  } else if (const TomlValue* number = not_finite(value); number != nullptr && value.is_table()) {
    problems_.push_back({number->origin.where, fmt::format("{}: {} = {} is not a finite number", key,
                                                           printable(number->name), shown(*number))});
  } else if (std::string problem = content_problem(spec, value, key); !problem.empty()) {
    problems_.push_back({value.origin.where, std::move(problem)});
  }
  if (problems_.size() == before) return true;
  invalid_.insert(key);
  return false;
}

void Config::check_table(TomlValue& table, const TableSpec& spec, const std::string& key) {
  if (is_unavailable(spec.name)) return;  // cross_check() reports it
  for (size_t i = 0; i < table.children.size(); ++i) check_child(table.children[i], table, spec, key, i);
  for (const OptionSpec& option : spec.keys) {
    if (!option.required || table.find(option.name) != nullptr) continue;
    const std::string missing = joined_key(key, option.name);
    if (!is_needed(missing, use_)) continue;
    if (invalid_.insert(missing).second) {
      problems_.push_back({position(key), fmt::format("{} is missing: {}", missing, option.doc)});
    }
  }
}

// May remove the child if it is invalid, and then decrements `index`.
void Config::check_child(TomlValue& child, TomlValue& table, const TableSpec& spec, const std::string& key,
                         size_t& index) {
  const std::string child_key = joined_key(key, child.name);
  if (const OptionSpec* option = spec.find(child.name)) {
    if (!check_value(child, *option, child_key)) {
      table.children.erase(table.children.begin() + static_cast<ptrdiff_t>(index));
      --index;
    }
    return;
  }
  if (const TableSpec* inner = schema_->find(joined_key(spec.name, child.name))) {
    if (inner->is_array && !child.is_array()) {
      problems_.push_back(
          {where_of(child), fmt::format("{} must be a list of tables: write [[{}]]", child_key, child_key)});
      table.children.erase(table.children.begin() + static_cast<ptrdiff_t>(index--));
    } else if (!inner->is_array && !child.is_table() && is_unavailable(inner->name)) {
      const auto entry = std::ranges::find(unavailable(), std::string_view(inner->name), &Unavailable::key);
      problems_.push_back({where_of(child), fmt::format("{} = {} is not available in this version: {}", child_key,
                                                        shown(child), entry->instead)});
      table.children.erase(table.children.begin() + static_cast<ptrdiff_t>(index--));
    } else if (!inner->is_array && !child.is_table()) {
      const std::string_view method = foreign_method(child_key, child.string);
      problems_.push_back(
          {where_of(child),
           fmt::format("{} must be a table, not {} ({}): {}", child_key, type_text(child.type), shown(child),
                       method.empty() ? "write " + table_advice(*inner, child) : std::string(method))});
      table.children.erase(table.children.begin() + static_cast<ptrdiff_t>(index--));
    } else if (inner->is_array) {
      for (size_t i = 0; i < child.children.size(); ++i) {
        const std::string item_key = joined_key(child_key, std::to_string(i));
        TomlValue& item = child.children[i];
        if (item.is_table()) {
          check_table(item, *inner, item_key);
        } else {
          problems_.push_back({item.origin.where, fmt::format("{} must be a table, not {} ({})", item_key,
                                                              type_text(item.type), shown(item))});
        }
      }
    } else {
      check_table(child, *inner, child_key);
    }
    return;
  }
  if (spec.slot == SlotForm::kOne) return;  // perhaps an option of the plugin: check_plugin_options() checks it
  std::vector<std::string> known = offered_keys(spec.name, spec.keys);
  for (std::string& name : tables_inside(*schema_, spec.name))
    if (!is_unavailable(joined_key(spec.name, name))) known.push_back(std::move(name));
  if (spec.slot == SlotForm::kList && child.is_table()) {
    std::vector<std::string> members;
    const TomlValue* list = table.find(spec.list_key);
    const TomlValue preset = from_json(parse_json(spec.find(spec.list_key)->default_json, spec.list_key), Origin{});
    for (const TomlValue& item : (list != nullptr && list->is_array() ? *list : preset).children) {
      members.emplace_back(without_version(item.string));
    }
    if (std::find(members.begin(), members.end(), child.name) != members.end()) return;
    if (std::find(members.begin(), members.end(), "auto") != members.end())
      return;  // only the session knows the candidates
    std::string text = fmt::format("[{}]: '{}' is not in {}", child_key, child.name, joined_key(key, spec.list_key));
    if (const std::string near = nearest(child.name, members); !near.empty()) {
      text += fmt::format(" (did you mean '{}'?)", near);
    }
    problems_.push_back({where_of(child), std::move(text)});
    return;
  }
  unknown_key(child, child_key, known);
}

void Config::fill_defaults(TomlValue& parent, const TableSpec& spec, const std::string& key) {
  const std::string leaf = key.substr(key.rfind('.') == std::string::npos ? 0 : key.rfind('.') + 1);
  TomlValue* table = spec.name.empty() ? &parent : parent.find(leaf);
  if (table == nullptr) {
    if (spec.is_optional || spec.is_array) return;
    table = &parent.set(leaf, TomlValue{});
  }
  const auto fill = [&](TomlValue& one) {
    for (const OptionSpec& option : spec.keys) {
      if (option.default_json.empty() || one.find(option.name) != nullptr) continue;
      TomlValue value = from_json(parse_json(option.default_json, option.name), Origin{});
      if (option.type == OptionType::kFloat && value.type == ValueType::kInt) {
        value.type = ValueType::kFloat;
        value.number = static_cast<double>(value.integer);
      }
      one.set(option.name, std::move(value));
    }
  };
  if (spec.is_array) {
    for (TomlValue& item : table->children) fill(item);
    return;
  }
  fill(*table);
  if (spec.name.empty()) return;
  for (const std::string& name : tables_inside(*schema_, spec.name)) {
    fill_defaults(*table, *schema_->find(joined_key(spec.name, name)), joined_key(key, name));
  }
}

}  // namespace chassis
