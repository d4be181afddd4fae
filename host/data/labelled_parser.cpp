// Rows with one answer that is good or bad: a completion after a prompt, or the last message of a conversation.
#include "host/base/lower_case.hpp"
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
    record.answer = prompts_.answered(row);
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
