// Keys of [data] that belong to one task: sft masks and packs conversations, pretrain fills rows with documents.
#include <fmt/core.h>

#include <algorithm>
#include <iterator>

#include "host/config/config.hpp"

namespace chassis {
namespace {

// The keys that only conversations need.
constexpr const char* kChatKeys[] = {"data.template",       "data.template_variables", "data.template_date",
                                     "data.default_system", "data.roles_to_train",     "data.train_on_prompt",
                                     "data.last_turn_only", "data.reasoning",          "data.on_refused"};

}  // namespace

void Config::check_data_task() {
  const auto valid = [&](const std::string& key) { return has(key) && !invalid_.contains(key); };
  const auto is = [&](const std::string& key, std::string_view text) { return valid(key) && get_string(key) == text; };
  const auto shown = [&](const std::string& key) { return fmt::format("{} = {}", key, toml_text(*find(key))); };
  // A resolved configuration sets every key that has a default.
  const auto is_changed = [&](const std::string& key) {
    if (!valid(key) || !set_by_user(key)) return false;
    const Value& value = *find(key);
    if (value.is_table()) return !value.children.empty();
    return toml_text(value) != schema_->find("data")->find(key.substr(5))->default_json;
  };
  if (!valid("train.task") || use_ == ConfigUse::kGeneration) return;  // generation has conversations of its own
  const bool is_sft = is("train.task", "sft");

  if (!is_sft) {
    for (const char* key : kChatKeys) {
      if (is_changed(key))
        add_problem(key,
                    fmt::format("{} has no effect with {} (it belongs to \"sft\")", shown(key), shown("train.task")));
    }
    for (const std::string sets : {"data.train", "data.eval"}) {
      for (size_t i = 0; i < count(sets); ++i) {
        const std::string key = fmt::format("{}.{}.format", sets, i);
        if (!valid(key) || is(key, "text") || is(key, "tokens")) continue;
        add_problem(key, fmt::format("{} needs train.task = \"sft\", which trains only the answers", shown(key)));
      }
    }
  } else if (valid("data.train_on_prompt") && find("data.train_on_prompt")->boolean) {
    for (const char* key : {"data.roles_to_train", "data.last_turn_only"}) {
      if (is_changed(key))
        add_problem(key, fmt::format("{} has no effect with data.train_on_prompt = true, which trains every token",
                                     shown(key)));
    }
  }

  const std::string packing = valid("data.packing") ? get_string("data.packing") : is_sft ? "best_fit" : "concat_split";
  if (packing != "none" && is_changed("data.pad_to_seq_len"))
    add_problem("data.pad_to_seq_len",
                fmt::format("{} has no effect with data.packing = \"{}\", whose rows always have train.seq_len tokens",
                            shown("data.pad_to_seq_len"), packing));
  if (!valid("data.overflow") || is("data.overflow", "error")) return;
  if (packing == "concat_split") {
    add_problem("data.overflow",
                fmt::format("{} has no effect with data.packing = \"concat_split\"{}, which splits documents",
                            shown("data.overflow"), has("data.packing") ? "" : " (the default)"));
  } else if (!is_sft && is("data.overflow", "truncate_left_prompt")) {
    add_problem("data.overflow",
                fmt::format("{} needs train.task = \"sft\": else there are no prompts (try \"truncate\")",
                            shown("data.overflow")));
  }
}

}  // namespace chassis
