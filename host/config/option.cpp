// Words for types, ranges and choices, the same in errors and in documentation.
#include "host/config/option.hpp"

#include <fmt/core.h>

#include "host/base/json.hpp"

namespace chassis {
namespace {

std::string number(double value) { return fmt::format("{}", value); }

}  // namespace

const char* to_text(Change change) {
  switch (change) {
    case Change::kRestart:
      return "restart";
    case Change::kSwap:
      return "swap";
    case Change::kHot:
      return "hot";
  }
  return "";
}

const char* type_text(OptionType type) {
  switch (type) {
    case OptionType::kBool:
      return "true or false";
    case OptionType::kInt:
      return "an integer";
    case OptionType::kFloat:
      return "a number";
    case OptionType::kString:
      return "a string";
    case OptionType::kStringList:
      return "a list of strings";
    case OptionType::kIntList:
      return "a list of integers";
    case OptionType::kFloatList:
      return "a list of numbers";
    case OptionType::kTable:
      break;
  }
  return "a table";
}

std::string range_text(const OptionSpec& spec) {
  if (spec.min && spec.max) return "between " + number(*spec.min) + " and " + number(*spec.max);
  if (spec.min) return "at least " + number(*spec.min);
  if (spec.max) return "at most " + number(*spec.max);
  return "";
}

std::string choices_text(const std::vector<std::string>& choices) {
  std::string text;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) text += i + 1 == choices.size() ? " or " : ", ";
    const bool is_truth = choices[i] == "true" || choices[i] == "false";
    text += is_truth ? choices[i] : '"' + choices[i] + '"';
  }
  return text;
}

Json option_json(const OptionSpec& spec) {
  constexpr const char* kTypes[] = {"bool", "int", "float", "string", "string_list", "int_list", "float_list", "table"};
  return {{"name", spec.name},
          {"type", kTypes[static_cast<size_t>(spec.type)]},
          {"default", spec.default_json.empty() ? Json() : Json::parse(spec.default_json, nullptr, false)},
          {"min", spec.min ? Json(*spec.min) : Json()},
          {"max", spec.max ? Json(*spec.max) : Json()},
          {"choices", spec.choices},
          {"required", spec.required},
          {"doc", spec.doc}};
}

}  // namespace chassis
