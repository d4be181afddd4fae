// AdamW with 8-bit states (Dettmers et al. 2022): each block of 256 elements has codes and a largest magnitude for both
// averages. Small parameters keep fp32 states and are stepped as adamw does.
#include <cmath>
#include <vector>

#include "blocks.hpp"
#include "chassis/optimizer.hpp"
#include "chassis/plugin.hpp"
#if defined(CHASSIS_ADAMW8BIT_CUDA)
#include "device.hpp"
#endif

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
            .doc("torch: weight decay before the update, nearest codes; bnb: as in the CUDA kernels of bitsandbytes, "
                 "decay after it, and codes that keep the sign of the average"),
        option("nonzero_squares", false)
            .doc("an average square above 0 never becomes 0, the nearest code of very small ones next to a large one; "
                 "such elements otherwise take steps of many times lr"),
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
        smallest_square_(option_value<bool>(host, "nonzero_squares") ? 1 : 0),
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

  void supports(uint32_t device_type, int32_t) const override {
#if defined(CHASSIS_ADAMW8BIT_CUDA)
    if (device_type == CHASSIS_DEVICE_CUDA) return;
#endif
    if (device_type != CHASSIS_DEVICE_CPU)
      throw Failure(CHASSIS_UNIMPLEMENTED,
                    "this build of adamw8bit steps on the CPU only; use adamw, or offload the optimizer's "
                    "states to host memory in [[parallel]]");
  }

  void step(const OptimizerStep& step) override {
    if (step.num_tensors() == 0) return;
#if defined(CHASSIS_ADAMW8BIT_CUDA)
    if (step.param(0).device_type() == CHASSIS_DEVICE_CUDA) return step_cuda(step);
#endif
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

#if defined(CHASSIS_ADAMW8BIT_CUDA)
  void step_cuda(const OptimizerStep& step) {
    std::vector<float> values(signed_.table().values, signed_.table().values + 256);
    values.insert(values.end(), unsigned_.table().values, unsigned_.table().values + 256);
    const int device = step.param(0).view().device_index;
    const CurrentDevice current(device);
    const float* codes = device_codes_.on(device, values.data());
    const BorrowedTensor factor = step.device_grad_scale();
    const auto* scale = factor ? factor.address<const float>() : nullptr;
    for (uint32_t i = 0; i < step.num_tensors(); ++i) {
      const Tensor t = tensor(step, i);
      const int64_t count = step.param(i).num_elements();
      if (count == 0) continue;
      const AdamWCoefficients& k = t.fp32;
      if (t.average == nullptr)
        step_blocks_on_device(t.rows, count, t.coefficients, order_, codes, scale, step.stream());
      else if (order_ == Order::kTorch)
        step_fp32_on_device(t.rows.param, t.rows.grad, t.average, t.square, count,
                            {k.decay, k.one_minus_beta1, k.beta2, k.one_minus_beta2, k.sqrt_correction2, k.eps,
                             k.minus_step_size, k.grad_scale},
                            scale, step.stream());
      else
        step_fp32_bnb_on_device(t.rows.param, t.rows.grad, t.average, t.square, count, t.coefficients, scale,
                                step.stream());
    }
  }

  DeviceCodes device_codes_;
#endif

  Tensor tensor(const OptimizerStep& step, uint32_t i) const {
    const double lr = step.lr(i), decay = step.weight_decay(i);
    const double correction1 = 1 - std::pow(settings_.beta1, static_cast<double>(step.step()));
    const double root2 = std::sqrt(1 - std::pow(settings_.beta2, static_cast<double>(step.step())));
    Tensor out;
    out.rows.param = step.param(i).address<float>();
    out.rows.grad = step.grad(i).address<float>();
    out.coefficients = {.beta1 = static_cast<float>(settings_.beta1),
                        .one_minus_beta1 = static_cast<float>(1 - settings_.beta1),
                        .beta2 = static_cast<float>(settings_.beta2),
                        .one_minus_beta2 = static_cast<float>(1 - settings_.beta2),
                        .eps = static_cast<float>(root2 * settings_.eps),
                        .minus_step_size = static_cast<float>(-lr * root2 / correction1),
                        .decay = static_cast<float>(1 - lr * decay),
                        .grad_scale = static_cast<float>(step.grad_scale()),
                        .smallest_square = smallest_square_};
    out.fp32 = AdamWCoefficients::of(settings_, step.step(), lr, decay, step.grad_scale());
    if (is_8bit(step.parameter(i))) {
      out.rows.average = step.state(i, 0).address<uint8_t>();
      out.rows.average_absmax = step.state(i, 1).address<float>();
      out.rows.square = step.state(i, 2).address<uint8_t>();
      out.rows.square_absmax = step.state(i, 3).address<float>();
    } else {
      out.average = step.state(i, 0).address<float>();
      out.square = step.state(i, 1).address<float>();
    }
    return out;
  }

  const AdamWSettings settings_;
  const Order order_;
  const int32_t smallest_square_;
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
