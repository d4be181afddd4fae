// The rules about [[eval.generate]].
#include <fmt/core.h>
#include <limits.h>

#include <set>
#include <string>

#include "host/base/pattern.hpp"
#include "host/config/cross_check.hpp"
#include "host/config/eval_sets.hpp"

namespace chassis {

// A name is also that of a folder in the run directory.
void CrossCheck::check_set_name(const std::string& key) {
  if (!valid(key)) return;
  const std::string& name = get_string(key);
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos || name.size() > NAME_MAX)
    add_problem(key, fmt::format("{} is not a valid folder name: answers go to generations/NAME in the run directory",
                                 shown(key)));
}

void CrossCheck::check_generation_set(const std::string& key) {
  const std::string score = key + ".score", pattern = key + ".pattern", command = key + ".command";
  const auto require = [&](AnswerScore choice, const std::string& needed, bool is_missing) {
    if (is(score, choice) && is_missing && !is_invalid(needed))
      add_problem(score, fmt::format("{} needs {}", shown(score), needed));
  };
  const auto refuse = [&](AnswerScore choice, const std::string& other, bool is_given) {
    if (valid(score) && !is(score, choice) && valid(other) && is_given)
      add_problem(other, fmt::format("{} has no effect with {} (it belongs to \"{}\")", shown(other), shown(score),
                                     to_text(choice)));
  };
  require(AnswerScore::kRegex, pattern, !has(pattern));
  refuse(AnswerScore::kRegex, pattern, true);
  if (valid(pattern) && Pattern(get_string(pattern)).num_groups() > 1)
    add_problem(pattern, config_error(fmt::format("{} has {} groups, and only one can be the answer", shown(pattern),
                                                  Pattern(get_string(pattern)).num_groups()))
                             .hint("write (?:…) for the groups that only hold alternatives together"));
  require(AnswerScore::kCommand, command, count(command) == 0);
  refuse(AnswerScore::kCommand, command, count(command) > 0);
  const std::string timeout = key + ".command_timeout_s";
  const OptionSpec& spec = *config_.schema_->find("eval.generate")->find("command_timeout_s");
  refuse(AnswerScore::kCommand, timeout, valid(timeout) && toml_text(*find(timeout)) != spec.default_json);
}

void CrossCheck::check_generation_sets() {
  std::set<std::string> names;
  for (const std::string& name : eval_set_names(config_.settings().data)) names.insert(name);
  for (size_t i = 0; i < count("eval.generate"); ++i) {
    const std::string key = fmt::format("eval.generate.{}", i), name = key + ".name";
    check_set_name(name);
    if (valid(name) && !names.insert(get_string(name)).second)
      add_problem(key, fmt::format("two evaluation sets are called \"{}\": give {} a name", get_string(name), key));
    if (lacks_tokenizer())
      add_problem(key, config_error(fmt::format("the rows of {} are texts, which need a tokenizer", key))
                           .hint(text_tokenizer_advice()));
    check_generation_set(key);
  }
}

}  // namespace chassis
