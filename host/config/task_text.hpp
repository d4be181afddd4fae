// Lists of the formats and tasks of the table, for messages.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "host/config/task_table.hpp"

namespace chassis {

// "\"a\", \"b\" or \"c\"".
inline std::string any_of_names(const std::vector<std::string_view>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " or " : ", ";
    text.append("\"").append(names[i]).append("\"");
  }
  return text;
}

// "\"preference\" or \"labelled\"": the formats of a task.
inline std::string formats_text(const TaskSpec& task) {
  std::vector<std::string_view> names;
  for (const DataFormat format : task.formats) names.push_back(to_text(format));
  return any_of_names(names);
}

// "\"preference\" or \"reward\"": the tasks that train rows of a format.
inline std::string tasks_text(DataFormat format) {
  std::vector<std::string_view> names;
  for (const TaskSpec& task : kTasks)
    if (std::ranges::count(task.formats, format) > 0) names.push_back(to_text(task.task));
  return any_of_names(names);
}

}  // namespace chassis
