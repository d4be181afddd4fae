#include "host/train/optimizer_conformance.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <set>
#include <utility>

#include "host/base/error.hpp"
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
  std::string who;
  std::vector<chassis_state_desc_t> states;
  int64_t unit = 1;           // elements between legal cuts
  bool is_of_matrices = false;  // no cuts at all
};

// Parameters with their states, before and after steps.
class Trial {
 public:
  Trial(const Subject& subject, const std::vector<Sizes>& shapes) : subject_(subject) {
    for (const Sizes& sizes : shapes) {
      params_.push_back(random("parameter", sizes));
      grads_.push_back(Tensor::zeros(sizes, Dtype::f32));
      for (const chassis_state_desc_t& state : subject.states) {
        states_.push_back(Tensor::zeros(sizes_of(state, sizes), static_cast<Dtype>(state.dtype)));
      }
    }
  }

  // Gradients of that step times `factor`, which grad_scale takes back.
  Trial& step(int64_t number, double decay = 0.1, double factor = 1.0) {
    for (size_t i = 0; i < grads_.size(); ++i) {
      grads_[i].copy_from(random("gradient of step " + std::to_string(number), grads_[i].sizes(), i));
      grads_[i].multiply(factor);
    }
    return run(number, decay, 1.0 / factor);
  }
  Trial& step_without_gradients(int64_t number) {
    for (const Tensor& grad : grads_) grad.zero();
    return run(number, 0.0, 1.0);
  }
  // Cuts parameter 0, and what stands for its gradients, out of the first parameter of `whole`.
  static Trial pieces(const Subject& subject, const Trial& whole, int64_t cut) {
    const Tensor flat = whole.params_[0].flat();
    Trial out(subject, {{cut}, {flat.num_elements() - cut}});
    out.params_[0].copy_from(flat.narrow(0, 0, cut));
    out.params_[1].copy_from(flat.narrow(0, cut, flat.num_elements() - cut));
    return out;
  }
  Trial& step_as(int64_t number, const Trial& whole) {
    const Tensor flat = random("gradient of step " + std::to_string(number), whole.params_[0].sizes()).flat();
    const int64_t cut = params_[0].num_elements();
    grads_[0].copy_from(flat.narrow(0, 0, cut));
    grads_[1].copy_from(flat.narrow(0, cut, flat.num_elements() - cut));
    return run(number, 0.1, 1.0);
  }

  const std::vector<Tensor>& params() const { return params_; }
  bool all_finite() const {
    const auto finite = [](const Tensor& tensor) { return tensor.all_finite(); };
    return std::all_of(params_.begin(), params_.end(), finite) && std::all_of(states_.begin(), states_.end(), finite);
  }
  // Where the bits of parameters and states differ first; empty if nowhere.
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

  Trial& run(int64_t number, double decay, double grad_scale) {
    const auto handles = [](const std::vector<Tensor>& tensors) {
      std::vector<chassis_tensor_t> out;
      for (const Tensor& tensor : tensors) out.push_back(tensor.handle());
      return out;
    };
    const auto params = handles(params_), grads = handles(grads_), states = handles(states_);
    const std::vector<double> decays(params.size(), decay);
    chassis_optimizer_step_t step{};
    step.struct_size = sizeof step;
    step.num_tensors = static_cast<uint32_t>(params.size());
    step.step = number;
    step.lr = 0.01;
    step.grad_scale = grad_scale;
    step.params = params.data();
    step.grads = grads.data();
    step.states = states.data();
    step.weight_decay = decays.data();
    throw_if_failed(subject_.table.step(subject_.self, &step), subject_.who);
    return *this;
  }

  const Subject& subject_;
  std::vector<Tensor> params_, grads_, states_;
};

class Examination {
 public:
  Examination(const chassis_optimizer_t& table, chassis_instance* self, const std::string& who)
      : subject_{table, self, who, {}} {}

  std::vector<std::string> run() {
    examine_states();
    if (!failures_.empty()) return failures_;
    examine_steps();
    examine_repetition();
    if (!subject_.is_of_matrices) examine_cuts();
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
      const chassis_state_desc_t* state = subject_.table.state(subject_.self, i);
      if (state == nullptr) return fail("state {} of {} has no description", i, count);
      const std::string_view role = view_of(state->role);
      const bool is_plain = !role.empty() && std::all_of(role.begin(), role.end(), [](char c) {
        return c == '_' || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
      });
      if (!is_plain) fail("state {} has the role '{}', expected lower-case letters, digits and '_'", i, role);
      if (!roles.insert(role).second) fail("two states have the role '{}'", role);
      if (size_bytes(static_cast<Dtype>(state->dtype)) == 0) fail("state '{}' has the unknown dtype {}", role, state->dtype);
      if (state->shape < CHASSIS_STATE_LIKE_PARAMETER || state->shape > CHASSIS_STATE_PER_BLOCK)
        fail("state '{}' has the unknown shape {}", role, state->shape);
      if (state->granularity < CHASSIS_GRANULARITY_ELEMENT || state->granularity > CHASSIS_GRANULARITY_MATRIX)
        fail("state '{}' has the unknown granularity {}", role, state->granularity);
      const bool of_blocks = state->granularity == CHASSIS_GRANULARITY_BLOCK || state->shape == CHASSIS_STATE_PER_BLOCK;
      if (of_blocks && state->block < 1)
        fail("state '{}' is cut in blocks of {} elements, expected at least 1", role, state->block);
      else if (of_blocks)
        subject_.unit = std::lcm(subject_.unit, state->block);
      subject_.is_of_matrices |= state->granularity == CHASSIS_GRANULARITY_MATRIX;
      subject_.states.push_back(*state);
      if (subject_.table.state(subject_.self, i) != state) fail("state '{}' is described elsewhere when asked again", role);
    }
    if (const uint32_t again = subject_.table.num_states(subject_.self); again != count)
      fail("it has {} states, and {} when asked again", count, again);
  }

  // Sizes with tails behind vectors, and one that several threads share.
  std::vector<Sizes> shapes() const {
    if (subject_.is_of_matrices) return {{7, 11}, {33, 64}};
    return {{7, 11 * subject_.unit}, {subject_.unit}, {(70001 / subject_.unit + 1) * subject_.unit}};
  }
  Trial trial() const { return Trial(subject_, shapes()); }

  void examine_steps() {
    const Trial start = trial();
    const Trial moved = trial().step(1, 0.0).step(2, 0.0).step(3, 0.0);
    if (!moved.all_finite()) fail("three steps leave values that are not finite");
    for (size_t i = 0; i < start.params().size(); ++i)
      if (Trial::difference(moved.params()[i], start.params()[i], "").empty())
        fail("three steps at lr 0.01 do not move parameter {} of {} elements", i, start.params()[i].num_elements());
    const Trial idle = trial().step_without_gradients(1).step_without_gradients(2);
    for (size_t i = 0; i < start.params().size(); ++i) {
      const std::string text = Trial::difference(idle.params()[i], start.params()[i], "parameter " + std::to_string(i));
      if (!text.empty()) fail("without gradients and decay {}", text);
    }
  }

  void examine_repetition() {
    const Trial first = trial().step(1).step(2);
    expect_same(trial().step(1).step(2), first, "the same two steps again");
    expect_same(trial().step(1, 0.1, 2.0).step(2, 0.1, 2.0), first, "gradients doubled and scaled by 1/2");
    const int threads = num_threads();
    set_threads(1);
    const Trial alone = trial().step(1).step(2);
    set_threads(threads);
    expect_same(alone, first, fmt::format("one thread instead of {}", threads));
  }

  void examine_cuts() {
    const bool has_scalars = std::any_of(subject_.states.begin(), subject_.states.end(), [](const auto& state) {
      return state.shape == CHASSIS_STATE_SCALAR;
    });
    Trial whole(subject_, {{6, 50 * subject_.unit}});
    const int64_t cut = 113 * subject_.unit;
    Trial parts = Trial::pieces(subject_, whole, cut);
    for (int64_t step : {1, 2}) {
      parts.step_as(step, whole);
      whole.step(step);
    }
    const Tensor flat = whole.params()[0].flat();
    for (const auto& [part, begin] : {std::pair(0, int64_t{0}), std::pair(1, cut)}) {
      const Tensor& got = parts.params()[static_cast<size_t>(part)];
      const std::string text = Trial::difference(got, flat.narrow(0, begin, got.num_elements()), fmt::format("piece {}", part));
      if (!text.empty())
        fail("a parameter cut at element {} steps otherwise than the whole{}: {}", cut,
             has_scalars ? " (a scalar state must not depend on the parameter's elements)" : "", text);
    }
  }

  void expect_same(const Trial& got, const Trial& expected, const std::string& what) {
    const std::string text = got.difference(expected);
    if (!text.empty()) fail("other bits with {}: {}", what, text);
  }

  Subject subject_;
  std::vector<std::string> failures_;
};

}  // namespace

std::vector<std::string> optimizer_failures(const chassis_optimizer_t& optimizer, chassis_instance* self,
                                            const std::string& who) {
  return Examination(optimizer, self, who).run();
}

}  // namespace chassis
