// One table of names.
#include "host/data/row_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "host/base/printable.hpp"

namespace chassis {
namespace {

using Names = std::vector<std::string_view>;

// Other keys in use for a column.
struct Synonym {
  DataFormat format;
  std::string_view name, key;
};
constexpr Synonym kSynonyms[] = {
    {DataFormat::kPreference, "chosen", "chosen_response"},
    {DataFormat::kPreference, "rejected", "rejected_response"},
    {DataFormat::kPreference, "prompt", "question"},
    {DataFormat::kPreference, "prompt", "context"},
    {DataFormat::kLabelled, "label", "kto_tag"},
    {DataFormat::kLabelled, "completion", "output"},
    {DataFormat::kLabelled, "prompt", "question"},
    {DataFormat::kLabelled, "prompt", "context"},
    {DataFormat::kRollouts, "prompt", "question"},
    {DataFormat::kDistillation, "prompt", "question"},
};

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
       {"chosen", "rejected", "prompt", "instruction", "input", "history", "conversations", "messages", "system",
        "tools", "margin"}},
      {DataFormat::kLabelled,
       {"completion", "label", "prompt", "instruction", "input", "history", "conversations", "messages", "system",
        "tools"}},
      {DataFormat::kClassification,
       {"text", "label", "labels", "value", "values", "prompt", "completion", "conversations", "messages", "system",
        "tools"}},
      {DataFormat::kRollouts,
       {"completions", "prompt", "instruction", "input", "history", "conversations", "messages", "system", "tools"}},
      {DataFormat::kDistillation,
       {"completion", "prompt", "instruction", "input", "history", "conversations", "messages", "system", "tools",
        "input_ids", "labels", "attention_mask", "logprobs", "target_token_ids", "target_logprobs", "target_mask"}},
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
    case DataFormat::kLabelled:
    case DataFormat::kClassification:
    case DataFormat::kRollouts:
    case DataFormat::kDistillation:
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

KeyNames row_keys(DataFormat format, const std::map<std::string, std::string>& columns) {
  KeyNames keys = renamed_keys(column_names(format), columns);
  for (const Synonym& synonym : kSynonyms) {
    if (synonym.format != format || columns.contains(std::string(synonym.name))) continue;
    const bool is_taken = std::ranges::any_of(keys, [&](const auto& item) { return item.second == synonym.key; });
    if (!is_taken) keys.emplace_back(synonym.name, synonym.key);
  }
  return keys;
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
