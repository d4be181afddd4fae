// An optimizer with an 8-bit momentum (Dettmers et al. 2022): codes in blocks, absmax and mean square per block, and
// the number of steps per parameter. A block that is cut or padded gives different results.
#include <algorithm>
#include <cmath>

#include "chassis/optimizer.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

constexpr int64_t kBlock = 48;

class Blockwise final : public Optimizer {
 public:
  static constexpr std::string_view kDoc = "momentum in blocks of 48 codes of 8 bits";
  static const Options& options() {
    static const Options schema = {option("momentum", 0.9).range(0, 1).doc("share of the last update that is kept")};
    return schema;
  }
  explicit Blockwise(const Host& host)
      : Optimizer(host), momentum_(static_cast<float>(option_value<double>(host, "momentum"))) {}

  std::span<const chassis_state_desc_t> states(const OptimizerParameter&) const override {
    static constexpr chassis_state_desc_t kSteps = {sizeof(chassis_state_desc_t),
                                                    CHASSIS_DTYPE_F32,
                                                    {"steps", 5},
                                                    CHASSIS_STATE_SCALAR,
                                                    CHASSIS_GRANULARITY_ELEMENT,
                                                    1,
                                                    0.0};
    static constexpr chassis_state_desc_t kStates[] = {block_state("code", kBlock, CHASSIS_DTYPE_U8),
                                                       per_block_state("absmax", kBlock),
                                                       per_block_state("mean_square", kBlock), kSteps};
    return kStates;
  }
  void step(const OptimizerStep& step) override {
    for (uint32_t i = 0; i < step.num_tensors(); ++i) {
      const int64_t count = step.param(i).num_elements(), blocks = (count + kBlock - 1) / kBlock;
      if (step.state(i, 1).num_elements() != blocks)
        fail_invalid("parameter ", i, " of ", count, " elements has ", step.state(i, 1).num_elements(), " blocks");
      float* steps = step.state(i, 3).data<float>();
      *steps += 1;
      for (int64_t b = 0; b < blocks; ++b) step_block(step, i, b, std::min(kBlock, count - b * kBlock), *steps);
    }
  }

 private:
  void step_block(const OptimizerStep& step, uint32_t i, int64_t block, int64_t length, float steps) const {
    float* p = step.param(i).data<float>() + block * kBlock;
    const float* g = step.grad(i).data<float>() + block * kBlock;
    uint8_t* code = step.state(i, 0).data<uint8_t>() + block * kBlock;
    float &absmax = step.state(i, 1).data<float>()[block], &square = step.state(i, 2).data<float>()[block];
    const auto scale = static_cast<float>(step.grad_scale());
    float m[kBlock], largest = 0, sum = 0;
    for (int64_t e = 0; e < length; ++e) {
      const float before = absmax == 0 ? 0 : absmax * (static_cast<float>(code[e]) - 128) / 127;
      m[e] = momentum_ * before + (1 - momentum_) * g[e] * scale;
      largest = std::max(largest, std::abs(m[e]));
      sum += g[e] * scale * g[e] * scale;
    }
    square = momentum_ * square + (1 - momentum_) * sum / static_cast<float>(length);
    absmax = largest;
    const float lr = static_cast<float>(step.lr(i)) / (1 - std::pow(momentum_, steps));
    for (int64_t e = 0; e < length; ++e) {
      code[e] = static_cast<uint8_t>(absmax == 0 ? 128 : 128 + std::lround(127 * m[e] / absmax));
      p[e] -= lr * m[e] / (std::sqrt(square) + 1e-6f);
    }
  }

  const float momentum_;
};

}  // namespace

CHASSIS_PLUGIN("requires=chassis.options/1\nlicense=Apache-2.0\n", Blockwise)
