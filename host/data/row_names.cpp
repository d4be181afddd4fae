// One table of names.
#include "host/data/row_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "host/base/printable.hpp"

namespace chassis {
namespace {

using Names = std::vector<std::string_view>;

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

}  // namespace chassis
