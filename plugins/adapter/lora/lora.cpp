// Low-rank adaptation (Hu et al. 2021): y = W x becomes y = W x + s · B A x, with W frozen. Options and files have the
// same meaning as in PEFT.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "chassis/adapter.hpp"
#include "chassis/plugin.hpp"
#include "experts.hpp"
#include "peft_config.hpp"
#include "settings.hpp"

namespace {

using namespace chassis;
using lora::ExpertLinear;
using lora::last_part;
using lora::NamePattern;
using lora::Settings;

class Lora final : public Adapter {
 public:
  static constexpr std::string_view kDoc = "low-rank branches next to frozen linears (LoRA), in PEFT's format";
  static const Options& options() { return lora::options(); }

  explicit Lora(const Host& host) : Adapter(host), settings_(lora::settings_from_options(host)) {}

  void configure(std::string_view config_json) override {
    if (config_json.empty()) return;
    const Settings given = settings_;
    settings_ = lora::settings_from_peft(config_json, given);
    peft_version_ = lora::version_in_peft(config_json);
    has_file_ = true;
    refuse_contradictions(given);
  }

  bool trains(const AdapterParameter& p) override {
    modules_.insert(std::string(p.module));
    if (p.op == "linear") linear_modules_.insert(std::string(p.module));
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
    if (op.is_grouped_linear()) return extend_experts(op, b);
    if (op.is_linear()) linears_.insert(std::string(last_part(op.module)));
    const bool is_parameter = op.is_router() && is_target_router(op);
    if (!is_target(op.module, op.layer, op.is_linear(), is_head)) {
      if (is_parameter) return extend_router(op, b);
      if (op.is_linear() || op.is_router()) left_.insert(std::string(last_part(op.module)));
      return;
    }
    if (!op.is_linear() && !op.is_router())
      fail_invalid(place("targets"), "module '", op.module, "' is ", op.op,
                   ", and LoRA extends linears and routers only");
    if (is_parameter)
      fail_invalid(place("target_parameters"), "'", op.parameter, "' is that of '", op.module,
                   "', which targets mean too; leave it out of one");
    if (matches_any(settings_.modules_to_save, op.module))
      fail_invalid(
          place("modules_to_save"), "module '", op.module,
          "' is in targets too: it cannot be both frozen with a branch and trained in full; leave it out of one");
    if (op.num_joined > 1)
      fail_invalid(place("targets"), "files join the weights of ", op.num_joined, " linears in module '", op.module,
                   "', for which PEFT has one branch; that is not supported yet: leave it out with exclude");
    const std::string module(op.module);
    const int64_t rank = settings_.rank_of(module), most = std::min(op.in_features(), op.out_features());
    if (rank > most && op.is_linear())  // a router may have fewer experts than the rank that it shares with linears
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
    refuse_unused("targets", settings_.targets, "matches no linear of the model; it has ", linears_);
    refuse_unused("target_parameters", settings_.target_parameters,
                  parameters_.empty() ? "matches nothing: the model has no experts"
                                      : "matches no parameter of experts or routers; the model has ",
                  parameters_);
    refuse_unused("exclude", settings_.exclude, "matches no linear of the model; it has ", linears_);
    std::set<std::string> ends;
    for (const std::string& module : modules_) ends.insert(std::string(last_part(module)));
    refuse_unused("modules_to_save", settings_.modules_to_save, "matches no module of the model; it has ", ends);
    if (!has_file_) count_other_rule();
    refuse_unused_patterns("rank_pattern", settings_.rank_pattern);
    refuse_unused_patterns("alpha_pattern", settings_.alpha_pattern);
    if (targets_.empty() && experts_.empty() && routers_.empty())
      fail_invalid(place("targets"), "no module gets a branch: exclude and layers leave none");
    count_dropout_of_experts();
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
    const auto add_patterns = [&](const std::string& pattern, int64_t rank, double scale) {
      if (rank != settings_.rank) names.rank_pattern.emplace_back(pattern, rank);
      const double r = static_cast<double>(rank);
      const double alpha = scale * (settings_.use_rslora ? std::sqrt(r) : r);
      if (std::abs(alpha - settings_.alpha) > 1e-9 * settings_.alpha) names.alpha_pattern.emplace_back(pattern, alpha);
    };
    for (const auto& [module, rank] : targets_) add_patterns(module, rank, settings_.scale_of(module));
    add_names_of_experts(names);
    add_names_of_routers(names);
    for (const auto& [parameter, router] : routers_) add_patterns(parameter, router.rank, router.scale);
    for (const auto& [pattern, expert] : expert_names_) {
      const ExpertLinear& linear = experts_.at(expert);
      add_patterns(linear.is_fused ? pattern : lora::of_any_expert(pattern), linear.rank, linear.scale);
    }
    return lora::peft_config(settings_, names, base_path, base_config_json);
  }

  // W += s · B A, in fp32; of experts, each with its own A and B.
  void merge(const AdapterMerge& merge) const override {
    if (merge.parameter != "weight") return;
    const AdapterTensor &a = merge.tensor("lora_A.weight"), &b = merge.tensor("lora_B.weight");
    const auto expert = experts_.find(std::string(merge.name.substr(0, merge.name.rfind('.'))));
    const bool is_expert = expert != experts_.end();
    const size_t dims = is_expert ? 1 : 0;  // before those of the matrices
    const int64_t rank = a.sizes.at(dims), in = a.sizes.at(dims + 1), num_rows = b.sizes.at(dims);
    const auto router = routers_.find(merge.name);
    const auto scale = static_cast<float>(is_expert                  ? expert->second.scale
                                          : router != routers_.end() ? router->second.scale
                                                                     : settings_.scale_of(merge.module));
    const float* const up = b.values.data() + merge.expert * num_rows * rank;
    const float* const down = a.values.data() + merge.expert * rank * in;
    for (int64_t row = 0; row < merge.num_rows; ++row) {
      float* out = merge.values.data() + row * merge.num_columns;
      for (int64_t k = 0; k < rank; ++k) {
        const float factor = scale * up[(merge.row_begin + row) * rank + k];
        const float* from = down + k * in + merge.column_begin;
        for (int64_t column = 0; column < merge.num_columns; ++column) out[column] += factor * from[column];
      }
    }
  }

  void files(AdapterFiles& files) const override {
    std::vector<ExpertLinear> linears;
    for (const std::string& module : expert_order_) linears.push_back(experts_.at(module));
    for (const ExpertLinear& linear : linears)
      if (!linear.is_fused)
        for (const AdapterPart& part : lora::places(linear)) files.place(part);
    const lora::Orientation of_model = lora::peft_orientation(files.config_json());
    for (const lora::FusedBranch& branch : lora::fused_branches(linears)) {
      const auto orientation = lora::orientation_in(files.tensors(), branch, of_model, peft_version_);
      for (const AdapterPart& part : lora::places(branch, orientation)) files.place(part);
    }
    for (const auto& [parameter, router] : routers_) {
      const std::string module = parameter.substr(0, parameter.rfind('.'));
      const auto place = [&](const std::string& tensor, int64_t rows, int64_t columns) {
        files.place({tensor, {0, 0}, {rows, columns}, tensor, {rows, columns}, {0, 0}, {0, 1}});
      };
      place(module + ".lora_A.weight", router.rank, router.in);
      place(module + ".lora_B.weight", router.out, router.rank);
    }
  }

 private:
  // A router that target_parameters means.
  struct Router {
    int64_t rank, in, out;
    double scale;
  };

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

  bool is_in_layers(int64_t layer) const {
    return settings_.layers.is_all() || (layer >= 0 && settings_.layers.contains(layer));
  }

  bool is_target(std::string_view module, int64_t layer, bool is_linear, bool is_head) {
    if (!is_in_layers(layer)) return false;
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

  void extend_experts(const AdapterOp& op, AdapterBuilder& b) {
    ExpertLinear linear{.module = std::string(op.parameter.substr(0, op.parameter.rfind('.'))),
                        .in_files = std::string(op.module),
                        .num_experts = op.weight_sizes[0],
                        .out = op.out_features(),
                        .in = op.in_features()};
    const std::string parameter = lora::fused_parameter(linear.module);
    parameters_.insert(lora::short_parameter(parameter));
    linear.is_fused = is_target_parameter(parameter, op.layer);
    const bool is_module = is_target_expert(linear, op.layer);
    if (linear.is_fused && is_module)
      fail_invalid(place("target_parameters"), "'", parameter, "' is that of '", op.module,
                   "', which targets mean too; leave it out of one");
    const std::string name = linear.is_fused ? parameter : linear.in_files;
    if (!linear.is_fused && !is_module) {
      left_experts_.insert(lora::short_parameter(parameter));
      left_experts_.insert(std::string(last_part(op.module)));
      return;
    }
    linear.rank = settings_.rank_of(name), linear.scale = settings_.scale_of(name);
    const int64_t out = linear.is_fused ? linear.out * lora::num_fused(linear.module) : linear.out;
    if (linear.rank > std::min(linear.in, out))
      fail_invalid(place(linear.rank == settings_.rank ? "rank" : "rank_pattern"), "rank ", linear.rank, " of '", name,
                   "' is above ", std::min(linear.in, out), ", the smaller size of an expert's weight [", out, ", ",
                   linear.in, "]; set rank to it or less, or give it another in rank_pattern");
    if (!experts_.contains(linear.module)) expert_order_.push_back(linear.module);
    expert_names_[name] = linear.module;
    left_experts_.insert(linear.is_fused ? std::string(last_part(op.module)) : lora::short_parameter(parameter));
    add_branch_of_experts(op, b, linear);
    experts_[linear.module] = std::move(linear);
  }

  // Transformers 5 has routers that are no linears, so PEFT names their parameter.
  bool is_target_router(const AdapterOp& op) {
    const std::string parameter(op.parameter), end = lora::short_parameter(parameter);
    parameters_.insert(end);
    const bool is_target = is_target_parameter(parameter, op.layer);
    if (!is_target) left_routers_.insert(end);
    return is_target;
  }
  void extend_router(const AdapterOp& op, AdapterBuilder& b) {
    const std::string parameter(op.parameter);
    const Router router = {settings_.rank_of(parameter), op.in_features(), op.out_features(),
                           settings_.scale_of(parameter)};
    add_branch(op, b, router.rank, router.scale);
    left_.insert(std::string(last_part(op.module)));
    routers_.emplace(parameter, router);
  }
  void add_names_of_routers(lora::PeftNames& names) const {
    std::set<std::string> parameters;
    for (const auto& [parameter, router] : routers_) {
      const std::string end = lora::short_parameter(parameter);
      parameters.insert(left_routers_.contains(end) ? parameter : end);
    }
    names.target_parameters.insert(names.target_parameters.end(), parameters.begin(), parameters.end());
  }

  bool is_target_parameter(const std::string& parameter, int64_t layer) {
    // In PEFT, layers_to_transform does not apply to parameters.
    if (!has_file_ && !is_in_layers(layer)) return false;
    bool found = false;
    for (const NamePattern& target : settings_.target_parameters) {
      if (!target.matches(parameter)) continue;
      used_.insert("target_parameters " + target.text());
      found = true;
    }
    return found;
  }

  // A name that means linears may mean experts too ("gate_proj" beside a shared expert). As in PEFT with transformers
  // 5, for which the experts of a layer are no module, it then means the linears.
  bool is_target_expert(const ExpertLinear& linear, int64_t layer) {
    if (!is_in_layers(layer)) return false;
    const bool has_own_files = !lora::of_expert(linear.in_files, 0).empty();
    int64_t num_found = 0;
    const NamePattern* found = nullptr;
    for (int64_t e = 0; e < (has_own_files ? linear.num_experts : 1); ++e) {
      const NamePattern* target = expert_target(has_own_files ? lora::of_expert(linear.in_files, e) : linear.in_files);
      if (target == nullptr) continue;
      used_.insert("targets " + target->text());
      found = target;
      ++num_found;
    }
    if (found != nullptr && !has_own_files)
      fail_invalid(place("targets"), "'", found->text(),
                   "' matches only experts, which files of this model hold as one ",
                   "parameter; name it in target_parameters: \"",
                   lora::short_parameter(lora::fused_parameter(linear.module)), "\"");
    if (num_found > 0 && num_found < linear.num_experts)
      fail_invalid(place("targets"), "'", found->text(), "' and others match ", num_found, " of the ",
                   linear.num_experts, " experts of '", linear.in_files,
                   "'; all experts of a layer get a branch, or none");
    bool is_target = num_found > 0;
    for (const NamePattern& excluded : settings_.exclude)
      if (excluded.matches(linear.in_files)) used_.insert("exclude " + excluded.text()), is_target = false;
    return is_target;
  }

  // The target that means a module of an expert; NULL if there is none.
  const NamePattern* expert_target(const std::string& module) {
    if (expert_targets_ == std::nullopt) sort_targets();
    for (size_t at = 0; at != module.npos; at = module.find('.', at + 1)) {
      const auto named = expert_targets_->by_name.find(std::string_view(module).substr(at == 0 ? 0 : at + 1));
      if (named != expert_targets_->by_name.end()) return named->second;
    }
    const auto matching =
        std::ranges::find_if(expert_targets_->others, [&](const auto* t) { return t->matches(module); });
    return matching == expert_targets_->others.end() ? nullptr : *matching;
  }
  void sort_targets() {
    expert_targets_.emplace();
    for (const NamePattern& target : settings_.targets) {
      if (target.is_all_linear() ||
          std::ranges::any_of(linear_modules_, [&](const auto& module) { return target.matches(module); }))
        continue;
      if (target.is_name())
        expert_targets_->by_name.emplace(target.text(), &target);
      else
        expert_targets_->others.push_back(&target);
    }
  }

  void add_names_of_experts(lora::PeftNames& names) const {
    std::set<std::string> modules, parameters;
    for (const auto& [name, module] : expert_names_) {
      const ExpertLinear& linear = experts_.at(module);
      const std::string end = linear.is_fused ? lora::short_parameter(name) : std::string(last_part(name));
      const bool by_end = !left_experts_.contains(end) && (linear.is_fused || !linears_.contains(end));
      if (linear.is_fused || by_end)
        (linear.is_fused ? parameters : modules).insert(by_end ? end : name);
      else
        for (int64_t e = 0; e < linear.num_experts; ++e) modules.insert(lora::of_expert(name, e));
    }
    names.target_modules.insert(names.target_modules.end(), modules.begin(), modules.end());
    names.target_parameters.assign(parameters.begin(), parameters.end());
  }

  void count_dropout_of_experts() const {
    if (settings_.dropout > 0 && !experts_.empty())
      host().count("dropout that experts do not get", place("dropout"), settings_.dropout,
                   " is not applied to the branches of experts");
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
    const Value branch = op.is_router() ? b.op("score", "lora_B", {z}, {up}, {}, {}, op.output.dims)
                                        : b.op("linear", "lora_B", {z}, {up}, {}, op.weight_axes[0], op.output.dims);
    b.replace_output(b.add(op.output, branch));
  }

  // Gate and up share A where they are one parameter in PEFT.
  void add_branch_of_experts(const AdapterOp& op, AdapterBuilder& b, const ExpertLinear& linear) {
    const Dims &experts = op.weight_axes[0], &out = op.weight_axes[1], &in = op.weight_axes[2];
    const Dim r = b.dim("lora_rank_" + std::to_string(linear.rank), linear.rank);
    const std::string parameter = lora::fused_parameter(linear.module);
    Value z;
    if (linear.is_fused && lora::index_in_fused(linear.module) > 0) z = std::exchange(shared_[parameter], {});
    if (!z) {
      const double bound = settings_.gaussian_init ? 1.0 / static_cast<double>(linear.rank)
                                                   : 1.0 / std::sqrt(static_cast<double>(linear.in));
      const Slot down = b.slot({"lora_A.weight",
                                {experts, {r}, in},
                                CHASSIS_ROLE_WEIGHT,
                                settings_.gaussian_init ? CHASSIS_INIT_NORMAL : CHASSIS_INIT_UNIFORM,
                                bound});
      Dims dims = op.experts.dims;
      dims.push_back(r);
      z = b.op("grouped_linear", "lora_A", {op.input, op.experts}, {down}, {}, {r}, std::move(dims));
      if (linear.scale != 1.0) z = b.scale(z, linear.scale);
      if (linear.is_fused) shared_[parameter] = z;
    }
    const Slot up = b.slot({"lora_B.weight",
                            {experts, out, {r}},
                            CHASSIS_ROLE_WEIGHT,
                            CHASSIS_INIT_ZEROS,
                            0,
                            {},
                            settings_.lora_plus_ratio});
    const Value branch = b.op("grouped_linear", "lora_B", {z, op.experts}, {up}, {}, out, op.output.dims);
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
      const auto matches = [&pattern = pattern](const auto& target) { return pattern.matches(target.first); };
      const bool used = std::ranges::any_of(targets_, matches) || std::ranges::any_of(expert_names_, matches) ||
                        std::ranges::any_of(routers_, matches);
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
    for (const char* option :
         {"targets", "target_parameters", "exclude", "layers", "rank_pattern", "alpha_pattern", "modules_to_save"})
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
  std::set<std::string> linears_, left_;           // last parts of names: of linears, of linears without a branch
  std::set<std::string> linear_modules_;           // of all linears
  std::set<std::string> used_;

  // The targets that mean no linear.
  struct ExpertTargets {
    std::map<std::string_view, const NamePattern*> by_name;
    std::vector<const NamePattern*> others;
  };
  std::optional<ExpertTargets> expert_targets_;
  std::map<std::string, ExpertLinear> experts_;      // with a branch, by module
  std::vector<std::string> expert_order_;            // their modules, in the order of the model
  std::map<std::string, std::string> expert_names_;  // by PEFT's name, of the parameter or of expert 0: a module
  std::set<std::string> parameters_, left_experts_;  // short names of all, and of those without such a branch
  std::map<std::string, Value> shared_;              // scaled A x, by PEFT's parameter
  std::map<std::string, Router, std::less<>> routers_;  // by parameter
  std::set<std::string> left_routers_;                  // short names of the parameters of all others
  std::string peft_version_;                         // of the file; of those that are written, the settled one
  bool ties_saved_modules_ = false;
  bool has_head_ = false;  // of scores
  int64_t num_layers_ = 0;
};

}  // namespace

CHASSIS_PLUGIN("requires=chassis.log/1\nrequires=chassis.options/1\nswappable=1\nlicense=Apache-2.0\n", Lora)
