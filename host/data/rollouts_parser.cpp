// Rows with the answers of a policy to one prompt, each with its reward.
#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "host/base/printable.hpp"
#include "host/data/prompt_parser.hpp"
#include "host/data/row_names.hpp"
#include "host/data/row_parsers.hpp"

namespace chassis {
namespace {

constexpr const char* kForm =
    R"(a row has all answers to a prompt: {"prompt": …, "completions": [{"text": …, "reward": 1.0}, …]})";

class RolloutsParser final : public JsonRowParser {
 public:
  explicit RolloutsParser(const DataSetConfig& config) : JsonRowParser(config), prompts_(config) {}

 private:
  using Rollout = RolloutsRecord::Rollout;

  Record read(const RowFields& row) override {
    const RowPlace& place = row.place();
    const std::optional<JsonElement> completions = row.find("completions");
    if (!completions) {
      for (const std::string_view key : {"completion", "response", "answer", "output"})
        if (row.object().at_key(key).error() == simdjson::SUCCESS)
          throw place
              .error(
                  fmt::format("the row has one answer, \"{}\", and no \"{}\"", key, printable(row.path("completions"))))
              .hint(kForm);
    }
    const std::string path = row.path("completions");
    const JsonArray list = place.list(path, required(row, "completions"));
    const Prompt prompt = prompts_.prompt(row);
    if (prompt.messages.empty()) throw place.error("no message comes before the answers").hint(kForm);
    RolloutsRecord record;
    for (const JsonElement item : list) {
      const std::string name = fmt::format("{}[{}]", path, record.rollouts.size());
      if (!item.is_object()) throw place.type_error(name, item, "an object").hint(kForm);
      record.rollouts.push_back(rollout(row, prompt, name, place.object(name, item)));
    }
    if (record.rollouts.empty()) throw place.error(fmt::format("\"{}\" has no answer", printable(path)));
    require_all_logps(place, path, record.rollouts);
    return record;
  }

  Rollout rollout(const RowFields& row, const Prompt& prompt, const std::string& name, JsonObject object) {
    static const KeyNames kKeys{{"answer", "text"},   {"answer", "content"}, {"answer", "messages"},
                                {"reward", "reward"}, {"logps", "logps"},    {"role", "role"}};
    const RowPlace& place = row.place();
    const RowFields fields(place, object, kKeys, name + ".");
    require_assistant(fields);
    const std::optional<JsonElement> said = fields.find("answer");
    if (!said)
      throw place.error(fmt::format("{} has neither \"text\" nor \"content\" nor \"messages\"", printable(name)))
          .hint(kForm);
    Messages answer = prompts_.messages(fields, "answer", *said, "assistant");
    prompts_.remove_prompt(fields, "answer", prompt, answer);
    if (answer.empty()) throw place.error(fmt::format("\"{}\" has no message", printable(fields.path("answer"))));
    Rollout rollout;
    rollout.answer = prompts_.chat(row, "completions", prompt.messages, std::move(answer));
    const std::optional<JsonElement> reward = fields.find("reward");
    if (!reward) throw place.error(fmt::format("\"{}\" is missing", printable(fields.path("reward")))).hint(kForm);
    rollout.reward = plain_number(place, fields.path("reward"), *reward);
    if (const auto logps = fields.find("logps")) {
      const std::string path = fields.path("logps");
      for (const JsonElement item : place.list(path, *logps))
        rollout.logps.push_back(plain_number(place, fmt::format("{}[{}]", path, rollout.logps.size()), item));
    }
    return rollout;
  }

  static void require_assistant(const RowFields& fields) {
    const std::string_view role = fields.string_or_empty("role");
    if (role.empty() || role == "assistant") return;
    throw fields.place().error(fmt::format("\"{}\" is \"{}\", and an answer is the assistant's",
                                           printable(fields.path("role")), printable(role)));
  }

  static void require_all_logps(const RowPlace& place, const std::string& path, const std::vector<Rollout>& rollouts) {
    for (size_t i = 1; i < rollouts.size(); ++i) {
      if (rollouts[i].logps.empty() == rollouts.front().logps.empty()) continue;
      const size_t without = rollouts[i].logps.empty() ? i : 0, with = i - without;
      throw place.error(fmt::format("{0}[{1}] has \"logps\", but {0}[{2}] has none", printable(path), with, without));
    }
  }

  PromptParser prompts_;
};

}  // namespace

std::unique_ptr<RowParser> make_rollouts_parser(const DataSetConfig& config) {
  return std::make_unique<RolloutsParser>(config);
}

}  // namespace chassis
