// Keys that belong to some tasks: those with answers mask and pack conversations, pretrain fills rows with documents,
// and only some minimise an objective.
#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "host/config/cross_check.hpp"
#include "host/config/task_text.hpp"

namespace chassis {
namespace {

// How conversations become text, which [[eval.generate]] may need too.
constexpr const char* kTemplateKeys[] = {"data.template", "data.template_variables", "data.template_date",
                                         "data.default_system", "data.reasoning"};
// The other keys that only conversations need.
constexpr const char* kChatKeys[] = {"data.roles_to_train", "data.train_on_prompt", "data.last_turn_only",
                                     "data.on_refused"};

}  // namespace

bool CrossCheck::is_changed(const std::string& key) const {
  if (!valid(key) || !set_by_user(key)) return false;
  const TomlValue& value = *find(key);
  if (value.is_table()) return !value.children.empty();
  constexpr std::string_view kTable = "data.";
  return toml_text(value) != config_.schema_->find("data")->find(key.substr(kTable.size()))->default_json;
}

void CrossCheck::check_data_task() {
  if (!valid("train.task") || config_.use() == ConfigUse::kGeneration) return;  // generation has its own conversations
  const TaskSpec& task = spec_of(config_.settings().train.task);
  check_formats(task);
  check_objective(task);
  if (!task.has_answers) {
    check_other_task();
  } else if (is_true("data.train_on_prompt")) {
    if (!task.objective.empty())
      add_problem("data.train_on_prompt", fmt::format("{} has no effect with {}, whose objective reads answers alone",
                                                      shown("data.train_on_prompt"), shown("train.task")));
    for (const char* key : {"data.roles_to_train", "data.last_turn_only"}) {
      if (is_changed(key))
        add_problem(key, fmt::format("{} has no effect with data.train_on_prompt = true, which trains every token",
                                     shown(key)));
    }
  }
  check_classes();
  check_packing();
}

void CrossCheck::check_classes() {
  if (!is_changed("data.classes")) return;
  if (!is("train.task", Task::kClassify))
    add_problem("data.classes", fmt::format("{} has no effect with {}", shown("data.classes"), shown("train.task")));
  std::set<std::string> names;
  for (const std::string& name : get_list("data.classes"))
    if (!names.insert(name).second) add_problem("data.classes", fmt::format("data.classes names \"{}\" twice", name));
}

void CrossCheck::check_formats(const TaskSpec& task) {
  for (const std::string sets : {"data.train", "data.eval"}) {
    for (size_t i = 0; i < count(sets); ++i) {
      const std::string key = fmt::format("{}.{}.format", sets, i);
      if (!valid(key)) continue;
      if (std::ranges::any_of(task.formats, [&](DataFormat format) { return is(key, format); })) continue;
      const std::optional<DataFormat> format = choice_from<DataFormat>(get_string(key));
      add_problem(key, config_error(fmt::format("{} does not fit {}, whose rows have format {}", shown(key),
                                                shown("train.task"), formats_text(task)))
                           .hint("set the format, or train.task = " + tasks_text(*format)));
    }
  }
}

void CrossCheck::check_objective(const TaskSpec& task) {
  if (!task.objective.empty()) return;
  if (const TomlValue* table = find("objective"); table != nullptr && !table->children.empty()) {
    const std::string key = "objective." + table->children.front().name;
    add_problem(key, fmt::format("{} has no effect with {}, which minimises the cross entropy of tokens", shown(key),
                                 shown("train.task")));
  }
  for (const auto& [key, by_default] :
       {std::pair("reference.mode", "online"), {"reference.path", ""}, {"eval.metric", "loss"}})
    if (set_by_user(key) && !is(key, by_default))
      add_problem(key, fmt::format("{} has no effect with {}", shown(key), shown("train.task")));
}

// Refuses what only tasks with answers understand.
void CrossCheck::check_other_task() {
  const auto refuse = [&](const char* key) {
    if (is_changed(key))
      add_problem(key,
                  fmt::format("{} has no effect with {}, whose rows are documents", shown(key), shown("train.task")));
  };
  for (const char* key : kChatKeys) refuse(key);
  if (count("eval.generate") == 0)
    for (const char* key : kTemplateKeys) refuse(key);
}

void CrossCheck::check_packing() {
  const Task task = config_.settings().train.task;
  const std::string packing =
      valid("data.packing") ? get_string("data.packing") : std::string(to_text(default_packing(task)));
  if (packing != to_text(Packing::kNone) && is_changed("data.pad_to_seq_len"))
    add_problem("data.pad_to_seq_len",
                fmt::format("{} has no effect with data.packing = \"{}\", whose rows always have train.seq_len tokens",
                            shown("data.pad_to_seq_len"), packing));
  if (!spec_of(task).objective.empty()) {
    if (packing == to_text(Packing::kConcatSplit))
      add_problem("data.packing",
                  fmt::format("data.packing = \"concat_split\" would divide the sequences that {} compares",
                              shown("train.task")));
    if (task != Task::kClassify && is("data.overflow", Overflow::kTruncate))
      add_problem("data.overflow", fmt::format("{} would cut the answers that {} compares (try \"drop\" or "
                                               "\"truncate_left_prompt\")",
                                               shown("data.overflow"), shown("train.task")));
    return;
  }
  if (!valid("data.overflow") || is("data.overflow", Overflow::kError)) return;
  if (packing == to_text(Packing::kConcatSplit)) {
    add_problem("data.overflow",
                fmt::format("{} has no effect with data.packing = \"concat_split\"{}, which splits documents",
                            shown("data.overflow"), has("data.packing") ? "" : " (the default)"));
  } else if (!spec_of(task).has_answers && is("data.overflow", Overflow::kTruncateLeftPrompt)) {
    add_problem("data.overflow", fmt::format("{} has no effect with {}, whose rows have no prompts (try \"truncate\")",
                                             shown("data.overflow"), shown("train.task")));
  }
}

}  // namespace chassis
