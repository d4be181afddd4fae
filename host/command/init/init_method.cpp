// One row for each method. Values are those that papers and other trainers use.
#include "host/command/init/init_method.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "host/base/error.hpp"
#include "host/base/printable.hpp"

namespace chassis {
namespace {

constexpr std::string_view kWeightMethods[] = {"full", "lora", "qlora"};

constexpr InitLine kDpo[] = {
    {"loss = [\"sigmoid\"]", "hinge, ipo, … ; several are added"},
    {"beta = 0.1", "more keeps the model closer to the reference"},
    {"sft_weight = 0.0", "above 0 if the log-probabilities of chosen answers fall too far"},
};
constexpr InitLine kKto[] = {
    {"beta = 0.1", "more keeps the model closer to the reference"},
    {"desirable_weight = 1.0", "weight × answers of both kinds should be between 1:1 and 4:3"},
    {"undesirable_weight = 1.0", ""},
};
constexpr InitLine kOrpo[] = {{"beta = 0.1", "weight of the odds ratio, next to the loss of chosen answers"}};
constexpr InitLine kSimpo[] = {
    {"loss = \"simpo\"", ""},
    {"beta = 2.5", "of the mean log-probability of a token"},
    {"gamma = 1.375", "the margin between both answers; often half of beta"},
};
constexpr InitLine kReward[] = {{"center_coefficient = 0.01", "keeps scores near 0"}};
constexpr InitLine kGrpo[] = {
    {"loss = \"dapo\"", "divides by the answers' tokens; grpo, bnpo and dr_grpo divide in other ways"},
    {"kl_beta = 0.0", "above 0: stay close to the model before training"},
};

constexpr InitLine kDistill[] = {
    {"divergence = \"forward_kl\"", "reverse_kl and jsd prefer the likeliest answers"},
    {"temperature = 1.0", "above 1 also less likely tokens count"},
    {"ce_weight = 0.0", "above 0: the answers themselves are trained, too"},
};

constexpr InitMethod kMethods[] = {
    {"dpo", Task::kPreference, DataFormat::kPreference, "dpo", "1e-6", "5e-6", 1, kDpo},
    {"orpo", Task::kPreference, DataFormat::kPreference, "orpo", "1e-6", "1e-5", 1, kOrpo},
    {"simpo", Task::kPreference, DataFormat::kPreference, "cpo", "1e-6", "5e-6", 1, kSimpo},
    {"kto", Task::kPreference, DataFormat::kLabelled, "kto", "1e-6", "5e-6", 1, kKto},
    {"reward", Task::kReward, DataFormat::kPreference, "reward", "1e-5", "1e-4", 1, kReward},
    {"classify", Task::kClassify, DataFormat::kClassification, "classify", "2e-5", "2e-4", 3, {}},
    {"grpo", Task::kPolicy, DataFormat::kRollouts, "policy", "1e-6", "1e-5", 1, kGrpo},
    {"distill", Task::kDistill, DataFormat::kDistillation, "distill", "1e-5", "1e-4", 3, kDistill},
};

}  // namespace

std::span<const InitMethod> init_methods() { return kMethods; }

const InitMethod* find_init_method(std::string_view name) {
  const auto* found = std::ranges::find(kMethods, name, &InitMethod::name);
  return found == std::end(kMethods) ? nullptr : found;
}

const InitMethod* usual_init_method(DataFormat format) {
  const auto* found = std::ranges::find(kMethods, format, &InitMethod::format);
  return found == std::end(kMethods) ? nullptr : found;
}

const InitMethod* usual_init_method(DataFormat format, Task task) {
  const auto* found = std::ranges::find_if(
      kMethods, [&](const InitMethod& method) { return method.format == format && method.task == task; });
  return found == std::end(kMethods) ? nullptr : found;
}

std::string method_names() {
  std::string names = fmt::format("{}", fmt::join(kWeightMethods, ", "));
  for (const InitMethod& method : kMethods) names += fmt::format(", {}", method.name);
  return names;
}

MethodWords method_words(const std::string& text) {
  MethodWords words;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    begin = end + 1;
    const bool is_weights = std::ranges::count(kWeightMethods, word) > 0;
    const InitMethod* const objective = find_init_method(word);
    if (!is_weights && objective == nullptr)
      throw config_error(fmt::format("--method {} is unknown", printable(word)))
          .hint(
              "full trains all parameters, lora small branches next to the frozen ones, qlora the same next to ones in "
              "4 bits; dpo, orpo, simpo, kto, reward, classify, grpo and distill choose what is learned: --method "
              "dpo,lora");
    if ((is_weights && !words.weights.empty()) || (objective != nullptr && words.objective != nullptr))
      throw config_error(fmt::format("--method {} names two methods of one sort", printable(text)))
          .hint("give one of full, lora and qlora, and one of the others");
    if (is_weights)
      words.weights = word;
    else
      words.objective = objective;
  }
  return words;
}

}  // namespace chassis
