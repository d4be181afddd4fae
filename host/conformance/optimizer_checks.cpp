// Steps on random parameters and gradients, repeated under variations that must not change the result.
#include "host/conformance/optimizer_checks.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

#include "chassis/kind/model.h"
#include "host/base/error.hpp"
#include "host/conformance/growth.hpp"
#include "host/plugin/status.hpp"
#include "host/service/rng.hpp"
#include "host/service/tensor.hpp"
#include "host/service/threads.hpp"
#include "host/state/box.hpp"
#include "host/state/dtype.hpp"

namespace chassis {
namespace {

using Sizes = std::vector<int64_t>;

// Samples of the parameters that a model trains. Sizes are not multiples of a vector or block; one is large enough to
// be divided between threads.
struct Sample {
  const char* name;
  uint32_t role;
  Sizes sizes;
};
const Sample kSamples[] = {{"weight", CHASSIS_ROLE_WEIGHT, {7, 11}},
                           {"matrix", CHASSIS_ROLE_WEIGHT, {70, 97}},
                           {"norm", CHASSIS_ROLE_NORM, {333}},
                           {"embedding", CHASSIS_ROLE_EMBEDDING, {1001, 70}},
                           {"experts", CHASSIS_ROLE_WEIGHT, {3, 21, 10}}};

int64_t count_of(const Sizes& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

using States = std::vector<chassis_state_desc_t>;

bool is_whole(const States& states) {
  return std::any_of(states.begin(), states.end(),
                     [](const auto& state) { return state.granularity == CHASSIS_GRANULARITY_MATRIX; });
}

// A parameter may be cut at multiples of this many elements.
int64_t unit_of(const States& states) {
  int64_t unit = 1;
  for (const chassis_state_desc_t& state : states)
    if (has_blocks(state)) unit = std::lcm(unit, state.block);
  return unit;
}

// The rates of a step.
struct StepRates {
  double lr = 0.01;
  std::vector<double> decay = {0.1};  // one per tensor; the last one for all further tensors
  std::vector<double> lr_scale = {};  // likewise; empty: NULL is passed
};
const StepRates kNoDecay{.lr = 0.01, .decay = {0.0}};

// Parameters with gradients and states, on which steps run.
class Trial {
 public:
  using Rates = StepRates;

  Trial(const OptimizerPlugin& plugin, const std::vector<Sample>& samples) : plugin_(&plugin) {
    for (const Sample& sample : samples)
      add(sample, Shape(sample.sizes), {Box::whole(Shape(sample.sizes))}, random("parameter", sample.sizes));
  }

  // A step with random gradients for step `number`, multiplied by `factor`, and a scale of 1 / factor, passed as
  // grad_scale or, if `in_memory`, as device_grad_scale.
  Trial& step(int64_t number, const Rates& rates, double factor = 1.0, bool in_memory = false) {
    for (size_t i = 0; i < grads_.size(); ++i) {
      grads_[i].copy_from(random("gradient of step " + std::to_string(number), grads_[i].sizes(), i));
      grads_[i].multiply(factor);
    }
    return in_memory ? run(number, rates, 1.0, 1.0 / factor) : run(number, rates, 1.0 / factor);
  }
  Trial& step(int64_t number) { return step(number, Rates()); }
  // The same with a call for each parameter, as if each were on another rank.
  Trial& step_one_by_one(int64_t number) {
    for (size_t i = 0; i < grads_.size(); ++i)
      grads_[i].copy_from(random("gradient of step " + std::to_string(number), grads_[i].sizes(), i));
    const size_t first_sum = num_replayed_;
    for (size_t i = 0; i < grads_.size(); ++i) {
      num_replayed_ = first_sum;
      run(number, Rates(), 1.0, 0.0, i, i + 1);
    }
    return *this;
  }
  // From now on, sums over parameters are those of `other`, since a call of this trial has only some of the parameters.
  Trial& with_sums_of(const Trial& other) {
    replayed_ = &other.sums_;
    return *this;
  }
  // Describes the first difference between the sums of this trial's own addends and those it was given; empty if none.
  std::string wrong_addends() const {
    for (size_t call = 0; call < sums_.size(); ++call)
      for (size_t i = 0; i < sums_[call].size(); ++i) {
        const double got = sums_[call][i], wanted = (*replayed_)[call][i];
        if (std::abs(got - wanted) > 1e-6 * std::abs(wanted) + 1e-30)
          return fmt::format("value {} of call {} of sum_over_parameters adds up to {}, expected {}", i, call + 1, got,
                             wanted);
      }
    return "";
  }
  // Takes further steps with another instance, as in a run that resumes.
  Trial& go_on_with(const OptimizerPlugin& plugin) {
    plugin_ = &plugin;
    return *this;
  }
  Trial& step_without_gradients(int64_t number, const Rates& rates) {
    for (const Tensor& grad : grads_) grad.zero();
    return run(number, rates, 1.0);
  }
  // A step on the loss p²/2, whose gradient is p.
  Trial& step_down_a_square(int64_t number) {
    for (size_t i = 0; i < grads_.size(); ++i) grads_[i].copy_from(params_[i]);
    return run(number, kNoDecay, 1.0);
  }
  // The only parameter of `whole`, cut at the elements `cuts`; each piece is a parameter.
  static Trial pieces(const OptimizerPlugin& plugin, const Sample& sample, const Trial& whole,
                      const std::vector<int64_t>& cuts) {
    const Tensor flat = whole.params_[0].flat();
    const Shape shape(sample.sizes);
    Trial out(plugin, {});
    for (size_t i = 0; i <= cuts.size(); ++i) {
      const int64_t begin = i > 0 ? cuts[i - 1] : 0, end = i < cuts.size() ? cuts[i] : flat.num_elements();
      out.add(sample, shape, flat_range_boxes(shape, begin, end), Tensor::empty(Sizes{end - begin}, Dtype::f32));
    }
    take_pieces(out.params_, flat);
    return out;
  }
  // A step with the gradients of the first parameter of `whole`, cut into pieces.
  Trial& step_with_gradients_of(int64_t number, const Trial& whole) {
    take_pieces(grads_, random("gradient of step " + std::to_string(number), whole.params_[0].sizes()).flat());
    return run(number, Rates(), 1.0);
  }

  const std::vector<Tensor>& params() const { return params_; }
  // State j of parameter i.
  const Tensor& state(size_t i, size_t j) const { return states_[first_states_[i] + j]; }
  const States& described(size_t i) const { return described_[i]; }
  bool all_finite() const {
    const auto finite = [](const Tensor& tensor) { return tensor.all_finite(); };
    return std::all_of(params_.begin(), params_.end(), finite) && std::all_of(states_.begin(), states_.end(), finite);
  }
  // The first element of parameters or states whose bits differ; empty if there is none.
  std::string difference(const Trial& expected) const {
    for (size_t i = 0; i < params_.size(); ++i) {
      std::string text = difference(params_[i], expected.params_[i], "parameter " + std::to_string(i));
      if (!text.empty()) return text;
    }
    for (size_t i = 0; i < params_.size(); ++i)
      for (size_t j = 0; j < described_[i].size(); ++j) {
        const auto role = view_of(described_[i][j].role);
        std::string text = difference(state(i, j), expected.state(i, j), fmt::format("state '{}'", role));
        if (!text.empty()) return text;
      }
    return "";
  }
  static std::string difference(const Tensor& got, const Tensor& expected, const std::string& name) {
    const auto element_bytes = static_cast<size_t>(size_bytes(got.dtype()));
    for (int64_t i = 0; i < got.num_elements(); ++i) {
      const auto at = static_cast<size_t>(i) * element_bytes;
      if (std::memcmp(got.data_as<char>() + at, expected.data_as<char>() + at, element_bytes) == 0) continue;
      return fmt::format("element {} of {} is {}, expected {}", i, name, got.flat().narrow(0, i, 1).item(),
                         expected.flat().narrow(0, i, 1).item());
    }
    return "";
  }

 private:
  void add(const Sample& sample, const Shape& whole, const std::vector<Box>& boxes, const Tensor& param) {
    described_.push_back(plugin_->states(SteppedParameter(sample.name, sample.role, whole)));
    facts_.push_back(std::make_shared<SteppedParameter>(sample.name, sample.role, whole, boxes));
    params_.push_back(param);
    grads_.push_back(Tensor::zeros(param.sizes(), Dtype::f32));
    first_states_.push_back(states_.size());
    for (const chassis_state_desc_t& state : described_.back()) {
      states_.push_back(Tensor::zeros(sizes_of(state, param.sizes()), static_cast<Dtype>(state.dtype)));
      if (state.initial != 0) states_.back().fill(state.initial);
    }
  }
  static Sizes sizes_of(const chassis_state_desc_t& state, const Sizes& parameter) {
    if (state.shape == CHASSIS_STATE_SCALAR) return {1};
    if (state.shape == CHASSIS_STATE_LIKE_PARAMETER) return parameter;
    return {(count_of(parameter) + state.block - 1) / state.block};
  }
  static Tensor random(const std::string& name, const Sizes& sizes, uint64_t index = 0) {
    Tensor tensor = Tensor::empty(sizes, Dtype::f32);
    random_normal(11, name, index << 32, {tensor.data_as<float>(), static_cast<size_t>(tensor.num_elements())});
    return tensor;
  }

  static void take_pieces(const std::vector<Tensor>& pieces, const Tensor& flat) {
    int64_t begin = 0;
    for (const Tensor& piece : pieces) {
      piece.copy_from(flat.narrow(0, begin, piece.num_elements()));
      begin += piece.num_elements();
    }
  }

  // Implements sum_over_parameters of a step over some of the parameters. sums_[n] holds the sums of call n.
  void sum(size_t num_tensors, const double* values, std::span<double> sums) {
    const size_t call = replayed_ == nullptr ? sums_.size() : num_replayed_++;
    if (replayed_ != nullptr && (call >= replayed_->size() || (*replayed_)[call].size() != sums.size()))
      throw plugin_error(
          "it calls sum_over_parameters more often, or with other numbers of values, where it has other "
          "parameters");
    if (sums_.size() <= call) sums_.resize(call + 1, std::vector<double>(sums.size()));
    for (size_t i = 0; i < sums.size(); ++i) {
      for (size_t tensor = 0; tensor < num_tensors; ++tensor) sums_[call][i] += values[tensor * sums.size() + i];
      sums[i] = replayed_ == nullptr ? sums_[call][i] : (*replayed_)[call][i];
    }
  }

  // Steps parameters [first, end). `device_scale` 0: none is passed.
  Trial& run(int64_t number, const Rates& rates, double grad_scale, double device_scale = 0.0, size_t first = 0,
             size_t end = SIZE_MAX) {
    end = std::min(end, params_.size());
    const auto handles = [](const std::vector<Tensor>& tensors, size_t begin, size_t behind) {
      std::vector<chassis_tensor_t> out;
      for (size_t i = begin; i < behind; ++i) out.push_back(tensors[i].handle());
      return out;
    };
    const size_t end_state = end < params_.size() ? first_states_[end] : states_.size();
    const auto params = handles(params_, first, end), grads = handles(grads_, first, end),
               states = handles(states_, first < end ? first_states_[first] : end_state, end_state);
    std::vector<double> decays = rates.decay, lr_scales = rates.lr_scale;
    decays.resize(params_.size(), decays.back());
    if (!lr_scales.empty()) lr_scales.resize(params_.size(), lr_scales.back());
    chassis_optimizer_step_t step{};
    step.struct_size = sizeof step;
    step.num_tensors = static_cast<uint32_t>(params.size());
    step.step = number;
    step.lr = rates.lr;
    step.grad_scale = grad_scale;
    step.params = params.data();
    step.grads = grads.data();
    step.states = states.data();
    step.weight_decay = decays.data() + first;
    step.lr_scale = lr_scales.empty() ? nullptr : lr_scales.data() + first;
    std::vector<uint32_t> num_states;
    std::vector<const chassis_optimizer_parameter_t*> facts;
    for (size_t i = first; i < end; ++i) {
      num_states.push_back(static_cast<uint32_t>(described_[i].size()));
      facts.push_back(facts_[i]->raw());
    }
    step.num_states = num_states.data();
    step.parameters = facts.data();
    Tensor scale;
    if (device_scale != 0) {
      scale = Tensor::zeros(Sizes{}, Dtype::f32);
      scale.fill(device_scale);
      step.device_grad_scale = scale.handle();
    }
    Tensor scratch;
    if (const uint64_t bytes = plugin_->workspace_bytes(facts); bytes > 0) {
      scratch = Tensor::empty(Sizes{static_cast<int64_t>(bytes)}, Dtype::u8);
      step.workspace = scratch.data();
      step.workspace_bytes = bytes;
    }
    if (plugin_->sums()) {
      step.impl = this;
      step.sum_over_parameters = [](const chassis_optimizer_step_t* s, const double* values, uint32_t count,
                                    double* sums) {
        return guarded([&] { static_cast<Trial*>(s->impl)->sum(s->num_tensors, values, {sums, count}); });
      };
    }
    plugin_->step(step);
    return *this;
  }

  const OptimizerPlugin* plugin_;
  std::vector<std::shared_ptr<SteppedParameter>> facts_;
  std::vector<States> described_;
  std::vector<size_t> first_states_;
  std::vector<Tensor> params_, grads_, states_;
  std::vector<std::vector<double>> sums_;
  const std::vector<std::vector<double>>* replayed_ = nullptr;
  size_t num_replayed_ = 0;
};

class OptimizerExamination {
 public:
  OptimizerExamination(const OptimizerPlugin& plugin, const OptimizerPlugin& another)
      : plugin_(plugin), another_(another) {}

  std::vector<std::string> run() {
    for (const Sample& sample : kSamples) {
      examine_states(sample);
      if (!failures_.empty()) return failures_;
    }
    choose_samples();
    examine_steps();
    examine_decay();
    examine_second_decay();
    examine_descent();
    examine_repetition();
    examine_resumption();
    examine_growth();
    examine_division();
    examine_cuts();
    return failures_;
  }

 private:
  template <class... Args>
  void fail(fmt::format_string<Args...> format, Args&&... args) {
    failures_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  States states_of(const Sample& sample) const {
    return plugin_.describe(SteppedParameter(sample.name, sample.role, Shape(sample.sizes)));
  }

  void examine_states(const Sample& sample) {
    const SteppedParameter parameter(sample.name, sample.role, Shape(sample.sizes));
    std::vector<const chassis_state_desc_t*> first, second;
    States states;
    try {
      states = plugin_.states(parameter);
      plugin_.describe(parameter, &first);
    } catch (const Error& error) {
      return fail("{}", error.message());
    }
    for (const chassis_state_desc_t& state : states) examine_initial(state);
    if (!failures_.empty()) return;
    plugin_.describe(parameter, &second);
    for (const size_t count : {first.size(), second.size()})
      if (count != states.size())
        return fail("its number of states was {}, and {} in a further call", states.size(), count);
    for (size_t i = 0; i < states.size(); ++i)
      if (first[i] != second[i])
        fail("the second description of state '{}' has a different address", view_of(states[i].role));
  }

  // An initial value that the dtype cannot represent, but for rounding, would have another value in a run.
  void examine_initial(const chassis_state_desc_t& state) {
    const Tensor stored = Tensor::zeros(Sizes{1}, static_cast<Dtype>(state.dtype));
    std::string what = std::isfinite(state.initial) ? "" : "not finite";
    try {
      if (what.empty()) stored.fill(state.initial);
      const double error = std::abs(stored.item() - state.initial);
      const bool is_rounded = is_float(stored.dtype()) && error <= 0x1p-8 * std::abs(state.initial);
      if (what.empty() && error != 0 && !is_rounded) what = fmt::format("{} in this dtype", stored.item());
    } catch (const std::exception&) {  // thrown by LibTorch
      what = "outside of it";
    }
    if (!what.empty())
      fail("state '{}' of {} starts at {}, which is {}", view_of(state.role),
           dtype_name(static_cast<Dtype>(state.dtype)), state.initial, what);
  }

  // Keeps parameters with whole-matrix states small: work on them may grow with the cube of their size.
  void choose_samples() {
    for (Sample sample : kSamples) {
      if (is_whole(states_of(sample)) && count_of(sample.sizes) > 70 * 97) sample.sizes = {33, 64};
      samples_.push_back(sample);
    }
  }
  Trial trial() const { return Trial(plugin_, samples_); }

  void examine_steps() {
    const Trial start = trial();
    const Trial moved = trial().step(1, kNoDecay).step(2, kNoDecay).step(3, kNoDecay);
    if (!moved.all_finite()) fail("three steps leave values that are not finite");
    for (size_t i = 0; i < start.params().size(); ++i)
      if (Trial::difference(moved.params()[i], start.params()[i], "").empty())
        fail("three steps at lr 0.01 do not move parameter {} of {} elements", i, start.params()[i].num_elements());
    const Trial idle = trial().step_without_gradients(1, kNoDecay).step_without_gradients(2, kNoDecay);
    expect_same_parameters(idle, start, "without gradients and decay");
    expect_same_parameters(trial().step(1, {.lr = 0.0}).step(2, {.lr = 0.0}), start, "at lr 0");
  }

  // p ← p − lr · weight_decay · p in addition to the update (Loshchilov and Hutter 2019). In the first step, plain
  // gradient descent with weight decay in the gradient gives the same.
  void examine_decay() {
    const double lr = 0.01;
    const std::vector<double> decays = {0.1, 0.0, 3.0};
    const Trial start = trial();
    const Trial decayed = trial().step_without_gradients(1, {.lr = lr, .decay = decays});
    const Trial with = trial().step(1, {.lr = lr, .decay = decays}), without = trial().step(1, kNoDecay);
    for (size_t i = 0; i < start.params().size(); ++i) {
      const double decay = decays[std::min(i, decays.size() - 1)];
      const auto* p = start.params()[i].data_as<float>();
      const auto* alone = decayed.params()[i].data_as<float>();
      const auto* a = with.params()[i].data_as<float>();
      const auto* b = without.params()[i].data_as<float>();
      for (int64_t e = 0; e < start.params()[i].num_elements(); ++e) {
        const double wanted = -lr * decay * p[e], bound = 1e-6 * std::abs(p[e]) + 1e-3 * std::abs(wanted) + 1e-8;
        if (std::abs(static_cast<double>(alone[e]) - p[e] - wanted) > bound) {
          fail("weight decay {} at lr {} without gradients moves element {} of parameter {} from {} to {}, expected {}",
               decay, lr, e, i, p[e], alone[e], p[e] + wanted);
          break;
        }
        // Decay may apply to the parameter before the update or, as in bitsandbytes, to the updated one.
        const double update = static_cast<double>(b[e]) - p[e], got = static_cast<double>(a[e]) - b[e];
        const double off = std::min(std::abs(got - wanted), std::abs(got + lr * decay * b[e]));
        if (off > bound + 1e-6 * std::abs(update) + std::abs(wanted) * 1e-2) {
          fail("weight decay {} at lr {} moves element {} of parameter {} by {}, expected {} in addition to the update",
               decay, lr, e, i, got, wanted);
          break;
        }
      }
    }
  }

  // Decay that enters the momentum shows in the second step: it then decays by more than lr · weight_decay · p.
  void examine_second_decay() {
    const double lr = 0.01, decay = 0.5;
    const Trial::Rates rates{.lr = lr, .decay = {decay}};
    const Trial start = trial(), once = trial().step(1, rates), with = trial().step(1, rates).step(2, rates);
    const Trial without = trial().step(1, kNoDecay).step(2, kNoDecay);
    for (size_t i = 0; i < start.params().size(); ++i) {
      double wanted_size = 0, got_size = 0, product = 0;
      for (int64_t e = 0; e < start.params()[i].num_elements(); ++e) {
        const auto at = [&](const Trial& trial) { return static_cast<double>(trial.params()[i].data_as<float>()[e]); };
        const double wanted = -lr * decay * (at(start) + at(once)), got = at(with) - at(without);
        wanted_size += wanted * wanted;
        got_size += got * got;
        product += got * wanted;
      }
      // An update may depend on the size of the parameter, which decay changes a little. A parameter that holds an
      // average of iterates (Defazio et al. 2024) receives up to half of the second decay later.
      const double along = product / wanted_size;
      const double across = std::sqrt(std::max(0.0, got_size - along * product) / wanted_size);
      if (!(along > 0.7 && along < 1.2 && across < 0.2))
        return fail(
            "weight decay {} at lr {} moves parameter {} in two steps by another vector than -lr · weight_decay · p of "
            "each step: by {:.3g} times as much along it, expected 0.7 to 1.2, and {:.3g} across it, expected at most "
            "0.2; decay must not enter the update or its states",
            decay, lr, i, along, across);
    }
  }

  void examine_descent() {
    constexpr int kNumSteps = 10;
    const auto loss_of = [](const Trial& trial) {
      double sum = 0;
      for (const Tensor& p : trial.params())
        for (int64_t e = 0; e < p.num_elements(); ++e) sum += std::pow(p.data_as<float>()[e], 2) / 2;
      return sum;
    };
    Trial subject = trial();
    const double before = loss_of(subject);
    for (int number = 1; number <= kNumSteps; ++number) subject.step_down_a_square(number);
    if (const double after = loss_of(subject); !(after < before))
      fail("the loss p²/2 rises from {:.6g} to {:.6g} in {} steps at lr 0.01, expected it to fall", before, after,
           kNumSteps);
  }

  void examine_repetition() {
    const Trial first = trial().step(1).step(2);
    expect_same(trial().step(1).step(2), first, "the same two steps repeated");
    expect_same(trial().step(1, {}, 2.0).step(2, {}, 2.0), first, "gradients doubled and scaled by 1/2");
    expect_same(trial().step(1, {}, 2.0, true).step(2, {}, 2.0, true), first,
                "gradients doubled and a device_grad_scale of 1/2");
    const std::vector<double> scales = {2.0, 0.5};
    const Trial scaled = trial().step(1, {.lr_scale = scales}), half = trial().step(1, {.lr = 0.005}),
                twice = trial().step(1, {.lr = 0.02});
    for (size_t i = 0; i < scaled.params().size(); ++i) {
      const std::string text =
          Trial::difference(scaled.params()[i], (i == 0 ? twice : half).params()[i], fmt::format("parameter {}", i));
      if (!text.empty())
        fail("lr_scale {} gives different bits from lr times as much: {}", scales[std::min<size_t>(i, 1)], text);
    }
    const int threads = num_threads();
    set_threads(1);
    const Trial alone = trial().step(1).step(2);
    set_threads(threads);
    expect_same(alone, first, fmt::format("one thread instead of {}", threads));
  }

  void examine_resumption() {
    const Trial straight = trial().step(1).step(2).step(3).step(4);
    expect_same(
        trial().step(1).step(2).go_on_with(another_).step(3).step(4), straight,
        "steps 3 and 4 by another instance, as after a resume; all that a step needs of earlier ones must be in "
        "its states");
  }

  void examine_growth() {
    Trial subject = trial();
    int64_t number = 0;
    const std::string text = growth_of("steps", 30, [&] { subject.step(++number); });
    if (!text.empty()) fail("{}", text);
  }

  // Each rank steps some of the parameters; the mesh determines which.
  void examine_division() {
    const Trial whole = trial().step(1).step(2);
    Trial parts = trial().with_sums_of(whole);
    parts.step_one_by_one(1).step_one_by_one(2);
    const std::string text = parts.difference(whole);
    if (!text.empty())
      fail(
          "parameters that are stepped one by one are updated differently from all in one call: {}; which of them a "
          "rank steps depends on the mesh, so a sum over them needs sum_over_parameters",
          text);
    else if (const std::string wrong = plugin_.sums() ? parts.wrong_addends() : ""; !wrong.empty())
      fail("parameters that are stepped one by one: {}", wrong);
  }

  // Examines cuts for the units of small and of large parameters, also if the last block covers fewer elements.
  void examine_cuts() {
    for (const uint32_t role : {CHASSIS_ROLE_WEIGHT, CHASSIS_ROLE_EMBEDDING, CHASSIS_ROLE_NORM}) {
      const Sample large{"large", role, {6, 50 * 4096}};
      std::vector<int64_t> units = {unit_of(states_of({"small", role, {6, 50}}))};
      if (const States states = states_of(large); !is_whole(states)) units.push_back(unit_of(states));
      if (units.size() > 1 && units[1] == units[0]) units.pop_back();
      for (const int64_t unit : units) {
        const int64_t count = num_units(unit);
        const Sample whole{"whole", role, {6, count / 6 * unit}}, ragged{"ragged", role, {count * unit - unit / 2}};
        for (const Sample& sample : {whole, ragged}) {
          const States states = states_of(sample);
          if (is_whole(states) || unit % unit_of(states) != 0) continue;
          if (!examine_cuts_of(sample, unit)) return;
          if (unit == 1) break;
        }
      }
    }
  }

  // The number of units of a parameter that is cut: a multiple of 6, and fewer if units are large.
  static int64_t num_units(int64_t unit) { return std::clamp<int64_t>(300 * 4096 / unit, 6, 300) / 6 * 6; }

  // Two pieces, cuts near the edges, many pieces, and an empty piece, as a rank may have.
  bool examine_cuts_of(const Sample& sample, int64_t unit) {
    const int64_t count = num_units(unit);
    for (std::vector<int64_t> cuts :
         {std::vector<int64_t>{113}, {1}, {299}, {64, 64, 128}, {7, 20, 33, 100, 101, 250}}) {
      for (int64_t& cut : cuts) cut = std::clamp<int64_t>(cut * count / 300, 1, count - 1) * unit;
      Trial whole(plugin_, {sample});
      Trial parts = Trial::pieces(plugin_, sample, whole, cuts);
      if (plugin_.sums()) parts.with_sums_of(whole);
      for (int64_t step : {1, 2}) {
        whole.step(step);
        parts.step_with_gradients_of(step, whole);
      }
      std::string text = difference_of_pieces(parts, whole);
      if (text.empty() && plugin_.sums()) text = parts.wrong_addends();
      if (text.empty()) continue;
      const States& states = whole.described(0);
      const bool has_scalars = std::any_of(states.begin(), states.end(),
                                           [](const auto& state) { return state.shape == CHASSIS_STATE_SCALAR; });
      fail("a parameter cut at element {} is updated differently from the whole parameter{}: {}", fmt::join(cuts, ", "),
           has_scalars ? " (a scalar state must not depend on the parameter's elements)" : "", text);
      return false;
    }
    return true;
  }

  static std::string difference_of_pieces(const Trial& parts, const Trial& whole) {
    const States& states = whole.described(0);
    const Tensor flat = whole.params()[0].flat();
    int64_t begin = 0;
    for (size_t part = 0; part < parts.params().size(); begin += parts.params()[part++].num_elements()) {
      const Tensor& got = parts.params()[part];
      if (got.num_elements() == 0) continue;
      std::string text =
          Trial::difference(got, flat.narrow(0, begin, got.num_elements()), fmt::format("piece {}", part));
      for (size_t j = 0; text.empty() && j < states.size(); ++j) {
        if (states[j].shape == CHASSIS_STATE_SCALAR) {
          text = Trial::difference(parts.state(part, j), whole.state(0, j),
                                   fmt::format("scalar state '{}' of piece {}", view_of(states[j].role), part));
          continue;
        }
        const int64_t block = states[j].shape == CHASSIS_STATE_PER_BLOCK ? states[j].block : 1;
        const Tensor& of_part = parts.state(part, j);
        text = Trial::difference(of_part, whole.state(0, j).flat().narrow(0, begin / block, of_part.num_elements()),
                                 fmt::format("state '{}' of piece {}", view_of(states[j].role), part));
      }
      if (!text.empty()) return text;
    }
    return "";
  }

  void expect_same_parameters(const Trial& got, const Trial& expected, const std::string& what) {
    for (size_t i = 0; i < expected.params().size(); ++i) {
      const std::string text =
          Trial::difference(got.params()[i], expected.params()[i], "parameter " + std::to_string(i));
      if (!text.empty()) fail("{}: {}", what, text);
    }
  }
  void expect_same(const Trial& got, const Trial& expected, const std::string& what) {
    const std::string text = got.difference(expected);
    if (!text.empty()) fail("different bits with {}: {}", what, text);
  }

  const OptimizerPlugin& plugin_;
  const OptimizerPlugin& another_;
  std::vector<Sample> samples_;
  std::vector<std::string> failures_;
};

}  // namespace

std::vector<std::string> optimizer_failures(const OptimizerPlugin& plugin, const OptimizerPlugin& another) {
  return OptimizerExamination(plugin, another).run();
}

}  // namespace chassis
