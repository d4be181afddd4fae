// Another optimizer with gradients that do not depend on the layout: a function of the parameter's name, the place of
// the element in the whole parameter, and the number of the step.
#include <string>
#include <vector>

#include "chassis/members.hpp"
#include "chassis/optimizer.hpp"
#include "chassis/options.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

// SplitMix64 (Steele et al. 2014), as a number between -1 and 1 of any magnitude.
float gradient_of(uint64_t seed) {
  uint64_t z = seed + 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  const float unit = static_cast<float>(static_cast<int64_t>(z >> 40)) / 8388608.0f - 1.0f;
  return unit / static_cast<float>(int64_t{1} << (z & 15));
}

class Fed final : public Optimizer {
 public:
  static constexpr std::string_view kDoc = "another optimizer with gradients of its own, for tests";
  static const Options& options() {
    static const Options schema = {option("inner", "adamw").doc("the other optimizer"),
                                   option("inner_options", "").doc("its options, in JSON")};
    return schema;
  }
  explicit Fed(const Host& host)
      : Optimizer(host),
        inner_(host, "optimizer", option_value<std::string>(host, "inner"), CHASSIS_OPTIMIZER_ID,
               option_value<std::string>(host, "inner_options")) {}

  std::span<const chassis_state_desc_t> states(const OptimizerParameter& parameter) const override {
    const chassis_state_desc_t* found = nullptr;
    uint32_t count = 0;
    host().check(inner_.table().states(inner_.self(), &parameter.raw(), &found, &count));
    return {found, count};
  }
  uint64_t workspace_bytes(std::span<const OptimizerParameter> parameters) const override {
    std::vector<const chassis_optimizer_parameter_t*> list;
    for (const OptimizerParameter& p : parameters) list.push_back(&p.raw());
    const auto bytes = inner_.table().workspace_bytes;
    return bytes == nullptr ? 0 : bytes(inner_.self(), list.data(), static_cast<uint32_t>(list.size()));
  }
  void step(const OptimizerStep& step) override {
    for (uint32_t i = 0; i < step.num_tensors(); ++i) feed(step, i);
    host().check(inner_.table().step(inner_.self(), &step.raw()));
  }

 private:
  static void feed(const OptimizerStep& step, uint32_t i) {
    const OptimizerParameter p = step.parameter(i);
    const auto shape = p.global_shape();
    uint64_t seed = static_cast<uint64_t>(step.step());
    for (const char c : p.name()) seed = seed * 1000003 + static_cast<unsigned char>(c);
    float* out = step.grad(i).data<float>();
    for (uint32_t b = 0; b < p.num_boxes(); ++b) {
      std::vector<int64_t> at(p.box_begin(b).begin(), p.box_begin(b).end());
      while (at[0] < p.box_end(b)[0]) {
        int64_t index = 0;
        for (size_t k = 0; k < shape.size(); ++k) index = index * shape[k] + at[k];
        *out++ = gradient_of(seed * 0x100000001b3u + static_cast<uint64_t>(index));
        for (size_t k = shape.size(); k-- > 0;) {
          if (++at[k] < p.box_end(b)[k] || k == 0) break;
          at[k] = p.box_begin(b)[k];
        }
      }
    }
  }

  OpenedMember<chassis_optimizer_t> inner_;
};

}  // namespace

CHASSIS_PLUGIN("requires=chassis.options/1\nrequires=chassis.members/1\nlicense=Apache-2.0\n", Fed)
