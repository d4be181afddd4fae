// The signs by which the format of a row is guessed.
#include "host/data/missing_key.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "host/base/printable.hpp"

namespace chassis {
namespace {

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

}  // namespace

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
