// Rows with one answer that is good or bad: a completion after a prompt, or the last message of a conversation.
#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "host/base/lower_case.hpp"
#include "host/base/printable.hpp"
#include "host/data/prompt_parser.hpp"
#include "host/data/row_parsers.hpp"

namespace chassis {
namespace {

class LabelledParser final : public JsonRowParser {
 public:
  explicit LabelledParser(const DataSetConfig& config) : JsonRowParser(config), prompts_(config) {}

 private:
  Record read(const RowFields& row) override {
    LabelledRecord record;
    const std::optional<JsonElement> completion = row.find("completion");
    Prompt prompt = prompts_.prompt(row);
    std::string_view answer_name = "completion";
    Messages answer;
    if (completion) {
      answer = prompts_.messages(row, "completion", *completion, "assistant");
      if (!prompt.messages.empty()) prompts_.remove_prompt(row, "completion", prompt, answer);
    } else {
      if (prompt.is_text || prompt.messages.empty()) required(row, "completion");
      answer_name = "messages";
      if (prompt.messages.back().role != "assistant") {
        throw row.place()
            .error(fmt::format("the last message of \"{}\" is of \"{}\", and an answer is the assistant's",
                               printable(prompt.key), printable(prompt.messages.back().role)))
            .hint("add the answer to the list, or as \"completion\"");
      }
      answer.push_back(std::move(prompt.messages.back()));
      prompt.messages.pop_back();
    }
    if (prompt.messages.empty())
      throw row.place().error("no message comes before the answer").hint("add a prompt to the row");
    record.answer = prompts_.chat(row, answer_name, std::move(prompt.messages), std::move(answer));
    record.is_good = label(row);
    return record;
  }

  // true, 1, or a text with one of them, as in a .csv file.
  bool label(const RowFields& row) const {
    const JsonElement value = required(row, "label");
    const std::string path = row.path("label");
    bool is_good = false;
    double number = 0;
    if (!value.get(is_good)) return is_good;
    if (!value.get(number) && (number == 0 || number == 1)) return number == 1;
    if (value.is_string()) {
      const std::string word = lower_case(row.place().string(path, value));
      if (word == "true" || word == "1") return true;
      if (word == "false" || word == "0") return false;
    }
    throw row.place()
        .type_error(path, value, "true, false, 1 or 0")
        .hint("true: the answer is desirable; false: it is not. Ratings need format = \"classification\"");
  }

  PromptParser prompts_;
};

}  // namespace

std::unique_ptr<RowParser> make_labelled_parser(const DataSetConfig& config) {
  return std::make_unique<LabelledParser>(config);
}

}  // namespace chassis
