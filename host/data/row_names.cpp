// One table of names, and the signs by which the format of a row is guessed.
#include "host/data/row_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "host/base/printable.hpp"
#include "host/data/json_row.hpp"

namespace chassis {
namespace {

using Names = std::vector<std::string_view>;

// In the order in which a row is compared with them: a row of preferences may also have messages.
constexpr std::array<std::pair<DataFormat, std::array<std::string_view, 2>>, 8> kSigns{{
    {DataFormat::kPreference, {"chosen", "rejected"}},
    {DataFormat::kTokens, {"input_ids", "input_ids"}},
    {DataFormat::kSegments, {"segments", "segments"}},
    {DataFormat::kMessages, {"messages", "messages"}},
    {DataFormat::kShareGpt, {"conversations", "conversations"}},
    {DataFormat::kPromptCompletion, {"prompt", "completion"}},
    {DataFormat::kAlpaca, {"instruction", "output"}},
    {DataFormat::kText, {"text", "text"}},
}};

std::string listed(const Names& names) {
  std::string text;
  for (const std::string_view name : names) text += fmt::format("{}\"{}\"", text.empty() ? "" : ", ", name);
  return text;
}

}  // namespace

const Names& column_names(DataFormat format) {
  static const std::map<DataFormat, Names> kNames{
      {DataFormat::kText, {"text"}},
      {DataFormat::kAlpaca, {"instruction", "output", "input", "system", "history"}},
      {DataFormat::kShareGpt, {"conversations", "system", "tools"}},
      {DataFormat::kMessages, {"messages", "tools"}},
      {DataFormat::kPromptCompletion, {"prompt", "completion", "tools"}},
      {DataFormat::kSegments, {"segments"}},
      {DataFormat::kTokens, {"input_ids", "labels", "attention_mask"}},
      {DataFormat::kPreference,
       {"chosen", "rejected", "prompt", "instruction", "input", "conversations", "messages", "system", "tools",
        "margin"}},
  };
  return kNames.at(format);
}

const Names& tag_names(DataFormat format) {
  static const Names kMessageTags{"role",  "content", "reasoning", "tool_calls", "tool_call_id", "name",
                                  "train", "user",    "assistant", "system",     "tool",         "function_call"};
  static const Names kSegmentTags{"text", "label"};
  static const Names kNone;
  switch (format) {
    case DataFormat::kShareGpt:
    case DataFormat::kMessages:
    case DataFormat::kPromptCompletion:
    case DataFormat::kPreference:
      return kMessageTags;
    case DataFormat::kSegments:
      return kSegmentTags;
    default:
      return kNone;
  }
}

void require_names(DataFormat format, std::string_view option, const std::map<std::string, std::string>& renamed) {
  const Names& known = option == "tags" ? tag_names(format) : column_names(format);
  std::map<std::string_view, std::string_view> taken;
  for (const auto& [name, key] : renamed) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      throw config_error(fmt::format("{}: format \"{}\" has no \"{}\"{}", option, to_text(format), printable(name),
                                     known.empty() ? "" : "; it has " + listed(known)))
          .hint(fmt::format("{0} = {{ {1} = \"key in the file\" }}", option, known.empty() ? "name" : known.front()));
    }
    if (key.empty()) throw config_error(fmt::format("{}: the key for \"{}\" is empty", option, name));
    const auto [other, is_new] = taken.emplace(key, name);
    if (!is_new)
      throw config_error(
          fmt::format("{}: \"{}\" and \"{}\" are both \"{}\"", option, other->second, name, printable(key)));
  }
}

KeyNames renamed_keys(const Names& names, const std::map<std::string, std::string>& renamed) {
  KeyNames keys;
  for (const std::string_view name : names) {
    const auto found = renamed.find(std::string(name));
    keys.emplace_back(name, found == renamed.end() ? std::string(name) : found->second);
  }
  // A key that stands for another name is not read twice.
  for (auto& [name, key] : keys) {
    if (key != name || renamed.contains(name)) continue;
    for (const auto& [other, taken] : renamed) {
      if (taken == name) key.clear();
    }
  }
  std::erase_if(keys, [](const auto& item) { return item.second.empty(); });
  return keys;
}

Error missing_key_error(DataFormat format, const RowFields& row, std::string_view name) {
  std::set<std::string_view> keys;
  for (const auto [key, value] : row.object()) keys.insert(key);
  const std::string path = row.path(name);
  Error error = row.place().error(keys.contains(path) ? fmt::format("\"{}\" is null", printable(path))
                                                      : fmt::format("key \"{}\" is missing", printable(path)));
  for (const auto& [other, signs] : kSigns) {
    if (other == format || !keys.contains(signs[0]) || !keys.contains(signs[1])) continue;
    if (other != DataFormat::kPreference)
      return error.hint(fmt::format("the row looks like format \"{0}\": set format = \"{0}\"", to_text(other)));
    const std::string_view answers[] = {"messages", "conversations", "completion", "output", "text"};
    const bool is_answer = std::ranges::count(answers, name) > 0;
    return error.hint(
        "the row looks like format \"preference\", which no task of this version trains" +
        (is_answer ? fmt::format("; columns = {{ {} = \"chosen\" }} trains the better answers", name) : ""));
  }
  if (keys.contains(path)) return error.hint("give it a value, or remove the row");
  std::string found;
  for (const std::string_view key : keys) found += fmt::format("{}\"{}\"", found.empty() ? "" : ", ", key);
  return error.hint(fmt::format("the row has {}; another name is given by columns = {{ {} = \"…\" }}",
                                found.empty() ? "no keys" : printable(found), name));
}

}  // namespace chassis
