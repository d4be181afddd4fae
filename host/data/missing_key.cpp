// The signs by which the format of a row is guessed.
#include "host/data/missing_key.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>

#include "host/base/printable.hpp"
#include "host/config/task_text.hpp"

namespace chassis {
namespace {

struct Sign {
  DataFormat format;
  std::array<std::string_view, 2> keys;
};
// In the order in which a row is compared with them: a row of preferences may also have messages.
constexpr Sign kSigns[] = {
    {DataFormat::kPreference, {"chosen", "rejected"}},
    {DataFormat::kPreference, {"chosen_response", "rejected_response"}},
    {DataFormat::kRollouts, {"completions", "completions"}},
    {DataFormat::kDistillation, {"target_token_ids", "target_logprobs"}},
    {DataFormat::kLabelled, {"kto_tag", "kto_tag"}},
    {DataFormat::kLabelled, {"completion", "label"}},
    {DataFormat::kTokens, {"input_ids", "input_ids"}},
    {DataFormat::kSegments, {"segments", "segments"}},
    {DataFormat::kClassification, {"text", "label"}},
    {DataFormat::kMessages, {"messages", "messages"}},
    {DataFormat::kShareGpt, {"conversations", "conversations"}},
    {DataFormat::kPromptCompletion, {"prompt", "completion"}},
    {DataFormat::kAlpaca, {"instruction", "output"}},
    {DataFormat::kText, {"text", "text"}},
};

// "\"preference\" or \"reward\"": the tasks with an objective that train the format. Empty: others do.
std::string objective_tasks(DataFormat format) {
  const bool has_other = std::ranges::any_of(kTasks, [&](const TaskSpec& task) {
    return task.objective.empty() && std::ranges::count(task.formats, format) > 0;
  });
  return has_other ? "" : tasks_text(format);
}

}  // namespace

Error missing_key_error(DataFormat format, const RowFields& row, std::string_view name) {
  std::set<std::string_view> keys;
  for (const auto [key, value] : row.object()) keys.insert(key);
  const std::string path = row.path(name);
  Error error = row.place().error(keys.contains(path) ? fmt::format("\"{}\" is null", printable(path))
                                                      : fmt::format("key \"{}\" is missing", printable(path)));
  for (const auto& [other, signs] : kSigns) {
    if (other == format || !keys.contains(signs[0]) || !keys.contains(signs[1])) continue;
    const std::string tasks = objective_tasks(other);
    std::string hint = fmt::format("the row looks like format \"{0}\": set format = \"{0}\"", to_text(other));
    if (!tasks.empty()) hint += " with train.task = " + tasks;
    const std::string_view answers[] = {"messages", "conversations", "completion", "output", "text"};
    if (other == DataFormat::kPreference && std::ranges::count(answers, name) > 0)
      hint += fmt::format("; columns = {{ {} = \"{}\" }} trains the better answers alone", name, signs[0]);
    return error.hint(hint);
  }
  if (keys.contains(path)) return error.hint("give it a value, or remove the row");
  std::string found;
  for (const std::string_view key : keys) found += fmt::format("{}\"{}\"", found.empty() ? "" : ", ", key);
  return error.hint(fmt::format("the row has {}; another name is given by columns = {{ {} = \"…\" }}",
                                found.empty() ? "no keys" : printable(found), name));
}

}  // namespace chassis
