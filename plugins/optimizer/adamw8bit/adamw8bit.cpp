// AdamW with 8-bit states (Dettmers et al. 2022): each block of 256 elements has codes and a largest magnitude for both
// averages. Small parameters keep fp32 states and are stepped as by adamw.
#include <cmath>
#include <vector>

#include "blocks.hpp"
#include "chassis/optimizer.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;
using namespace adamw8bit;

class AdamW8bit final : public Optimizer {
 public:
  static constexpr std::string_view kDoc = "AdamW with 8-bit states: 2 bytes for each parameter instead of 8";

  static const Options& options() {
    static const Options schema = {
        option("beta1", 0.9).range(0, 1).doc("decay of the average gradient"),
        option("beta2", 0.999).range(0, 1).doc("decay of the average squared gradient"),
        option("betas", std::vector<double>{}).range(0, 1).doc("both of them as a list, such as [0.9, 0.95]"),
        option("eps", 1e-8).range(0, 1).doc("added to the root of the average squared gradient"),
        option("order", "torch")
            .choices({"torch", "bnb"})
            .doc("torch: weight decay before the update, nearest codes; bnb: as the CUDA kernels of bitsandbytes, "
                 "decay after it, and codes that keep the sign of the average"),
        option("min_8bit_size", 4096)
            .range(0, 1e15)
            .doc("parameters of fewer elements, counted in the whole parameter, have fp32 states"),
        option("embeddings", "8bit")
            .choices({"8bit", "fp32"})
            .doc("states of embeddings; HF Trainer with bitsandbytes keeps them in fp32"),
    };
    return schema;
  }

  explicit AdamW8bit(const Host& host)
      : Optimizer(host),
        settings_(AdamWSettings::read(host, "adamw8bit")),
        order_(option_value<std::string>(host, "order") == "bnb" ? Order::kBnb : Order::kTorch),
        min_8bit_size_(option_value<int64_t>(host, "min_8bit_size")),
        fp32_embeddings_(option_value<std::string>(host, "embeddings") == "fp32") {}

  std::span<const chassis_state_desc_t> states(const OptimizerParameter& parameter) const override {
    static constexpr chassis_state_desc_t kFp32[] = {element_state("exp_avg"), element_state("exp_avg_sq")};
    static constexpr chassis_state_desc_t k8bit[] = {
        block_state("exp_avg", kBlock, CHASSIS_DTYPE_U8, kDynamicSignedZero), per_block_state("exp_avg_absmax", kBlock),
        block_state("exp_avg_sq", kBlock, CHASSIS_DTYPE_U8, kDynamicUnsignedZero),
        per_block_state("exp_avg_sq_absmax", kBlock)};
    if (is_8bit(parameter)) return k8bit;
    return kFp32;
  }

  void step(const OptimizerStep& step) override {
    if (step.num_tensors() == 0) return;
    if (!step.param(0).is_cpu())
      throw Failure(CHASSIS_UNIMPLEMENTED,
                    "adamw8bit steps on the CPU only; use adamw, or offload the optimizer's "
                    "states to host memory in [[parallel]]");
    std::vector<Tensor> tensors;
    for (uint32_t i = 0; i < step.num_tensors(); ++i) tensors.push_back(tensor(step, i));
    static const Loops& best = for_best_isa([](auto isa) -> const Loops& { return loops(isa); });
    step.for_each_range(
        [&](uint32_t i, int64_t begin, int64_t end) {
          const Tensor& t = tensors[i];
          if (t.average == nullptr)
            best.step_blocks(t.rows, begin, end, t.coefficients, order_, signed_.table(), unsigned_.table());
          else if (order_ == Order::kTorch)
            best.step_fp32(t.rows.param + begin, t.rows.grad + begin, t.average + begin, t.square + begin, end - begin,
                           t.fp32);
          else
            best.step_fp32_bnb(t.rows.param + begin, t.rows.grad + begin, t.average + begin, t.square + begin,
                               end - begin, t.coefficients);
        },
        kBlock);
  }

 private:
  struct Tensor {
    Rows rows{};
    float *average = nullptr, *square = nullptr;  // of fp32 states
    Coefficients coefficients{};
    AdamWCoefficients fp32{};
  };

  bool is_8bit(const OptimizerParameter& parameter) const {
    if (fp32_embeddings_ && parameter.role() == CHASSIS_ROLE_EMBEDDING) return false;
    return parameter.num_elements() >= min_8bit_size_;
  }

  Tensor tensor(const OptimizerStep& step, uint32_t i) const {
    const double lr = step.lr(i), decay = step.weight_decay(i);
    const double correction1 = 1 - std::pow(settings_.beta1, static_cast<double>(step.step()));
    const double root2 = std::sqrt(1 - std::pow(settings_.beta2, static_cast<double>(step.step())));
    Tensor out;
    out.rows.param = step.param(i).data<float>();
    out.rows.grad = step.grad(i).data<float>();
    out.coefficients = {static_cast<float>(settings_.beta1),       static_cast<float>(1 - settings_.beta1),
                        static_cast<float>(settings_.beta2),       static_cast<float>(1 - settings_.beta2),
                        static_cast<float>(root2 * settings_.eps), static_cast<float>(-lr * root2 / correction1),
                        static_cast<float>(1 - lr * decay),        static_cast<float>(step.grad_scale())};
    out.fp32 = AdamWCoefficients::of(settings_, step.step(), lr, decay, step.grad_scale());
    if (is_8bit(step.parameter(i))) {
      out.rows.average = step.state(i, 0).data<uint8_t>();
      out.rows.average_absmax = step.state(i, 1).data<float>();
      out.rows.square = step.state(i, 2).data<uint8_t>();
      out.rows.square_absmax = step.state(i, 3).data<float>();
    } else {
      out.average = step.state(i, 0).data<float>();
      out.square = step.state(i, 1).data<float>();
    }
    return out;
  }

  const AdamWSettings settings_;
  const Order order_;
  const int64_t min_8bit_size_;
  const bool fp32_embeddings_;
  const Codes signed_{dynamic_signed_code(), true, 6}, unsigned_{dynamic_unsigned_code(), false, 7};
};

}  // namespace

CHASSIS_PLUGIN(
    "requires=chassis.options/1\n"
    "requires=chassis.task/1\n"
    "requires=chassis.tensor/1\n"
    "swappable=1\n"
    "license=Apache-2.0\n",
    AdamW8bit)
