// A template is found by its name among the built-in ones; any other name is that of a file.
#include "host/text/run_chat.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/config/paths.hpp"
#include "host/config/suggest.hpp"
#include "host/config/task_table.hpp"
#include "host/data/chat_renderer.hpp"
#include "host/data/generation_config.hpp"
#include "host/text/slot_template_file.hpp"

namespace chassis {
namespace {

constexpr uint64_t kMaxTemplateBytes = uint64_t{4} << 20;

void find_template(const Setting<std::string>& setting, ChatConfig& chat) {
  chat.template_name = setting;
  if (setting == "auto") return;
  chat.slots = builtin_slot_template(*setting);
  if (chat.slots) return;
  const bool is_toml = setting->ends_with(".toml"), is_jinja = setting->ends_with(".jinja");
  if (!is_toml && !is_jinja) {
    std::vector<std::string> names = builtin_template_names();
    names.insert(names.begin(), "auto");
    std::string known;
    for (const std::string& name : names) known += fmt::format("\"{}\", ", name);
    const std::string meant = nearest(*setting, names);
    throw config_error(
        setting, fmt::format("{} = \"{}\" is none of {}and no .toml or .jinja file{}", setting.key(), *setting, known,
                             meant.empty() ? "" : " (did you mean \"" + meant + "\"?)"));
  }
  std::string path = setting, text;
  if (const auto problem = expand_home(path))
    throw config_error(setting, fmt::format("{} = \"{}\": {}", setting.key(), *setting, *problem));
  try {
    text = read_file(path, kMaxTemplateBytes);
  } catch (const Error& error) {
    throw config_error(setting, fmt::format("{}: {}", setting.key(), error.message()));
  }
  if (is_toml)
    chat.slots = std::make_shared<SlotTemplate>(parse_slot_template(text, path));
  else if (text.empty())
    throw config_error(setting, fmt::format("{} is empty", path));
  else
    chat.template_text = std::move(text);
}

}  // namespace

std::string generation_directory(const Settings& settings) {
  for (const Setting<std::string>* path : {&settings.model.path, &settings.tokenizer.path})
    if (path->is_set() && path_kind(**path + "/generation_config.json") != PathKind::kAbsent) return *path;
  return "";
}

bool trains_chats(const Settings& settings) {
  if (!spec_of(settings.train.task).has_answers) return false;
  return std::any_of(settings.data.train.begin(), settings.data.train.end(), [&](const Settings::TrainSet& set) {
    const DataFormat format = set.format;
    // Rows of these formats are texts or conversations; only conversations have a template.
    if (format == DataFormat::kPromptCompletion || format == DataFormat::kClassification)
      return settings.data.template_name.by_user();
    return format != DataFormat::kText && format != DataFormat::kTokens && format != DataFormat::kSegments;
  });
}

ChatConfig chat_config(const Settings& settings, const Tokenizer* tokenizer) {
  const Settings::Data& data = settings.data;
  ChatConfig chat;
  find_template(data.template_name, chat);
  if (data.template_variables.is_set()) chat.variables_json = to_json(*data.template_variables).dump();
  if (data.template_date.is_set()) {
    chat.date = data.template_date;
    try {
      unix_time_of_date(chat.date);
    } catch (const Error& error) {
      throw config_error(data.template_date, fmt::format("{}: {}", data.template_date.key(), error.message()));
    }
  }
  if (chat.slots) {
    for (const SettingEntry* jinja : {static_cast<const SettingEntry*>(&data.template_variables),
                                      static_cast<const SettingEntry*>(&data.template_date)}) {
      const bool is_empty = jinja == &data.template_variables && data.template_variables->children.empty();
      if (jinja->is_set() && jinja->by_user() && !is_empty)
        throw config_error(*jinja, fmt::format("{} has no effect with data.template = \"{}\": slot templates take none",
                                               jinja->key(), chat.template_name));
    }
  }
  if (data.default_system.is_set()) chat.default_system = data.default_system;
  chat.roles_to_train = data.roles_to_train;
  chat.train_on_prompt = data.train_on_prompt;
  chat.last_turn_only = data.last_turn_only;
  chat.reasoning = data.reasoning;
  GenerationConfig file;
  if (const std::string directory = generation_directory(settings); !directory.empty())
    file = read_generation_config(directory);
  chat.stop_ids = file.eos_ids;
  if (tokenizer == nullptr) return chat;
  chat.stop_ids = stop_ids_of(file, tokenizer->vocab_size());
  if (tokenizer->eos_id() >= 0) chat.stop_ids.push_back(tokenizer->eos_id());
  chat.fitting_slots = fitting_template_names(*tokenizer);
  return chat;
}

}  // namespace chassis
