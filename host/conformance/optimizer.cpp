// Steps on random parameters and gradients, repeated under variations that must not change the result.
#include "host/conformance/optimizer.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <numeric>
#include <set>
#include <utility>

#include "host/base/error.hpp"
#include "host/conformance/growth.hpp"
#include "host/plugin/call.hpp"
#include "host/plugin/sized.hpp"
#include "host/plugin/status.hpp"
#include "host/service/rng.hpp"
#include "host/service/tensor.hpp"
#include "host/service/threads.hpp"

namespace chassis {
namespace {

using Sizes = std::vector<int64_t>;

struct Subject {
  const chassis_optimizer_t& table;
  chassis_instance* self;
  std::string label;
  std::vector<chassis_state_desc_t> states;
  int64_t unit = 1;                     // a parameter may be cut at multiples of this many elements
  bool needs_whole_parameters = false;  // a parameter may not be cut
};

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

  Trial(const Subject& subject, const std::vector<Sizes>& shapes) : subject_(subject) {
    for (const Sizes& sizes : shapes) {
      params_.push_back(random("parameter", sizes));
      grads_.push_back(Tensor::zeros(sizes, Dtype::f32));
      for (const chassis_state_desc_t& state : subject.states) {
        states_.push_back(Tensor::zeros(sizes_of(state, sizes), static_cast<Dtype>(state.dtype)));
      }
    }
  }

  // A step with random gradients of step `number`, times `factor`, and grad_scale 1 / factor.
  Trial& step(int64_t number, const Rates& rates, double factor = 1.0) {
    for (size_t i = 0; i < grads_.size(); ++i) {
      grads_[i].copy_from(random("gradient of step " + std::to_string(number), grads_[i].sizes(), i));
      grads_[i].multiply(factor);
    }
    return run(number, rates, 1.0 / factor);
  }
  Trial& step(int64_t number) { return step(number, Rates()); }
  Trial& step_without_gradients(int64_t number, const Rates& rates) {
    for (const Tensor& grad : grads_) grad.zero();
    return run(number, rates, 1.0);
  }
  // A step down p²/2, whose gradient is p.
  Trial& step_down_a_square(int64_t number) {
    for (size_t i = 0; i < grads_.size(); ++i) grads_[i].copy_from(params_[i]);
    return run(number, kNoDecay, 1.0);
  }
  // The first parameter of `whole`, cut at the elements `cuts`; each piece is a parameter.
  static Trial pieces(const Subject& subject, const Trial& whole, const std::vector<int64_t>& cuts) {
    const Tensor flat = whole.params_[0].flat();
    std::vector<Sizes> sizes;
    for (size_t i = 0; i <= cuts.size(); ++i)
      sizes.push_back({(i < cuts.size() ? cuts[i] : flat.num_elements()) - (i > 0 ? cuts[i - 1] : 0)});
    Trial out(subject, sizes);
    out.take_pieces(out.params_, flat);
    return out;
  }
  // A step with the gradients of the first parameter of `whole`, cut into pieces.
  Trial& step_with_gradients_of(int64_t number, const Trial& whole) {
    take_pieces(grads_, random("gradient of step " + std::to_string(number), whole.params_[0].sizes()).flat());
    return run(number, Rates(), 1.0);
  }

  const std::vector<Tensor>& params() const { return params_; }
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
    for (size_t i = 0; i < states_.size(); ++i) {
      const auto role = view_of(subject_.states[i % subject_.states.size()].role);
      std::string text = difference(states_[i], expected.states_[i], fmt::format("state '{}'", role));
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
  static Sizes sizes_of(const chassis_state_desc_t& state, const Sizes& parameter) {
    if (state.shape == CHASSIS_STATE_SCALAR) return {1};
    if (state.shape == CHASSIS_STATE_LIKE_PARAMETER) return parameter;
    const int64_t elements = std::accumulate(parameter.begin(), parameter.end(), int64_t{1}, std::multiplies<>());
    return {(elements + state.block - 1) / state.block};
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

  Trial& run(int64_t number, const Rates& rates, double grad_scale) {
    const auto handles = [](const std::vector<Tensor>& tensors) {
      std::vector<chassis_tensor_t> out;
      for (const Tensor& tensor : tensors) out.push_back(tensor.handle());
      return out;
    };
    const auto params = handles(params_), grads = handles(grads_), states = handles(states_);
    std::vector<double> decays = rates.decay, lr_scales = rates.lr_scale;
    decays.resize(params.size(), decays.back());
    if (!lr_scales.empty()) lr_scales.resize(params.size(), lr_scales.back());
    chassis_optimizer_step_t step{};
    step.struct_size = sizeof step;
    step.num_tensors = static_cast<uint32_t>(params.size());
    step.step = number;
    step.lr = rates.lr;
    step.grad_scale = grad_scale;
    step.params = params.data();
    step.grads = grads.data();
    step.states = states.data();
    step.weight_decay = decays.data();
    step.lr_scale = lr_scales.empty() ? nullptr : lr_scales.data();
    const PluginCall call(call_site(subject_.label), "step");
    throw_if_failed(subject_.table.step(subject_.self, &step), subject_.label);
    return *this;
  }

  const Subject& subject_;
  std::vector<Tensor> params_, grads_, states_;
};

class OptimizerExamination {
 public:
  OptimizerExamination(const chassis_optimizer_t& table, chassis_instance* self, const std::string& label)
      : subject_{table, self, label, {}} {}

  std::vector<std::string> run() {
    examine_states();
    if (!failures_.empty()) return failures_;
    examine_steps();
    examine_decay();
    examine_second_decay();
    examine_descent();
    examine_repetition();
    examine_growth();
    if (!subject_.needs_whole_parameters) examine_cuts();
    return failures_;
  }

 private:
  template <class... Args>
  void fail(fmt::format_string<Args...> format, Args&&... args) {
    failures_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  void examine_states() {
    const uint32_t count = subject_.table.num_states(subject_.self);
    std::set<std::string_view> roles;
    for (uint32_t i = 0; i < count; ++i) {
      const chassis_state_desc_t* described = subject_.table.state(subject_.self, i);
      chassis_state_desc_t state{};
      try {
        state = read_struct(described, fmt::format("the description of state {} of {}", i, count));
      } catch (const Error& error) {
        return fail("{}", error.message());
      }
      const std::string_view role = view_of(state.role);
      const bool is_plain = !role.empty() && std::all_of(role.begin(), role.end(), [](char c) {
        return c == '_' || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
      });
      if (!is_plain) fail("state {} has the role '{}', expected lower-case letters, digits and '_'", i, role);
      if (!roles.insert(role).second) fail("two states have the role '{}'", role);
      if (size_bytes(static_cast<Dtype>(state.dtype)) == 0)
        fail("state '{}' has the unknown dtype {}", role, state.dtype);
      if (state.shape < CHASSIS_STATE_LIKE_PARAMETER || state.shape > CHASSIS_STATE_PER_BLOCK)
        fail("state '{}' has the unknown shape {}", role, state.shape);
      if (state.granularity < CHASSIS_GRANULARITY_ELEMENT || state.granularity > CHASSIS_GRANULARITY_MATRIX)
        fail("state '{}' has the unknown granularity {}", role, state.granularity);
      const bool of_blocks = state.granularity == CHASSIS_GRANULARITY_BLOCK || state.shape == CHASSIS_STATE_PER_BLOCK;
      if (of_blocks && state.block < 1)
        fail("state '{}' is cut in blocks of {} elements, expected at least 1", role, state.block);
      else if (of_blocks)
        subject_.unit = std::lcm(subject_.unit, state.block);
      subject_.needs_whole_parameters |= state.granularity == CHASSIS_GRANULARITY_MATRIX;
      subject_.states.push_back(state);
      if (subject_.table.state(subject_.self, i) != described)
        fail("the second description of state '{}' has a different address", role);
    }
    if (const uint32_t again = subject_.table.num_states(subject_.self); again != count)
      fail("its number of states was {}, and {} in a second call", count, again);
  }

  // Sizes that are not multiples of a vector, and one that is divided between several threads.
  std::vector<Sizes> shapes() const {
    if (subject_.needs_whole_parameters) return {{7, 11}, {33, 64}};
    return {{7, 11 * subject_.unit}, {subject_.unit}, {(70001 / subject_.unit + 1) * subject_.unit}};
  }
  Trial trial() const { return Trial(subject_, shapes()); }

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

  // p ← p − lr · weight_decay · p in addition to the update (Loshchilov and Hutter 2019). In the first step, weight
  // decay in the gradient of plain gradient descent gives the same.
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
        const double update = std::abs(static_cast<double>(b[e]) - p[e]);
        if (std::abs(static_cast<double>(a[e]) - b[e] - wanted) > bound + 1e-6 * update + std::abs(wanted) * 1e-2) {
          fail("weight decay {} at lr {} moves element {} of parameter {} by {}, expected {} in addition to the update",
               decay, lr, e, i, static_cast<double>(a[e]) - b[e], wanted);
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
      double wanted_size = 0, difference_size = 0;
      for (int64_t e = 0; e < start.params()[i].num_elements(); ++e) {
        const auto at = [&](const Trial& trial) { return static_cast<double>(trial.params()[i].data_as<float>()[e]); };
        const double wanted = -lr * decay * (at(start) + at(once)), got = at(with) - at(without);
        wanted_size += wanted * wanted;
        difference_size += (got - wanted) * (got - wanted);
      }
      // An update may depend on the size of the parameter, which decay changes a little.
      if (std::sqrt(difference_size) > 0.2 * std::sqrt(wanted_size))
        return fail(
            "weight decay {} at lr {} moves parameter {} in two steps by another vector than -lr · weight_decay · p of "
            "each step: it differs by {:.3g} of a length of {:.3g}; decay must not enter the update or its states",
            decay, lr, i, std::sqrt(difference_size), std::sqrt(wanted_size));
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

  void examine_growth() {
    Trial subject = trial();
    int64_t number = 0;
    const std::string text = growth_of("steps", 30, [&] { subject.step(++number); });
    if (!text.empty()) fail("{}", text);
  }

  void examine_cuts() {
    const bool has_scalars = std::any_of(subject_.states.begin(), subject_.states.end(),
                                         [](const auto& state) { return state.shape == CHASSIS_STATE_SCALAR; });
    const int64_t unit = subject_.unit;
    // Two pieces, cuts near the edges, many pieces, and an empty piece, as a rank may have.
    for (std::vector<int64_t> cuts :
         {std::vector<int64_t>{113}, {1}, {299}, {64, 64, 128}, {7, 20, 33, 100, 101, 250}}) {
      for (int64_t& cut : cuts) cut *= unit;
      Trial whole(subject_, {{6, 50 * unit}});
      Trial parts = Trial::pieces(subject_, whole, cuts);
      for (int64_t step : {1, 2}) {
        parts.step_with_gradients_of(step, whole);
        whole.step(step);
      }
      const Tensor flat = whole.params()[0].flat();
      int64_t begin = 0;
      for (size_t part = 0; part < parts.params().size(); begin += parts.params()[part++].num_elements()) {
        const Tensor& got = parts.params()[part];
        const std::string text =
            Trial::difference(got, flat.narrow(0, begin, got.num_elements()), fmt::format("piece {}", part));
        if (text.empty()) continue;
        return fail("a parameter cut at element {} is updated differently from the whole parameter{}: {}",
                    fmt::join(cuts, ", "),
                    has_scalars ? " (a scalar state must not depend on the parameter's elements)" : "", text);
      }
    }
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

  Subject subject_;
  std::vector<std::string> failures_;
};

}  // namespace

std::vector<std::string> optimizer_failures(const chassis_optimizer_t& optimizer, chassis_instance* self,
                                            const std::string& label) {
  return OptimizerExamination(optimizer, self, label).run();
}

}  // namespace chassis
