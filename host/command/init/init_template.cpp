// Tries candidates on the rows.
#include "host/command/init/init_template.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "host/base/log.hpp"
#include "host/base/printable.hpp"
#include "host/data/chat_renderer.hpp"
#include "host/data/record_encoder.hpp"
#include "host/text/slot_template_file.hpp"

namespace chassis {
namespace {

ChatRecord example(bool has_system) {
  ChatRecord chat;
  const auto say = [&](const char* role, const char* text) {
    Message& message = chat.messages.emplace_back();
    message.role = role;
    message.content.push_back({text, std::nullopt});
  };
  if (has_system) say("system", "zero");
  say("user", "one"), say("assistant", "two"), say("user", "three"), say("assistant", "four");
  return chat;
}

// The texts that a template makes of short conversations; the text of one that it refuses is empty.
std::vector<std::string> rendered_examples(const Tokenizer& tokenizer, const ChatConfig& config) {
  std::vector<std::string> texts;
  for (const bool has_system : {true, false}) {
    try {
      texts.push_back(ChatRenderer(tokenizer, config).render(example(has_system), false).text);
    } catch (const Error&) {
      texts.emplace_back();
    }
    while (!texts.back().empty() && texts.back().back() == '\n') texts.back().pop_back();
  }
  return texts;
}

struct FittingTemplate {
  std::string name;
  size_t num_equal = 0, num_examples = 0;  // those rendered the same as by the tokenizer's own template; all
  size_t rank = 0;                         // 0: it has tokens of its own; "plain", without any words, is last
};

// The built-in templates that fit the tokenizer, best first.
std::vector<FittingTemplate> fitting_templates(const Tokenizer& tokenizer, ChatConfig config) {
  static const std::vector<std::string> kLast = {"alpaca", "deepseek", "mistral", "plain"};
  const std::vector<std::string> names = config.fitting_slots;
  std::vector<std::string> own;
  if (!tokenizer.chat_template().empty()) own = rendered_examples(tokenizer, config);
  std::vector<FittingTemplate> fitting;
  for (const std::string& name : names) {
    config.slots = builtin_slot_template(name);
    config.template_name = name;
    FittingTemplate& found = fitting.emplace_back();
    found.name = name;
    found.rank = static_cast<size_t>(std::find(kLast.begin(), kLast.end(), name) - kLast.begin() + 1) %
                 (kLast.size() + 1);  // 0 for all others
    if (name == "mistral" && spelled_token(tokenizer, "[INST]") >= 0) found.rank = 0;
    const std::vector<std::string> texts = rendered_examples(tokenizer, config);
    found.num_examples = own.size();
    for (size_t i = 0; i < own.size(); ++i) found.num_equal += !own[i].empty() && own[i] == texts[i];
  }
  std::stable_sort(fitting.begin(), fitting.end(), [](const FittingTemplate& a, const FittingTemplate& b) {
    return a.num_equal != b.num_equal ? a.num_equal > b.num_equal : a.rank < b.rank;
  });
  return fitting;
}

// The error of encoding a plain conversation with the template of `data`; nullopt if it can be trained with.
std::optional<Error> refusal(DataConfig data, const Tokenizer& tokenizer) {
  Document document;
  data.sequences.reset();  // an objective reads no plain conversations
  try {
    RecordEncoder(&tokenizer, encode_options(data)).encode(example(false), {}, document);
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

void use(const std::string& name, ChatConfig& chat) {
  chat.slots = builtin_slot_template(name);
  chat.template_name = name;
}

// Adds the names of built-in templates that fit all rows to the hint.
Error with_others(const Error& error, DataConfig data, const Tokenizer& tokenizer) {
  std::string names;
  for (const FittingTemplate& fitting : fitting_templates(tokenizer, data.chat)) {
    if (fitting.name == "plain") continue;
    use(fitting.name, data.chat);
    try {
      sample_rows(data.train.at(0), data, &tokenizer);
      names += (names.empty() ? "" : ", ") + fitting.name;
    } catch (const Error&) {
    }
  }
  std::string hint = error.hint_text().empty() ? "correct the row or leave it out" : error.hint_text();
  if (!names.empty())
    hint += fmt::format(
        "\nhint: --template NAME chooses another template than the model's own, which was made for other "
        "conversations; these fit all rows: {}",
        names);
  return Error(error.code(), error.where(), error.message()).hint(hint);
}

}  // namespace

ChosenTemplate choose_template(const DataConfig& given, const Tokenizer& tokenizer) {
  const bool has_own = !tokenizer.chat_template().empty();
  DataConfig data = given;
  ChosenTemplate chosen;
  chosen.chat = data.chat;
  std::optional<Error> refused;
  try {
    chosen.sample = sample_rows(data.train.at(0), data, &tokenizer);
    chosen.why = "the tokenizer's own";
    return chosen;
  } catch (const Error& error) {
    refused = refusal(data, tokenizer);
    if (!refused) throw with_others(error, given, tokenizer);
  }
  std::optional<Error> first;
  for (const FittingTemplate& fitting : fitting_templates(tokenizer, given.chat)) {
    use(fitting.name, data.chat);
    try {
      chosen.sample = sample_rows(data.train.at(0), data, &tokenizer);
    } catch (const Error& error) {
      if (!first) first = error;
      continue;
    }
    chosen.name = fitting.name;
    chosen.chat = data.chat;
    if (!has_own) {
      chosen.why = "built in; the tokenizer has none of its own";
      return chosen;
    }
    const std::string likeness = fitting.num_equal == fitting.num_examples
                                     ? "the same text as the tokenizer's own"
                                     : fmt::format("built in; equals the tokenizer's own in {} of {} examples",
                                                   fitting.num_equal, fitting.num_examples);
    chosen.why = fmt::format("{}, with which {}", likeness, printable(refused->message(), 200));
    log::warn("data.template = \"{}\": the tokenizer's own chat template cannot be used: {}", chosen.name,
              refused->message());
    return chosen;
  }
  throw Error(first ? *first : *refused);
}

}  // namespace chassis
