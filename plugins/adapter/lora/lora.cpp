// Low-rank adaptation (Hu et al. 2021): y = W x becomes y = W x + s · B A x, with W frozen. Options and files have the
// same meaning as in PEFT.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "chassis/adapter.hpp"
#include "chassis/plugin.hpp"
#include "peft_config.hpp"
#include "settings.hpp"

namespace {

using namespace chassis;
using lora::NamePattern;
using lora::Settings;

std::string_view last_part(std::string_view module) { return module.substr(module.rfind('.') + 1); }

class Lora final : public Adapter {
 public:
  static constexpr std::string_view kDoc = "low-rank branches next to frozen linears (LoRA), in PEFT's format";
  static const Options& options() { return lora::options(); }

  explicit Lora(const Host& host) : Adapter(host), settings_(lora::settings_from_options(host)) {}

  void configure(std::string_view config_json) override {
    if (config_json.empty()) return;
    const Settings given = settings_;
    settings_ = lora::settings_from_peft(config_json, given);
    has_file_ = true;
    refuse_contradictions(given);
  }

  bool trains(const AdapterParameter& p) override {
    modules_.insert(std::string(p.module));
    bool saved = is_saved(p.module), all_saved = saved;
    std::string others;
    for (std::string_view tied : p.tied) {
      const std::string_view other = tied.substr(0, tied.rfind('.'));
      saved |= is_saved(other);
      all_saved &= is_saved(other);
      others += (others.empty() ? "'" : ", '") + std::string(other) + "'";
    }
    if (has_file_ && saved && !all_saved && !settings_.ties_saved)
      fail_invalid("modules_to_save has only one of '", p.module, "' and ", others,
                   ", which share a weight, and ensure_weight_tying is not true: PEFT then trains a copy for the saved "
                   "module and leaves the other as it is, but here the model has one weight for both; train with both "
                   "in modules_to_save, or with ensure_weight_tying = true");
    // A head of scores is new or made for another task, so it is trained whole, as PEFT does for SEQ_CLS.
    // A router is a score too, and stays as it is.
    const bool is_head = p.op == "score" && p.role != CHASSIS_ROLE_ROUTER;
    has_head_ |= is_head;
    saved |= is_head;
    if (saved) saved_modules_.insert(std::string(p.module));
    ties_saved_modules_ |= saved && !p.tied.empty();
    const bool is_bias_of_target = settings_.trains_bias && p.op == "linear" && p.role == CHASSIS_ROLE_BIAS &&
                                   is_target(p.module, p.layer, true, false);
    return saved || is_bias_of_target;
  }

  void extend(const AdapterOp& op, AdapterBuilder& b) override {
    num_layers_ = std::max(num_layers_, op.layer + 1);
    const bool is_head = op.role == CHASSIS_ROLE_HEAD;
    if (op.op == "grouped_linear") return leave_experts(op.module);
    if (op.is_linear()) linears_.insert(std::string(last_part(op.module)));
    if (!is_target(op.module, op.layer, op.is_linear(), is_head)) {
      if (op.is_linear()) left_.insert(std::string(last_part(op.module)));
      return;
    }
    if (!op.is_linear())
      fail_invalid(place("targets"), "module '", op.module, "' is ", op.op, ", and LoRA extends linears only");
    if (matches_any(settings_.modules_to_save, op.module))
      fail_invalid(
          place("modules_to_save"), "module '", op.module,
          "' is in targets too: it cannot be both frozen with a branch and trained in full; leave it out of one");
    if (op.num_joined > 1)
      fail_invalid(place("targets"), "files join the weights of ", op.num_joined, " linears in module '", op.module,
                   "', for which PEFT has one branch; that is not supported yet: leave it out with exclude");
    const std::string module(op.module);
    const int64_t rank = settings_.rank_of(module), most = std::min(op.in_features(), op.out_features());
    if (rank > most)
      fail_invalid(place(rank == settings_.rank ? "rank" : "rank_pattern"), "rank ", rank, " of module '", op.module,
                   "' is above ", most, ", the smaller size of its weight [", op.out_features(), ", ", op.in_features(),
                   "]; set rank to it or less, give the module another in rank_pattern, or leave it out with exclude");
    targets_[module] = rank;
    add_branch(op, b, rank, settings_.scale_of(module));
  }

  void finish() override {
    if (settings_.is_classifier && !has_head_)
      fail_invalid(place("task_type"),
                   "\"SEQ_CLS\": the adapter was trained with a head of scores, and this run has "
                   "none; it fits a run with train.task = \"reward\" or \"classify\"");
    if (settings_.layers.last() >= num_layers_)
      fail_invalid(place("layers"), "there is no layer ", settings_.layers.last(), ": the model has ", num_layers_,
                   " layers, numbered from 0");
    for (const NamePattern& target : settings_.targets)
      if (const auto expert = std::ranges::find_if(experts_, [&](const auto& e) { return target.matches(e); });
          expert != experts_.end() && !used_.contains("targets " + target.text()))
        fail_invalid(place("targets"), "'", target.text(), "' matches only experts ('", *expert,
                     "' is grouped_linear), and LoRA extends linears only");
    refuse_unused("targets", settings_.targets, "matches no linear of the model; it has ", linears_);
    refuse_unused("exclude", settings_.exclude, "matches no linear of the model; it has ", linears_);
    std::set<std::string> ends;
    for (const std::string& module : modules_) ends.insert(std::string(last_part(module)));
    refuse_unused("modules_to_save", settings_.modules_to_save, "matches no module of the model; it has ", ends);
    if (!has_file_) count_other_rule();
    refuse_unused_patterns("rank_pattern", settings_.rank_pattern);
    refuse_unused_patterns("alpha_pattern", settings_.alpha_pattern);
    if (targets_.empty()) fail_invalid(place("targets"), "no module gets a branch: exclude and layers leave none");
  }

  std::string config(std::string_view base_path, std::string_view base_config_json) const override {
    lora::PeftNames names;
    names.modules_to_save = names_of_saved();
    names.ties_saved_modules = ties_saved_modules_;
    names.has_head = has_head_;
    std::set<std::string> ends;
    for (const auto& [module, rank] : targets_) ends.insert(std::string(last_part(module)));
    const bool by_end = std::none_of(ends.begin(), ends.end(), [&](const auto& end) { return left_.contains(end); });
    if (by_end) {
      names.target_modules.assign(ends.begin(), ends.end());
    } else {
      for (const auto& [module, rank] : targets_) names.target_modules.push_back(module);
    }
    for (const auto& [module, rank] : targets_) {
      if (rank != settings_.rank) names.rank_pattern.emplace_back(module, rank);
      const double r = static_cast<double>(rank);
      const double alpha = settings_.scale_of(module) * (settings_.use_rslora ? std::sqrt(r) : r);
      if (std::abs(alpha - settings_.alpha) > 1e-9 * settings_.alpha) names.alpha_pattern.emplace_back(module, alpha);
    }
    return lora::peft_config(settings_, names, base_path, base_config_json);
  }

  // W += s · B A, in fp32.
  void merge(const AdapterMerge& merge) const override {
    if (merge.parameter != "weight") return;
    const AdapterTensor &a = merge.tensor("lora_A.weight"), &b = merge.tensor("lora_B.weight");
    const int64_t rank = a.sizes.at(0), in = a.sizes.at(1);
    const auto scale = static_cast<float>(settings_.scale_of(merge.module));
    for (int64_t row = 0; row < merge.num_rows; ++row) {
      float* out = merge.values.data() + row * merge.num_columns;
      for (int64_t k = 0; k < rank; ++k) {
        const float factor = scale * b.values[static_cast<size_t>((merge.row_begin + row) * rank + k)];
        const float* from = a.values.data() + k * in + merge.column_begin;
        for (int64_t column = 0; column < merge.num_columns; ++column) out[column] += factor * from[column];
      }
    }
  }

 private:
  static bool matches_any(const std::vector<NamePattern>& patterns, std::string_view module) {
    return std::any_of(patterns.begin(), patterns.end(), [&](const auto& p) { return p.matches(module); });
  }

  std::string place(std::string_view option) const {
    if (!has_file_) return lora::place_of(host(), option);
    constexpr std::pair<std::string_view, std::string_view> kInFile[] = {{"rank", "r"},
                                                                         {"targets", "target_modules"},
                                                                         {"exclude", "exclude_modules"},
                                                                         {"layers", "layers_to_transform"}};
    const auto* found =
        std::find_if(std::begin(kInFile), std::end(kInFile), [&](const auto& k) { return k.first == option; });
    const std::string_view key = found == std::end(kInFile) ? option : found->second;
    return "adapter_config.json of adapter.path: " + std::string(key) + ": ";
  }

  bool is_target(std::string_view module, int64_t layer, bool is_linear, bool is_head) {
    if (!settings_.layers.is_all() && (layer < 0 || !settings_.layers.contains(layer))) return false;
    bool found = false;
    for (const NamePattern& target : settings_.targets) {
      const bool hit = target.is_all_linear() ? is_linear && !is_head : target.matches(module);
      if (hit) used_.insert("targets " + target.text());
      found |= hit;
    }
    for (const NamePattern& excluded : settings_.exclude) {
      if (!excluded.matches(module)) continue;
      used_.insert("exclude " + excluded.text());
      found = false;
    }
    return found;
  }

  // A name that means linears may mean experts too ("gate_proj" beside a shared expert). As in PEFT, for which the
  // experts of a layer are no module, it then means the linears.
  void leave_experts(std::string_view module) {
    experts_.insert(std::string(module));
    for (const NamePattern& excluded : settings_.exclude)
      if (excluded.matches(module)) used_.insert("exclude " + excluded.text());
  }

  bool is_saved(std::string_view module) {
    bool found = false;
    for (const NamePattern& pattern : settings_.modules_to_save) {
      if (!pattern.matches(module)) continue;
      used_.insert("modules_to_save " + pattern.text());
      found = true;
    }
    return found;
  }

  // The names that PEFT will match: the last part of a name if it matches the same modules, else the whole name. PEFT
  // knows embeddings by their short names.
  std::vector<std::string> names_of_saved() const {
    std::set<std::string> names;
    for (const std::string& module : saved_modules_) {
      const std::string end(last_part(module));
      const NamePattern pattern = NamePattern::ending(end);
      const bool means_others = std::ranges::any_of(
          modules_, [&](const auto& other) { return !saved_modules_.contains(other) && pattern.matches(other); });
      names.insert(means_others ? module : end);
    }
    return {names.begin(), names.end()};
  }

  // Counts names that PEFT would match otherwise: here a name is a whole part of a module's name, as in targets; in
  // PEFT it may be the end of a part.
  void count_other_rule() const {
    for (const NamePattern& pattern : settings_.modules_to_save) {
      const NamePattern as_in_peft = NamePattern::ending(pattern.text());
      std::set<std::string> others;
      for (const std::string& module : modules_)
        if (as_in_peft.matches(module) && !matches_any(settings_.modules_to_save, module))
          others.insert(std::string(last_part(module)));
      if (others.empty()) continue;
      std::string names;
      for (const std::string& name : others) names += (names.empty() ? "" : ", ") + name;
      host().count("modules_to_save that PEFT would match otherwise", place("modules_to_save"), "'", pattern.text(),
                   "' means modules of this name, as in targets; PEFT would take also those whose names end in it: ",
                   names, "; add them to train them too");
    }
  }

  void add_branch(const AdapterOp& op, AdapterBuilder& b, int64_t rank, double scale) {
    const Dim r = b.dim("lora_rank_" + std::to_string(rank), rank);
    const double bound = settings_.gaussian_init ? 1.0 / static_cast<double>(rank)
                                                 : 1.0 / std::sqrt(static_cast<double>(op.in_features()));
    const Slot down = b.slot({"lora_A.weight",
                              {{r}, op.weight_axes[1]},
                              CHASSIS_ROLE_WEIGHT,
                              settings_.gaussian_init ? CHASSIS_INIT_NORMAL : CHASSIS_INIT_UNIFORM,
                              bound});
    const Slot up = b.slot({"lora_B.weight",
                            {op.weight_axes[0], {r}},
                            CHASSIS_ROLE_WEIGHT,
                            CHASSIS_INIT_ZEROS,
                            0,
                            {},
                            settings_.lora_plus_ratio});
    const Value x = settings_.dropout > 0 ? b.dropout(op.input, settings_.dropout) : op.input;
    Value z = b.op("linear", "lora_A", {x}, {down}, {}, {r}, {kBatch, kTime, r});
    if (scale != 1.0) z = b.scale(z, scale);  // here, where it has r columns
    const Value branch = b.op("linear", "lora_B", {z}, {up}, {}, op.weight_axes[0], op.output.dims);
    b.replace_output(b.add(op.output, branch));
  }

  template <typename Names>
  void refuse_unused(std::string_view option, const std::vector<NamePattern>& patterns, std::string_view what,
                     const Names& known) const {
    for (const NamePattern& pattern : patterns) {
      if (used_.contains(std::string(option) + " " + pattern.text())) continue;
      std::string names;
      for (const std::string& name : known) names += (names.empty() ? "" : ", ") + name;
      fail_invalid(place(option), "'", pattern.text(), "' ", what, names);
    }
  }
  template <typename Number>
  void refuse_unused_patterns(std::string_view option,
                              const std::vector<std::pair<lora::EndPattern, Number>>& patterns) const {
    for (const auto& [pattern, value] : patterns) {
      const bool used = std::any_of(targets_.begin(), targets_.end(),
                                    [&pattern = pattern](const auto& target) { return pattern.matches(target.first); });
      if (!used) fail_invalid(place(option), "'", pattern.text(), "' matches no module that gets a branch");
    }
  }

  // The file of the adapter takes precedence; only dropout may change.
  void refuse_contradictions(const Settings& given) {
    const auto differs = [&](std::string_view option) { return option_differs(host(), options(), option); };
    // A default that is written down may come from a resolved configuration, which has every option.
    const auto refuse_if = [&](std::string_view option, bool other, const auto& ours, const auto& theirs) {
      if (!other) return;
      if (differs(option))
        fail_invalid(lora::place_of(host(), option), ours, ", but the adapter in adapter.path has ", theirs,
                     "; leave the key out of [adapter]");
      if (option_origin(host(), option) != "default")
        host().count("options of [adapter] that adapter.path overrides", lora::place_of(host(), option), ours,
                     ", but the adapter in adapter.path has ", theirs, ", which counts");
    };
    const auto bias = [](const Settings& s) { return s.trains_bias ? "lora_only" : "none"; };
    refuse_if("rank", given.rank != settings_.rank, given.rank, settings_.rank);
    refuse_if("alpha", given.alpha != settings_.alpha, given.alpha, settings_.alpha);
    refuse_if("use_rslora", given.use_rslora != settings_.use_rslora, given.use_rslora, settings_.use_rslora);
    refuse_if("bias", given.trains_bias != settings_.trains_bias, bias(given), bias(settings_));
    for (const char* option : {"targets", "exclude", "layers", "rank_pattern", "alpha_pattern", "modules_to_save"})
      if (differs(option))
        fail_invalid(lora::place_of(host(), option),
                     "cannot be set with adapter.path, whose adapter_config.json says it");
    if (differs("init"))
      fail_invalid(lora::place_of(host(), "init"), "has no effect with adapter.path, whose files have all values");
    if (differs("dropout")) settings_.dropout = given.dropout;
  }

  Settings settings_;
  bool has_file_ = false;
  std::map<std::string, int64_t> targets_;         // rank of each module with a branch
  std::set<std::string> modules_, saved_modules_;  // all that have parameters; of them, those that are trained whole
  std::set<std::string> experts_;                  // modules of experts
  std::set<std::string> linears_, left_;           // last parts of names: of linears, of linears without a branch
  std::set<std::string> used_;
  bool ties_saved_modules_ = false;
  bool has_head_ = false;  // of scores
  int64_t num_layers_ = 0;
};

}  // namespace

CHASSIS_PLUGIN("requires=chassis.log/1\nrequires=chassis.options/1\nlicense=Apache-2.0\n", Lora)
