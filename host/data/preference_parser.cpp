// Rows with a better and a worse answer. Answers are texts, single messages, or lists of messages. The messages before
// them are a prompt, or those with which both lists begin.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "host/base/printable.hpp"
#include "host/data/dialogue_text.hpp"
#include "host/data/prompt_parser.hpp"
#include "host/data/row_parsers.hpp"

namespace chassis {
namespace {

class PreferenceParser final : public JsonRowParser {
 public:
  explicit PreferenceParser(const DataSetConfig& config)
      : JsonRowParser(config),
        prompts_(config),
        is_split_(config.split_pairs),
        reads_margins_(config.reads_margins && !config.split_pairs) {}

 private:
  Record read(const RowFields& row) override {
    const JsonElement chosen = required(row, "chosen"), rejected = required(row, "rejected");
    if (chosen.type() != rejected.type()) {
      throw row.place().error(fmt::format("\"{}\" is {}, but \"{}\" is {}", printable(row.path("chosen")),
                                          kind_text(chosen), printable(row.path("rejected")), kind_text(rejected)));
    }
    Messages better = prompts_.messages(row, "chosen", chosen, "assistant");
    Messages worse = prompts_.messages(row, "rejected", rejected, "assistant");
    Prompt prompt = prompts_.prompt(row, chosen.is_array() ? better : Messages());
    if (chosen.is_array()) {
      take_shared(row, prompt, better, worse);
    } else if (are_dialogues(prompt, better, worse)) {
      better = dialogue_messages(better.front().text());
      worse = dialogue_messages(worse.front().text());
      ++notes_.changes["texts such as \"\\n\\nHuman: …\\n\\nAssistant: …\" are read as conversations"];
      take_shared(row, prompt, better, worse);
    } else if (prompt.messages.empty()) {
      throw missing_prompt(row);
    }
    PreferenceRecord record;
    record.chosen = prompts_.chat(row, "chosen", prompt.messages, std::move(better));
    record.rejected = prompts_.chat(row, "rejected", std::move(prompt.messages), std::move(worse));
    record.is_split = is_split_;
    if (const auto margin = row.find("margin")) {
      if (reads_margins_)
        record.margin = finite_number(row.place(), row.path("margin"), *margin);
      else
        row.place().note_unused(row.path("margin"));
    }
    return record;
  }

  // An answer to a question may itself be such a text.
  static bool are_dialogues(const Prompt& prompt, const Messages& better, const Messages& worse) {
    return (prompt.is_blank() || !prompt.is_text) && is_dialogue_text(better.front().text()) &&
           is_dialogue_text(worse.front().text());
  }

  // Lists of messages may begin with the prompt, or may be the only place where it is.
  void take_shared(const RowFields& row, Prompt& prompt, Messages& better, Messages& worse) const {
    const size_t most = std::min(better.size(), worse.size());
    if (most == 0) return;  // chat() reports the list
    const auto differ = std::mismatch(better.begin(), better.begin() + static_cast<ptrdiff_t>(most - 1), worse.begin());
    auto num_shared = differ.first - better.begin();
    if (prompt.is_blank()) {
      if (num_shared == 0) throw missing_prompt(row);
    } else if (!prompt.is_text || !says(better, num_shared, prompt)) {
      const Messages shared(better.begin(), differ.first + 1);  // and one more, which is not looked at
      const auto end = static_cast<ptrdiff_t>(end_of_prompt(prompt, shared));
      if (end == 0 && better.front().role == "assistant" && worse.front().role == "assistant") return;
      if (end == 0) {
        throw row.place()
            .error(fmt::format("\"{}\" and \"{}\" begin with neither the prompt nor an answer",
                               printable(row.path("chosen")), printable(row.path("rejected"))))
            .hint("leave out the prompt if the lists are whole conversations");
      }
      num_shared = end;
    }
    prompt.messages.assign(better.begin(), better.begin() + num_shared);
    better.erase(better.begin(), better.begin() + num_shared);
    worse.erase(worse.begin(), worse.begin() + num_shared);
  }

  // Whether a text that is the prompt is what the user says in one of the first messages. Then the lists have it all.
  static bool says(const Messages& list, ptrdiff_t num_messages, const Prompt& prompt) {
    const std::string text = prompt.messages.back().text();
    return std::any_of(list.begin(), list.begin() + num_messages,
                       [&](const Message& message) { return message.role == "user" && message.text() == text; });
  }

  Error missing_prompt(const RowFields& row) const {
    return row.place()
        .error(fmt::format("no message comes before \"{}\" and \"{}\"", printable(row.path("chosen")),
                           printable(row.path("rejected"))))
        .hint("add a prompt, or lists of messages that begin with the same ones");
  }

  PromptParser prompts_;
  bool is_split_, reads_margins_;
};

}  // namespace

std::unique_ptr<RowParser> make_preference_parser(const DataSetConfig& config) {
  return std::make_unique<PreferenceParser>(config);
}

}  // namespace chassis
