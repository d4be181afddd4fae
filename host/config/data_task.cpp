// Keys of [data] that belong to one task: sft masks and packs conversations, pretrain fills rows with documents.
#include <fmt/core.h>

#include <string>
#include <string_view>

#include "host/config/cross_check.hpp"

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
  if (!is("train.task", Task::kSft)) {
    check_other_task();
  } else if (is_true("data.train_on_prompt")) {
    for (const char* key : {"data.roles_to_train", "data.last_turn_only"}) {
      if (is_changed(key))
        add_problem(key, fmt::format("{} has no effect with data.train_on_prompt = true, which trains every token",
                                     shown(key)));
    }
  }
  check_packing();
}

// Refuses what only sft understands.
void CrossCheck::check_other_task() {
  const auto refuse = [&](const char* key) {
    if (is_changed(key))
      add_problem(key,
                  fmt::format("{} has no effect with {} (it belongs to \"sft\")", shown(key), shown("train.task")));
  };
  for (const char* key : kChatKeys) refuse(key);
  if (count("eval.generate") == 0)
    for (const char* key : kTemplateKeys) refuse(key);
  for (const std::string sets : {"data.train", "data.eval"}) {
    for (size_t i = 0; i < count(sets); ++i) {
      const std::string key = fmt::format("{}.{}.format", sets, i);
      if (!valid(key) || is(key, DataFormat::kText) || is(key, DataFormat::kTokens)) continue;
      add_problem(key, fmt::format("{} needs train.task = \"sft\", which trains only the answers", shown(key)));
    }
  }
}

void CrossCheck::check_packing() {
  const Task task = config_.settings().train.task;
  const std::string packing =
      valid("data.packing") ? get_string("data.packing") : std::string(to_text(default_packing(task)));
  if (packing != to_text(Packing::kNone) && is_changed("data.pad_to_seq_len"))
    add_problem("data.pad_to_seq_len",
                fmt::format("{} has no effect with data.packing = \"{}\", whose rows always have train.seq_len tokens",
                            shown("data.pad_to_seq_len"), packing));
  if (!valid("data.overflow") || is("data.overflow", Overflow::kError)) return;
  if (packing == to_text(Packing::kConcatSplit)) {
    add_problem("data.overflow",
                fmt::format("{} has no effect with data.packing = \"concat_split\"{}, which splits documents",
                            shown("data.overflow"), has("data.packing") ? "" : " (the default)"));
  } else if (task != Task::kSft && is("data.overflow", Overflow::kTruncateLeftPrompt)) {
    add_problem("data.overflow",
                fmt::format("{} needs train.task = \"sft\": otherwise there are no prompts (try \"truncate\")",
                            shown("data.overflow")));
  }
}

}  // namespace chassis
