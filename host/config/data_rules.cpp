// The rules about data sets, their tokenizer and their evaluation.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "host/config/cross_check.hpp"
#include "host/config/eval_sets.hpp"

namespace chassis {
namespace {

constexpr const char* kSets[] = {"data.train", "data.eval"};

}  // namespace

bool CrossCheck::has_eval_part() const {
  return valid("data.eval_fraction") && get_double("data.eval_fraction") > 0 && count("data.train") > 0;
}

void CrossCheck::check_presence_of_data() {
  for (const auto& [sets, what] : {std::pair("data.train", "training data"), {"data.eval", "evaluation data"}}) {
    if (count(sets) > 0 || !is_needed(sets, config_.use())) continue;
    if (sets == std::string_view("data.eval") && (has_eval_part() || count("eval.generate") > 0)) continue;
    const bool empty = find(sets) != nullptr;
    const std::string why =
        empty ? fmt::format("{} is empty", sets)
              : fmt::format("add [[{}]] with a path, or {}.0.path=FILE on the command line", sets, sets);
    add_problem(empty ? sets : "data", fmt::format("there is no {}: {}", what, why));
  }
}

// Weights are useful only with the tokenizer that they were trained with.
std::string CrossCheck::tokenizer_advice() const {
  return has("model.path")
             ? "set tokenizer.plugin to the model's own, or tokenise the text with it and set format = \"tokens\""
             : "set tokenizer.plugin; `chassis plugins list` shows the tokenizers";
}

// Only the session knows which plugin opens the files of a directory. A model with a problem of its own may have a
// tokenizer.
bool CrossCheck::lacks_tokenizer() const {
  if (has("tokenizer.plugin")) return is("tokenizer.plugin", "");
  std::error_code ignored;
  const bool may_be_found = has("tokenizer.path") || is_invalid("tokenizer.path") || is_invalid("model.path") ||
                            is_invalid("model.plugin") ||
                            (has("model.path") && std::filesystem::is_directory(get_string("model.path"), ignored));
  return !may_be_found && !is_invalid("tokenizer.plugin");
}

std::string CrossCheck::text_tokenizer_advice() const {
  return has("model.path") ? "set tokenizer.plugin to the model's own" : tokenizer_advice();
}

void CrossCheck::check_tokenizer() {
  if (!is_needed("tokenizer.plugin", config_.use()) || !lacks_tokenizer()) return;
  add_problem("tokenizer", config_error("there is no tokenizer for the prompt").hint(text_tokenizer_advice()));
}

void CrossCheck::check_data_set(const std::string& key) {
  if (valid(key + ".format") && !is(key + ".format", DataFormat::kTokens) && lacks_tokenizer()) {
    add_problem(key, config_error(fmt::format("{} is {}, which needs a tokenizer", key, get_string(key + ".format")))
                         .hint(tokenizer_advice()));
  }
  if (has(key + ".weight") && get_double(key + ".weight") == 0)
    add_problem(key + ".weight", fmt::format("{}.weight = 0.0: the set would never be used (remove it)", key));
}

// `documents` of a data set divides text.
void CrossCheck::check_documents(const std::string& key) {
  if (!has(key + ".documents") || is(key + ".documents", DocumentSplit::kLine)) return;
  if (valid(key + ".format") && !is(key + ".format", DataFormat::kText))
    add_problem(key + ".documents", fmt::format("{}.documents has no effect with {}", key, shown(key + ".format")));
  else if (has(key + ".path") && get_string(key + ".path").ends_with(".jsonl"))
    add_problem(key + ".documents",
                fmt::format("{}.documents has no effect on a .jsonl file, in which every line is a document", key));
}

void CrossCheck::check_split_pairs(const std::string& key) {
  if (!is_true(key + ".split_pairs") || !valid(key + ".format") || is(key + ".format", DataFormat::kPreference)) return;
  add_problem(key + ".split_pairs", fmt::format("{} has no effect with {}, whose rows are not pairs",
                                                shown(key + ".split_pairs"), shown(key + ".format")));
}

void CrossCheck::check_data_sets() {
  size_t num_weights = 0;
  std::set<std::string> eval_names;
  for (const std::string sets : kSets) {
    for (size_t i = 0; i < count(sets); ++i) {
      const std::string key = fmt::format("{}.{}", sets, i);
      check_data_set(key);
      if (has(key + ".weight")) ++num_weights;
      if (has(key + ".name") && !eval_names.insert(get_string(key + ".name")).second) {
        add_problem(
            key, fmt::format("two evaluation sets are called \"{}\": give {} a name", get_string(key + ".name"), key));
      }
      check_documents(key);
      check_split_pairs(key);
    }
  }
  if (num_weights > 0 && num_weights < count("data.train")) {
    add_problem("data.train", fmt::format("{} of {} training sets have a weight: give one to all of them or to none",
                                          num_weights, count("data.train")));
  }
}

void CrossCheck::check_evaluation() {
  const auto refuse_without_sets = [&](const char* key, const char* sets) {
    if (set_by_user(key) && valid(key) && get_int(key) > 0)
      add_problem(key, fmt::format("{}, but there is no {}, and data.eval_fraction is 0", shown(key), sets));
  };
  if (count("data.eval") > 0 || has_eval_part()) return;
  if (count("eval.generate") == 0) refuse_without_sets("eval.every_steps", "[[data.eval]] and no [[eval.generate]]");
  refuse_without_sets("eval.max_batches", "[[data.eval]]");
}

void CrossCheck::check_best() {
  constexpr const char* kKey = "eval.keep_best";
  if (!valid(kKey) || is(kKey, "")) {
    if (valid("eval.patience") && get_int("eval.patience") > 0 && !is_invalid(kKey))
      add_problem("eval.patience",
                  fmt::format("{} needs eval.keep_best, the name of an evaluation set", shown("eval.patience")));
    return;
  }
  std::vector<std::string> names = eval_set_names(config_.settings().data);
  for (std::string& name : generation_set_names(config_.settings().eval)) names.push_back(std::move(name));
  if (std::ranges::count(names, get_string(kKey)) == 0) {
    std::string known;
    for (const std::string& name : names) known += fmt::format("{}\"{}\"", known.empty() ? "" : ", ", name);
    add_problem(
        kKey,
        fmt::format("{} is not an evaluation set: {}", shown(kKey),
                    known.empty() ? "there is none; add [[data.eval]] or [[eval.generate]], or set data.eval_fraction"
                                  : "there are " + known));
  } else if (valid("eval.every_steps") && get_int("eval.every_steps") == 0) {
    add_problem(kKey,
                fmt::format("{} needs eval.every_steps: without it, only the last step is evaluated", shown(kKey)));
  }
}

}  // namespace chassis
