// Chooses the directory from which a tokenizer is opened.
#include "host/conformance/tokenizer_member.hpp"

#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "host/base/json.hpp"
#include "host/conformance/tokenizer_calls.hpp"
#include "host/conformance/tokenizer_checks.hpp"

namespace chassis {
namespace {

// Sets of options, each with one option at a value other than its default.
std::vector<Json> other_options(const std::vector<OptionSpec>& specs) {
  std::vector<Json> out;
  for (const OptionSpec& spec : specs) {
    const Json value = spec.default_json.empty() ? Json() : parse_json(spec.default_json, spec.name, ExitCode::kPlugin);
    if (spec.type == OptionType::kBool && value.is_boolean()) out.push_back({{spec.name, !value.get<bool>()}});
    for (const std::string& choice : spec.choices)
      if (spec.type == OptionType::kString && value != choice) out.push_back({{spec.name, choice}});
    if (spec.type == OptionType::kInt && value.is_number_integer() &&
        (!spec.max || value.get<double>() + 1 <= *spec.max))
      out.push_back({{spec.name, value.get<int64_t>() + 1}});
  }
  return out;
}

constexpr size_t kMaxVocabularies = 16;

// Keeps the instances of its subjects.
class Subjects {
 public:
  explicit Subjects(const CheckedMember& member) : member_(member) {}

  // A subject that is not open. Nothing if the plugin refuses the options.
  std::optional<TokenizerSubject> make(const Json& options = Json::object()) {
    auto instance = member_.another(options);
    if (!instance) return std::nullopt;
    const TokenizerSubject subject{&instance->interface<chassis_tokenizer_t>(CHASSIS_TOKENIZER_ID), instance->get(),
                                   instance->label(), options.empty() ? "" : options.dump()};
    instances_.push_back(std::move(instance));
    return subject;
  }
  std::optional<TokenizerSubject> open(const std::string& directory, const Json& options = Json::object()) {
    const auto subject = make(options);
    if (!subject) return std::nullopt;
    try {
      tokenizer_calls::open(*subject, directory);
    } catch (const tokenizer_calls::Refused& refused) {
      if (options.empty()) throw;
      return std::nullopt;  // a variant may refuse the directory
    }
    return subject;
  }

 private:
  const CheckedMember& member_;
  std::vector<std::unique_ptr<Instance>> instances_;
};

void append(std::vector<std::string>& all, std::vector<std::string> more) {
  all.insert(all.end(), more.begin(), more.end());
}

}  // namespace

TokenizerReport examine_tokenizer(const CheckedMember& member, const std::string& given_directory) {
  const auto* table = &member.instance.interface<chassis_tokenizer_t>(CHASSIS_TOKENIZER_ID);
  member.instance.require(CHASSIS_TOKENIZER_ID, {{"info", table->info != nullptr},
                                                 {"encode", table->encode != nullptr},
                                                 {"decode", table->decode != nullptr},
                                                 {"token", table->token != nullptr},
                                                 {"id_of", table->id_of != nullptr}});
  TokenizerReport report;
  Subjects subjects(member);
  std::string directory = given_directory;
  std::optional<TokenizerFolder> trained;
  std::optional<TokenizerSubject> tokenizer;
  try {
    tokenizer = subjects.open(directory);
  } catch (const tokenizer_calls::Refused& refused) {
    if (refused.text.empty()) return {{"open refuses without a message"}, ""};
    if (!directory.empty()) return {{"open refuses " + directory + ": " + refused.text}, ""};
    if (refused.code != CHASSIS_INVALID_ARGUMENT)
      return {{"without a directory, open does not refuse with INVALID_ARGUMENT: " + refused.text}, ""};
    if (table->train == nullptr)
      return {{}, "it needs the files of a tokenizer (" + refused.text + "); give a directory with --model DIR"};
    try {
      directory = trained.emplace(trained_files(*subjects.make())).path();
      tokenizer = subjects.open(directory);
    } catch (const Error& error) {
      return {{error.message()}, ""};
    } catch (const tokenizer_calls::Refused& of_its_own) {
      return {{"open refuses the files that train makes: " + of_its_own.text}, ""};
    }
  }
  std::vector<TokenizerSubject> variants;
  for (const Json& options : other_options(member.specs))
    if (const auto variant = subjects.open(directory, options)) variants.push_back(*variant);
  // With a fingerprint that does not change with the vocabulary, caches would give tokens of another one.
  std::deque<TokenizerFolder> others;  // a deque, because they must not move
  const auto add_vocabulary = [&](const std::string& what, const TokenizerFiles& files,
                                  std::vector<std::string> texts) {
    if (others.size() == kMaxVocabularies) return;
    try {
      auto subject = subjects.open(others.emplace_back(files).path());
      subject->options = what;
      subject->texts = std::move(texts);
      variants.push_back(std::move(*subject));
    } catch (const tokenizer_calls::Refused&) {  // the change made the files invalid
    }
  };
  if (table->train != nullptr) try {
      const TrainedVocabulary other{.of_other_words = true};
      add_vocabulary("another vocabulary", trained_files(*subjects.make(), 1, other), trained_samples(other));
    } catch (const Error& error) {
      append(report.failures, {error.message()});
    }
  if (table->open != nullptr && !directory.empty())
    for (AlteredFiles& altered : altered_files(directory, member.instance.library().manifest().files))
      add_vocabulary(altered.what, altered.files, std::move(altered.texts));
  append(report.failures, tokenizer_failures(*tokenizer, *subjects.open(directory), variants));
  append(report.failures, chat_failures(*tokenizer));
  if (table->train != nullptr) append(report.failures, training_failures([&] { return *subjects.make(); }));
  return report;
}

}  // namespace chassis
