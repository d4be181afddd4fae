// `chassis completion`: a script that completes commands, options, files and keys in a shell.
#include "host/command/completion/completion.hpp"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <set>

#include "host/base/error.hpp"
#include "host/base/output.hpp"
#include "host/command/command.hpp"
#include "host/command/installed_plugins.hpp"

namespace chassis {
namespace {

using Kind = CompletionValue::Kind;

CompletionValue choices(std::vector<std::string> words) {
  return {.kind = Kind::kChoices, .choices = std::move(words)};
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

CompletionValue value_of(const CLI::Option& option, const std::vector<std::string>& plugin_names) {
  const std::string type = option.get_type_name();
  constexpr std::string_view kKeyValue = "KEY=VALUE";
  if (option.get_items_expected_max() == 0) return {.kind = Kind::kFlag};
  if (const size_t open = type.find('{'); open != std::string::npos)
    return choices(split(type.substr(open + 1, type.find('}') - open - 1), ','));
  if (type.ends_with(kKeyValue)) return {.kind = Kind::kKeys, .prefix = type.substr(0, type.size() - kKeyValue.size())};
  if (type == "PLUGIN") return choices(plugin_names);
  if (type == "FOLDER" || type.ends_with(":DIR")) return {.kind = Kind::kFolder};
  if (type == "PATH" || type == "FILE" || type.ends_with(":FILE")) return {.kind = Kind::kFile};
  if (type.starts_with("FILE.")) return {.kind = Kind::kFile, .suffix = type.substr(4)};
  return {};
}

void add_commands(const CLI::App& app, const std::string& path, const std::vector<std::string>& plugin_names,
                  std::vector<CompletionCommand>& out) {
  CompletionCommand command{.path = path, .doc = app.get_description()};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) {
      command.places.push_back(value_of(*option, plugin_names));
      command.repeats_last = option->get_items_expected_max() > 1;
    } else if (!option->get_group().empty()) {
      for (const std::string& name : option->get_lnames())
        command.options.push_back({"--" + name, option->get_description(), value_of(*option, plugin_names)});
    }
  }
  std::vector<const CLI::App*> parts;
  for (const CLI::App* part : app.get_subcommands([](const CLI::App*) { return true; }))
    if (!part->get_group().empty()) parts.push_back(part);
  for (const CLI::App* part : parts) command.parts.push_back(part->get_name());
  out.push_back(std::move(command));
  for (const CLI::App* part : parts)
    add_commands(*part, path.empty() ? part->get_name() : path + " " + part->get_name(), plugin_names, out);
}

CompletionValue value_of_key(const std::string& key, const OptionSpec& spec) {
  if (spec.is_path) return {.kind = Kind::kFile};
  if (spec.type == OptionType::kBool) return choices({"true", "false"});
  if (spec.type == OptionType::kString) return choices(offered_choices(key, spec));
  return {};
}

// The keys, with 0 as the index of every array item: "data.train.0.path".
std::vector<CompletionKey> completion_keys(const Schema& schema, const std::vector<PluginDoc>& plugins) {
  std::vector<CompletionKey> keys;
  std::set<std::string> known;
  const auto add = [&](std::string name, CompletionValue value) {
    if (known.insert(name).second) keys.push_back({std::move(name), std::move(value)});
  };
  for (const TableSpec& table : schema.tables) {
    if (is_unavailable(table.name)) continue;
    const std::string prefix = table.name.empty() ? "" : table.name + (table.is_array ? ".0." : ".");
    std::vector<std::string> members = table.slot == SlotForm::kOne ? std::vector<std::string>{} : table.built_in;
    for (const PluginDoc& plugin : plugins)
      if (plugin.kind == table.kind && table.slot != SlotForm::kNone) members.push_back(plugin.name);
    for (const OptionSpec& option : table.keys) {
      const std::string key = joined_key(table.name, option.name);
      if (is_unavailable(key) || option.name == "extends") continue;
      const bool is_choice = table.slot == SlotForm::kOne && option.name == "plugin";
      add(prefix + option.name, is_choice ? choices(members) : value_of_key(key, option));
    }
    for (const PluginDoc& plugin : plugins) {
      if (table.slot == SlotForm::kNone || plugin.kind != table.kind) continue;
      const std::string inside = table.slot == SlotForm::kList ? plugin.name + "." : "";
      for (const OptionSpec& option : plugin.options)
        add(prefix + inside + option.name, value_of_key(joined_key(table.name, option.name), option));
    }
  }
  std::sort(keys.begin(), keys.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return keys;
}

}  // namespace

const CompletionCommand& Completion::command(const std::string& path) const {
  const auto found = std::find_if(commands.begin(), commands.end(), [&](const auto& one) { return one.path == path; });
  if (found == commands.end()) throw internal_error("no command '" + path + "'");
  return *found;
}

Completion completion_of(const CLI::App& program, const Schema& schema, const std::vector<PluginDoc>& plugins) {
  std::set<std::string> names;
  for (const PluginDoc& plugin : plugins) names.insert(plugin.name);
  Completion completion;
  add_commands(program, "", {names.begin(), names.end()}, completion.commands);
  for (CompletionCommand& command : completion.commands) {
    if (command.path != "help") continue;
    command.places = {choices(completion.command("").parts)};
  }
  completion.keys = completion_keys(schema, plugins);
  return completion;
}

Verb add_completion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  auto plugin_path = std::make_shared<std::vector<std::string>>();
  app.add_option("shell", *shell, "whose script is printed")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  add_plugin_path(app, *plugin_path);
  return [=, &app] {
    const Completion completion = completion_of(*app.get_parent(), host_schema(), installed_plugin_docs(*plugin_path));
    const std::string script = *shell == "bash"  ? bash_script(completion)
                               : *shell == "zsh" ? zsh_script(completion)
                                                 : fish_script(completion);
    std::fwrite(script.data(), 1, script.size(), output());
    return 0;
  };
}

}  // namespace chassis
