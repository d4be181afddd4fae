// Reads what lies beside the weights: generation_config.json, and the configuration of their run.
#include "host/command/generation.hpp"

#include <fmt/format.h>

#include "host/base/file.hpp"
#include "host/base/log.hpp"
#include "host/base/printable.hpp"
#include "host/config/task_table.hpp"
#include "host/generate/stop_texts.hpp"
#include "host/save/resume_differences.hpp"
#include "host/train/run_report.hpp"

namespace chassis {

GenerationSettings settings_of_generation(const Session& session, const std::vector<std::string>& stop_texts) {
  const Settings& settings = session.settings();
  GenerationSettings made = generation_settings(settings, generation_config_of(settings), *session.tokenizer());
  made.stop_texts.insert(made.stop_texts.end(), stop_texts.begin(), stop_texts.end());
  const StopTexts checked(made.stop_texts);
  if (!made.from_file.empty()) log::info("{}", made.from_file);
  return made;
}

void require_adapter_of_run(const Session& session, const std::string& from) {
  const Settings& settings = session.settings();
  // The files of an adapter say what it is. Without one here, the weights of a run with an adapter are refused later.
  if (!settings.adapter.plugin.is_set() || settings.adapter.path.is_set()) return;
  const std::string run = from.empty() ? *settings.run.output_dir : from;
  if (path_kind(run + "/resolved.toml") == PathKind::kAbsent) return;
  for (const auto& [key, text] : settings_that_differ(run, "adapter", session.config()))
    if (key != "adapter.dropout")  // of training alone
      throw config_error(fmt::format("{} {}: the adapter of {} would be computed otherwise than it was trained", key,
                                     text, printable(run, 4096)))
          .hint("use the configuration of that run, " + shell_word(run + "/resolved.toml") +
                ", or what it exported: --from " + shell_word(run + "/final"));
}

void warn_of_other_template(Session& session, const std::string& from) {
  if (session.world().rank() != 0 || !spec_of(session.settings().train.task).has_answers) return;
  std::string run = from.empty() ? *session.settings().run.output_dir : from;
  while (run.size() > 1 && run.back() == '/') run.pop_back();
  if (path_kind(run + "/resolved.toml") == PathKind::kAbsent && run.ends_with("/final")) run.resize(run.size() - 6);
  if (path_kind(run + "/resolved.toml") == PathKind::kAbsent) return;
  if (!settings_that_differ(run, "train.task", session.config()).empty()) return;
  const Settings::Data& data = session.settings().data;
  for (const auto& [key, text] : settings_that_differ(run, "data", session.config()))
    if (key == data.template_name.key() || key.starts_with(data.template_variables.key()))
      counted_warning(
          "the chat template differs from that of training",
          fmt::format("{} {}: the model of {} has not learned to answer in this template; {} uses that of training",
                      key, text, printable(run, 4096),
                      "`chassis generate " + shell_word(run + "/resolved.toml") + "`"));
}

}  // namespace chassis
