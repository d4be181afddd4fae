// Rows with a text or a conversation, and its class, its classes or its values.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "host/base/printable.hpp"
#include "host/data/prompt_parser.hpp"
#include "host/data/row_names.hpp"
#include "host/data/row_parsers.hpp"

namespace chassis {
namespace {

constexpr double kNoTarget = std::numeric_limits<double>::quiet_NaN();

class ClassParser final : public JsonRowParser {
 public:
  explicit ClassParser(const DataSetConfig& config)
      : JsonRowParser(config),
        classes_(config.classes),
        prompts_(config),
        has_targets_(config.has_targets),
        needs_answer_(config.needs_answer) {}

 private:
  Record read(const RowFields& row) override {
    ClassifiedRecord record;
    if (!has_targets_) refuse_pair(row);
    record.input = input(row);
    if (has_targets_) record.targets = targets(row);
    return record;
  }

  // A score belongs to one answer.
  static void refuse_pair(const RowFields& row) {
    std::string found;
    for (const std::string_view name : kAnswersOfPair) {
      const auto value = row.object().at_key(name);
      if (value.error() == simdjson::SUCCESS && !value.is_null())
        found += fmt::format("{}\"{}\"", found.empty() ? "" : " and ", name);
    }
    if (found.empty()) return;
    throw row.place()
        .error(fmt::format("the row has {}, and a row that is scored has one answer", found))
        .hint("write a row {\"prompt\": …, \"completion\": …} for each answer of the pair");
  }

  std::variant<TextRecord, ChatRecord> input(const RowFields& row) {
    const RowPlace& place = row.place();
    const std::optional<JsonElement> text = row.find("text");
    Prompt prompt = prompts_.prompt(row);
    if (text && !prompt.is_blank()) {
      throw place
          .error(fmt::format("\"{}\" and \"{}\" are both there: which is classified?", printable(row.path("text")),
                             printable(prompt.key)))
          .hint("remove one of them, or give it another name");
    }
    const std::optional<JsonElement> completion = row.find("completion");
    if (completion && prompt.is_blank())
      throw place.error(fmt::format("\"{}\" needs a prompt", printable(row.path("completion"))));
    if (prompt.is_blank()) {
      for (const std::string_view name : {"system", "tools"})
        if (row.find(name)) place.note_unused(row.path(name));
      return TextRecord{std::string(required_string(row, "text"))};
    }
    if (needs_answer_ && !completion && row.find("prompt") && prompt.messages.back().role != "assistant") {
      throw place.error(fmt::format("\"{}\" has no answer, and the score is that of an answer", printable(prompt.key)))
          .hint("add \"completion\" to the row; a whole conversation may also be \"messages\", and a text \"text\"");
    }
    Messages answer;
    if (completion) {
      answer = prompts_.messages(row, "completion", *completion, "assistant");
      prompts_.remove_prompt(row, "completion", prompt, answer);
    } else {
      answer.push_back(std::move(prompt.messages.back()));
      prompt.messages.pop_back();
    }
    ChatRecord chat = prompts_.chat(row, "completion", std::move(prompt.messages), std::move(answer));
    chat.first_trained.reset();
    return chat;
  }

  std::vector<double> targets(const RowFields& row) const {
    constexpr std::array<std::string_view, 4> kNames{"label", "labels", "value", "values"};
    const RowPlace& place = row.place();
    std::string_view found;
    for (const std::string_view name : kNames) {
      if (!row.find(name)) continue;
      if (!found.empty()) {
        throw place.error(fmt::format("\"{}\" and \"{}\" are both there: which is the target?",
                                      printable(row.path(found)), printable(row.path(name))));
      }
      found = name;
    }
    if (found.empty()) {
      if (has_null(row, "value")) return {kNoTarget};
      required(row, "label");
    }
    const JsonElement value = *row.find(found);
    const std::string path = row.path(found);
    if (found == "label") return {class_or_number(place, path, value)};
    if (found == "value") return {finite_number(place, path, value).value_or(kNoTarget)};
    const JsonArray list = place.list(path, value);
    if (list.begin() == list.end()) {
      if (found == "labels" && !classes_.empty()) return std::vector<double>(classes_.size());
      throw place.error(fmt::format("\"{}\" is an empty list", printable(path)));
    }
    if (found == "labels" && list.at(0).is_string()) return present_classes(place, path, list);
    std::vector<double> targets;
    for (const JsonElement item : list) {
      const std::string name = fmt::format("{}[{}]", path, targets.size());
      targets.push_back(item.is_null() ? kNoTarget : number(place, name, item));
    }
    return targets;
  }

  static bool has_null(const RowFields& row, std::string_view name) {
    const auto value = row.object().at_key(row.path(name));
    return value.error() == simdjson::SUCCESS && value.is_null();
  }

  // The name of a class, or a number.
  double class_or_number(const RowPlace& place, const std::string& path, JsonElement value) const {
    bool is_true = false;
    if (!value.get(is_true)) return is_true ? 1 : 0;
    std::string_view text;
    if (value.get(text) || place.is_wide_integer(value)) {
      const double index = number(place, path, value);
      const bool is_class = std::floor(index) == index && index >= 0 && index < static_cast<double>(classes_.size());
      if (classes_.empty() || is_class) return index;
      throw place.error(
          fmt::format("\"{}\" is {}, and data.classes has {} names", printable(path), index, classes_.size()));
    }
    if (const std::optional<size_t> index = class_index(text)) return static_cast<double>(*index);
    try {
      if (const auto in_text = finite_number(place, path, value)) return *in_text;
    } catch (const Error&) {  // not a number
    }
    throw unknown_class(place, path, value);
  }

  static double number(const RowPlace& place, const std::string& path, JsonElement value) {
    bool is_true = false;
    if (!value.get(is_true)) return is_true ? 1 : 0;
    return plain_number(place, path, value);
  }

  // 1 for each class that is named, and 0 for the others.
  std::vector<double> present_classes(const RowPlace& place, const std::string& path, JsonArray list) const {
    std::vector<double> present(classes_.size());
    size_t i = 0;
    for (const JsonElement item : list) {
      const std::string name = fmt::format("{}[{}]", path, i++);
      const std::optional<size_t> index = class_index(place.string(name, item));
      if (!index) throw unknown_class(place, name, item);
      present[*index] = 1;
    }
    return present;
  }

  std::optional<size_t> class_index(std::string_view name) const {
    const auto found = std::find(classes_.begin(), classes_.end(), name);
    if (found == classes_.end()) return std::nullopt;
    return static_cast<size_t>(found - classes_.begin());
  }

  Error unknown_class(const RowPlace& place, const std::string& path, JsonElement value) const {
    if (classes_.empty())
      return place.type_error(path, value, "the index of a class")
          .hint("data.classes = [\"…\", \"…\"] names the classes in the order of their indices");
    std::string names;
    for (const std::string& name : classes_) names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", name);
    return place.type_error(path, value, "in data.classes").hint("data.classes has " + printable(names, 300));
  }

  std::vector<std::string> classes_;
  PromptParser prompts_;
  bool has_targets_, needs_answer_;
};

}  // namespace

std::unique_ptr<RowParser> make_class_parser(const DataSetConfig& config) {
  return std::make_unique<ClassParser>(config);
}

}  // namespace chassis
