// Varies the options of an objective, one by one and together.
#include "host/conformance/objective_checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/json.hpp"
#include "host/base/printable.hpp"
#include "host/conformance/objective_numbers.hpp"
#include "host/objective/objective_plugin.hpp"

namespace chassis {
namespace {

constexpr size_t kMaxFailures = 8;
constexpr int kNumMixtures = 300;         // sets of options with several random values
constexpr int kNumExaminedMixtures = 40;  // those that get all tests of numbers
constexpr size_t kMaxValuesPerOption = 24;
constexpr double kMaxBound = 1000;  // of a count, such as that of classes; larger batches take long

// Values of an option that the schema allows, other than `present`.
class OtherValues {
 public:
  OtherValues(const OptionSpec& spec, const Json& present) : spec_(spec), present_(present) {
    switch (spec.type) {
      case OptionType::kBool:
        add(!present.get<bool>());
        break;
      case OptionType::kInt:
      case OptionType::kFloat:
        for (const double number : numbers(present.get<double>())) add(number_json(number));
        break;
      case OptionType::kString:
        for (const std::string& choice : spec.choices) add(choice);
        break;
      case OptionType::kStringList:
        add_choices();
        break;
      case OptionType::kIntList:
      case OptionType::kFloatList:
        add_number_lists();
        break;
      case OptionType::kTable:
        break;
    }
  }
  const std::vector<Json>& get() const { return values_; }

 private:
  void add(Json value) {
    if (value != present_ && values_.size() < kMaxValuesPerOption &&
        std::find(values_.begin(), values_.end(), value) == values_.end())
      values_.push_back(std::move(value));
  }

  bool is_whole() const { return spec_.type == OptionType::kInt || spec_.type == OptionType::kIntList; }
  std::vector<double> numbers(double present) const {
    std::vector<double> out = {2 * present,    present / 2, present + 1, present + 2, present - 1,
                               present + 0.25, -present,    0,           0.1};
    for (const auto& bound : {spec_.min, spec_.max})
      if (bound && std::abs(*bound) <= (is_whole() ? kMaxBound : 1e6))
        out.insert(out.end(), {*bound, (*bound + present) / 2});
    std::erase_if(
        out, [&](double number) { return number < spec_.min.value_or(number) || number > spec_.max.value_or(number); });
    return out;
  }
  Json number_json(double number) const { return is_whole() ? Json(std::llround(number)) : Json(number); }

  void add_choices() {
    for (const std::string& choice : spec_.choices) add(Json::array({choice}));
    for (const std::string& choice : spec_.choices) {
      Json longer = present_;
      if (std::find(longer.begin(), longer.end(), Json(choice)) == longer.end()) longer.push_back(choice);
      add(std::move(longer));
    }
  }

  void add_number_lists() {
    for (const double number : numbers(present_.empty() ? 1 : present_[0].get<double>())) {
      Json changed = present_;
      if (changed.empty())
        changed.push_back(number_json(number));
      else
        changed[0] = number_json(number);
      add(std::move(changed));
    }
    for (const size_t size : {1, 2, 3}) {
      Json list = Json::array();
      for (size_t i = 0; i < size; ++i) list.push_back(number_json(numbers(1)[i % numbers(1).size()]));
      add(std::move(list));
    }
  }

  const OptionSpec& spec_;
  const Json& present_;
  std::vector<Json> values_;
};

std::string options_text(const Json& options) {
  std::string out;
  for (const auto& item : options.items())
    out += fmt::format("{}{} = {}", out.empty() ? "" : ", ", item.key(), printable(item.value().dump()));
  return out.empty() ? "" : out + ": ";
}

class ObjectiveExamination {
 public:
  explicit ObjectiveExamination(const CheckedMember& member)
      : member_(member), present_(member.instance.context().options), random_(11) {}

  ObjectiveReport run() {
    const ObjectivePlugin plugin(member_.instance);
    has_prepare_ = plugin.has_prepare();
    asks_for_global_ = plugin.description().needs_global();
    const std::unique_ptr<Instance> same = member_.another(Json::object());
    if (!same) {
      report_.failures.push_back("a second instance with the same options is refused");
      return std::move(report_);
    }
    report_.failures = number_failures(member_.instance, *same);
    if (!report_.failures.empty()) return std::move(report_);
    for (const OptionSpec& spec : member_.specs) {
      options_.push_back({spec.name, OtherValues(spec, present_.at(spec.name)).get()});
      if (options_.back().values.empty()) left_out_.push_back(spec.name);
    }
    vary_one_by_one();
    if (report_.failures.empty()) vary_together();
    if (report_.failures.empty()) judge();
    return std::move(report_);
  }

 private:
  struct Option {
    std::string name;
    std::vector<Json> values;
    bool has_effect = false, was_compared = false;
  };

  void fail(const Json& options, const std::string& text) {
    if (report_.failures.size() < kMaxFailures) report_.failures.push_back(options_text(options) + text);
  }

  // The numbers of an objective with these options; nothing if it refuses them. `examined`: applies all tests.
  std::optional<ObjectiveNumbers> numbers_with(const Json& options, bool examined) {
    try {
      const std::unique_ptr<Instance> instance = member_.another(options);
      if (!instance) return std::nullopt;
      const ObjectivePlugin plugin(*instance);
      asks_for_global_ = asks_for_global_ || plugin.description().needs_global();
      if (examined) {
        const std::unique_ptr<Instance> same = member_.another(options);
        if (!same) {
          fail(options, "a second instance with the same options is refused");
          return std::nullopt;
        }
        for (const std::string& text : number_failures(*instance, *same)) fail(options, text);
        if (!report_.failures.empty()) return std::nullopt;
      }
      return objective_numbers(plugin);
    } catch (const Error& error) {
      fail(options, error.message());
      return std::nullopt;
    }
  }

  void vary_one_by_one() {
    const std::optional<ObjectiveNumbers> base = numbers_with(Json::object(), false);
    for (Option& option : options_)
      if (report_.failures.empty()) vary(option, Json::object(), base, true);
  }

  // Looks for an effect of an option that is changed in addition to `others`. `base` has the numbers with `others`
  // alone, if they are not refused.
  void vary(Option& option, const Json& others, std::optional<ObjectiveNumbers> base, bool examined) {
    for (const Json& value : option.values) {
      Json options = others;
      options[option.name] = value;
      const std::optional<ObjectiveNumbers> changed = numbers_with(options, examined);
      if (!report_.failures.empty()) return;
      if (!changed) continue;
      option.was_compared = option.was_compared || base;
      option.has_effect = option.has_effect || (base && !changed->equals(*base));
      if (!base) base = changed;  // the default is refused with these
      if (option.has_effect && !examined) return;
    }
  }

  // An option may have an effect with certain values of others only.
  void vary_together() {
    for (size_t i = 0; i < options_.size(); ++i)
      for (size_t j = 0; j < options_.size() && !options_[i].has_effect; ++j)
        for (size_t k = 0; i != j && k < options_[j].values.size() && !options_[i].has_effect; ++k) {
          Json options = Json::object();
          options[options_[j].name] = options_[j].values[k];
          vary_unproven(options, false);
        }
    for (int mixture = 0; mixture < kNumMixtures && report_.failures.empty(); ++mixture) {
      const bool examined = mixture < kNumExaminedMixtures;
      if (!examined && std::ranges::all_of(options_, [](const Option& option) { return option.has_effect; })) return;
      Json options = Json::object();
      for (const Option& option : options_)
        if (!option.values.empty() && random_() % 3 == 0)
          options[option.name] = option.values[random_() % option.values.size()];
      vary_unproven(options, examined);
    }
  }

  // Looks for effects of all options that have shown none, in addition to these.
  void vary_unproven(const Json& others, bool examined) {
    const std::optional<ObjectiveNumbers> base = numbers_with(others, examined);
    for (Option& option : options_)
      if (!option.has_effect && !others.contains(option.name) && report_.failures.empty())
        vary(option, others, base, false);
  }

  void judge() {
    for (const Option& option : options_)
      if (!option.has_effect && option.was_compared)
        fail(Json::object(), fmt::format("option '{}' has no effect: neither the description nor a number changes with "
                                         "{}, with any values of the other options that were tried",
                                         option.name, printable(Json(option.values).dump())));
      else if (!option.has_effect && !option.values.empty())
        left_out_.push_back(option.name);
    if (has_prepare_ && !asks_for_global_)
      fail(Json::object(), "it has a function prepare, but asks for GLOBAL with none of the options that were tried");
    for (const std::string& name : left_out_)
      report_.left_out += fmt::format("{}'{}'", report_.left_out.empty() ? "the effect of " : ", ", name);
    if (!left_out_.empty())
      report_.left_out += " was not tested: no two values are known that work with the same other options";
  }

  const CheckedMember& member_;
  const Json present_;
  std::mt19937_64 random_;
  bool has_prepare_ = false, asks_for_global_ = false;
  std::vector<Option> options_;
  std::vector<std::string> left_out_;
  ObjectiveReport report_;
};

}  // namespace

ObjectiveReport examine_objective(const CheckedMember& member) { return ObjectiveExamination(member).run(); }

}  // namespace chassis
