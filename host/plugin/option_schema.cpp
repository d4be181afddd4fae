// Reading and validation of option schemas, and checks of option values.
#include "host/plugin/option_schema.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "host/base/json.hpp"
#include "host/plugin/sized.hpp"
#include "host/plugin/status.hpp"

namespace chassis {
namespace {

constexpr uint32_t kMaxOptions = 1024;

OptionType type_of(const chassis_option_t& option, const std::string& label) {
  switch (option.type) {
    case CHASSIS_OPTION_BOOL:
      return OptionType::kBool;
    case CHASSIS_OPTION_INT:
      return OptionType::kInt;
    case CHASSIS_OPTION_FLOAT:
      return OptionType::kFloat;
    case CHASSIS_OPTION_STRING:
      return OptionType::kString;
    case CHASSIS_OPTION_STRING_LIST:
      return OptionType::kStringList;
    case CHASSIS_OPTION_INT_LIST:
      return OptionType::kIntList;
    case CHASSIS_OPTION_FLOAT_LIST:
      return OptionType::kFloatList;
    case CHASSIS_OPTION_TABLE:
      return OptionType::kTable;
    default:
      break;
  }
  throw plugin_error(fmt::format("{}: option '{}' has type {}, this host knows 1 to {}", label, view_of(option.name),
                                 option.type, CHASSIS_OPTION_TABLE));
}

bool is_key(std::string_view name) {
  return !name.empty() && name.size() <= 128 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

bool has_type(OptionType type, const Json& value) {
  const auto all = [&](auto predicate) {
    return value.is_array() && std::all_of(value.begin(), value.end(), predicate);
  };
  switch (type) {
    case OptionType::kBool:
      return value.is_boolean();
    case OptionType::kInt:
      return value.is_number_integer();
    case OptionType::kFloat:
      return value.is_number();
    case OptionType::kString:
      return value.is_string();
    case OptionType::kStringList:
      return all([](const Json& item) { return item.is_string(); });
    case OptionType::kIntList:
      return all([](const Json& item) { return item.is_number_integer(); });
    case OptionType::kFloatList:
      return all([](const Json& item) { return item.is_number(); });
    case OptionType::kTable:
      return value.is_object();
  }
  return false;
}

// Why the value is not valid; empty if it is.
std::string misfit(const OptionSpec& spec, const Json& value) {
  if (!has_type(spec.type, value)) return fmt::format("expected {}", type_text(spec.type));
  const auto item_misfit = [&](const Json& item) -> std::string {
    if (item.is_number() &&
        ((spec.min && item.get<double>() < *spec.min) || (spec.max && item.get<double>() > *spec.max))) {
      return "expected " + range_text(spec);
    }
    if (item.is_string() && !spec.choices.empty() &&
        std::find(spec.choices.begin(), spec.choices.end(), item.get<std::string>()) == spec.choices.end()) {
      return "expected " + choices_text(spec.choices);
    }
    return "";
  };
  if (!value.is_array()) return item_misfit(value);
  for (const Json& item : value) {
    if (std::string text = item_misfit(item); !text.empty()) return text;
  }
  return "";
}

OptionSpec read_option(const chassis_option_t& option, const std::string& label) {
  OptionSpec spec;
  spec.name = view_of(option.name);
  if (!is_key(spec.name)) {
    throw plugin_error(fmt::format("{}: '{}' is not a valid option name; use a-z, 0-9 and '_'", label, spec.name));
  }
  spec.type = type_of(option, label);
  spec.default_json = view_of(option.default_json);
  spec.doc = view_of(option.doc);
  spec.required = spec.default_json.empty();
  const auto refuse = [&](const std::string& what) {
    return plugin_error(fmt::format("{}: option '{}' {}", label, spec.name, what));
  };
  const bool is_number = spec.type == OptionType::kInt || spec.type == OptionType::kFloat ||
                         spec.type == OptionType::kIntList || spec.type == OptionType::kFloatList;
  const bool is_string = spec.type == OptionType::kString || spec.type == OptionType::kStringList;
  if (option.has_range != 0) {
    if (!is_number) throw refuse("has a range but is not a number");
    if (!(option.min <= option.max)) throw refuse(fmt::format("has the empty range {} to {}", option.min, option.max));
    // An infinite bound is no bound.
    if (option.min > -std::numeric_limits<double>::max()) spec.min = option.min;
    if (option.max < std::numeric_limits<double>::max()) spec.max = option.max;
  }
  if (option.num_choices != 0) {
    if (!is_string) throw refuse("has choices but is not a string");
    if (option.choices == nullptr || option.num_choices > kMaxOptions) throw refuse("has damaged choices");
    for (uint32_t i = 0; i < option.num_choices; ++i) spec.choices.emplace_back(view_of(option.choices[i]));
  }
  if (!spec.required) {
    Json value;
    try {
      value = parse_json(spec.default_json, "default", ExitCode::kPlugin);
    } catch (const Error& error) {
      throw refuse(fmt::format("has the default {}, which is not valid JSON", spec.default_json)).caused_by(error);
    }
    if (const std::string text = misfit(spec, value); !text.empty()) {
      throw refuse(fmt::format("has the default {}, {}", spec.default_json, text));
    }
  }
  return spec;
}

}  // namespace

std::vector<OptionSpec> read_option_specs(const chassis_member_t& member, const std::string& label) {
  std::vector<OptionSpec> specs;
  if (member.num_options == 0) return specs;
  if (member.options == nullptr || member.num_options > kMaxOptions) {
    throw plugin_error(fmt::format("{}: claims {} options, at most {} are allowed", label, member.num_options,
                                   member.options == nullptr ? 0 : kMaxOptions));
  }
  const uint32_t item_bytes = member.options->struct_size;
  if (item_bytes % alignof(chassis_option_t) != 0)
    throw plugin_error(fmt::format("{}: describes an option in {} bytes, expected a multiple of {}", label, item_bytes,
                                   alignof(chassis_option_t)));
  std::set<std::string> names;
  for (uint32_t i = 0; i < member.num_options; ++i) {
    const chassis_option_t* option = sized_item(member.options, i);
    if (option->struct_size != item_bytes) {
      throw plugin_error(fmt::format("{}: describes option {} in {} bytes and option 0 in {}", label, i,
                                     option->struct_size, item_bytes));
    }
    specs.push_back(read_option(read_struct(option, fmt::format("{}: the description of option {}", label, i)), label));
    if (!names.insert(specs.back().name).second) {
      throw plugin_error(fmt::format("{}: has two options '{}'", label, specs.back().name));
    }
  }
  return specs;
}

void check_option(const OptionSpec& spec, const Json& value, const std::string& label) {
  const std::string text = misfit(spec, value);
  if (!text.empty()) throw config_error(fmt::format("{}: option '{}' is {}, {}", label, spec.name, value.dump(), text));
}

Json default_options(const std::vector<OptionSpec>& specs, const std::string& label) {
  Json options = Json::object();
  for (const OptionSpec& spec : specs) {
    if (spec.required)
      throw config_error(fmt::format("{}: option '{}' has no default and must be set", label, spec.name));
    options[spec.name] = parse_json(spec.default_json, "default of " + spec.name, ExitCode::kPlugin);
  }
  return options;
}

}  // namespace chassis
