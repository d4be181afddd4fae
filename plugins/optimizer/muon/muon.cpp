// Muon (Jordan et al. 2024) with the scale of Moonlight (Liu et al. 2025, "Muon is Scalable for LLM Training"), as
// torch.optim.Muon: steps a hidden matrix, or that of each expert, by its momentum with singular values driven towards
// 1. Embeddings, the head and parameters that are not matrices are stepped by AdamW.
#include <algorithm>
#include <cmath>
#include <vector>

#include "chassis/adamw.hpp"
#include "chassis/optimizer.hpp"
#include "chassis/plugin.hpp"
#include "newton_schulz.hpp"

namespace {

using namespace chassis;

class Muon final : public Optimizer {
 public:
  static constexpr std::string_view kDoc = "Muon: orthogonalized momentum for hidden matrices, AdamW for all others";

  static const Options& options() {
    static const Options schema = {
        option("momentum", 0.95).range(0, 1).doc("share of the average that is kept"),
        option("nesterov", true).doc("step by a blend of the gradient and the average"),
        option("ns_steps", 5).range(1, 20).doc("Newton-Schulz iterations"),
        option("precision", "fp32")
            .choices({"fp32", "bf16"})
            .doc("of the matrices between the products of an iteration, which are summed in fp32; bf16 as in torch's "
                 "Muon"),
        option("adjust_lr", "match_rms_adamw")
            .choices({"match_rms_adamw", "original"})
            .doc(
                "factor of lr for a matrix [A, B]. match_rms_adamw: 0.2 · sqrt(max(A, B)), so that rates of AdamW fit; "
                "original: sqrt(max(1, A / B))"),
        option("adamw_lr_scale", 1.0).range(0, 1e6).doc("factor of lr for what AdamW steps"),
        option("beta1", 0.9).range(0, 1).doc("AdamW: decay of the average gradient"),
        option("beta2", 0.95).range(0, 1).doc("AdamW: decay of the average squared gradient"),
        option("betas", std::vector<double>{}).range(0, 1).doc("both of them as a list, such as [0.9, 0.95]"),
        option("eps", 1e-8).range(0, 1).doc("AdamW: added to the root of the average squared gradient"),
    };
    return schema;
  }

  explicit Muon(const Host& host)
      : Optimizer(host),
        adamw_(AdamWSettings::read(host, "muon")),
        momentum_(option_value<double>(host, "momentum")),
        adamw_lr_scale_(option_value<double>(host, "adamw_lr_scale")),
        nesterov_(option_value<bool>(host, "nesterov")),
        matches_adamw_(option_value<std::string>(host, "adjust_lr") == "match_rms_adamw"),
        precision_(option_value<std::string>(host, "precision") == "bf16" ? muon::Precision::kBf16
                                                                          : muon::Precision::kFp32),
        num_steps_(static_cast<int>(option_value<int64_t>(host, "ns_steps"))) {
    if (momentum_ >= 1) fail_invalid(option_origin(host, "momentum"), ": momentum is 1, expected below 1");
  }

  std::span<const chassis_state_desc_t> states(const OptimizerParameter& parameter) const override {
    static constexpr chassis_state_desc_t kMuon[] = {matrix_state("momentum_buffer")};
    static constexpr chassis_state_desc_t kAdamW[] = {element_state("exp_avg"), element_state("exp_avg_sq")};
    if (parameter.num_hidden_matrices() > 0) return kMuon;
    return kAdamW;
  }

  // Matrices are stepped one after another; each needs room for the update, and the scratch of the iteration.
  uint64_t workspace_bytes(std::span<const OptimizerParameter> parameters) const override {
    int64_t most = 0;
    for (const OptimizerParameter& p : parameters)
      if (p.num_hidden_matrices() > 0) most = std::max(most, Matrix(p).scratch());
    return static_cast<uint64_t>(most) * sizeof(float);
  }

  void supports(uint32_t device_type, int32_t) const override {
    if (device_type != CHASSIS_DEVICE_CPU)
      throw Failure(CHASSIS_UNIMPLEMENTED,
                    "muon steps on the CPU only; use adamw, or offload the optimizer's states to "
                    "host memory in [[parallel]]");
  }

  void step(const OptimizerStep& step) override {
    if (step.num_tensors() == 0) return;
    for (uint32_t i = 0; i < step.num_tensors(); ++i)
      if (step.parameter(i).num_hidden_matrices() > 0) step_matrices(step, i);
    step_others(step);
  }

 private:
  // The sizes of a hidden matrix, or of that of each expert.
  struct Matrix {
    explicit Matrix(const OptimizerParameter& p)
        : rows(p.global_shape()[p.global_shape().size() - 2]), columns(p.global_shape().back()) {}
    int64_t rows, columns;
    int64_t count() const { return rows * columns; }
    int64_t scratch() const { return count() + muon::scratch_elements(rows, columns); }
  };

  void step_matrices(const OptimizerStep& step, uint32_t i) const {
    const OptimizerParameter parameter = step.parameter(i);
    const Matrix m(parameter);
    if (step.param(i).num_elements() != parameter.num_elements())
      fail_invalid("muon steps '", parameter.name(), "' as a whole, with ", parameter.num_elements(), " elements, got ",
                   step.param(i).num_elements());
    if (step.workspace_bytes() < static_cast<uint64_t>(m.scratch()) * sizeof(float))
      throw Failure(CHASSIS_INTERNAL, "muon needs ", m.scratch() * static_cast<int64_t>(sizeof(float)),
                    " bytes of workspace for '", parameter.name(), "', got ", step.workspace_bytes());
    for (int64_t e = 0; e < parameter.num_hidden_matrices(); ++e) step_matrix(step, i, m, e * m.count());
  }

  // The matrix whose elements begin at `first`.
  void step_matrix(const OptimizerStep& step, uint32_t i, const Matrix& m, int64_t first) const {
    auto* p = step.param(i).data<float>() + first;
    const auto* g = step.grad(i).data<float>() + first;
    auto* average = step.state(i, 0).data<float>() + first;
    auto* scratch = static_cast<float*>(step.workspace());  // first, since it is aligned
    auto* update = scratch + muon::scratch_elements(m.rows, m.columns);
    const auto scale = static_cast<float>(step.grad_scale()), momentum = static_cast<float>(momentum_),
               taken = static_cast<float>(1 - momentum_);
    constexpr int64_t kGrain = 16384;
    parallel_for(host(), m.count(), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t e = begin; e < end; ++e) {
        const float grad = g[e] * scale;
        average[e] += taken * (grad - average[e]);
        update[e] = nesterov_ ? grad + momentum * (average[e] - grad) : average[e];
      }
    });
    muon::orthogonalize(host(), update, m.rows, m.columns, num_steps_, precision_, scratch);
    const auto decay = static_cast<float>(1 - step.lr(i) * step.weight_decay(i));
    const auto rate = static_cast<float>(step.lr(i) * factor(m.rows, m.columns));
    parallel_for(host(), m.count(), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t e = begin; e < end; ++e) p[e] = p[e] * decay - rate * update[e];
    });
  }

  double factor(int64_t rows, int64_t columns) const {
    const auto a = static_cast<double>(rows), b = static_cast<double>(columns);
    return matches_adamw_ ? 0.2 * std::sqrt(std::max(a, b)) : std::sqrt(std::max(1.0, a / b));
  }

  void step_others(const OptimizerStep& step) const {
    struct Row {
      float *param = nullptr, *grad = nullptr, *average = nullptr, *square = nullptr;
      AdamWCoefficients coefficients{};
    };
    std::vector<Row> rows(step.num_tensors());
    for (uint32_t i = 0; i < step.num_tensors(); ++i)
      if (step.parameter(i).num_hidden_matrices() == 0)
        rows[i] = {step.param(i).data<float>(), step.grad(i).data<float>(), step.state(i, 0).data<float>(),
                   step.state(i, 1).data<float>(),
                   AdamWCoefficients::of(adamw_, step.step(), step.lr(i) * adamw_lr_scale_, step.weight_decay(i),
                                         step.grad_scale())};
    step.for_each_range([&](uint32_t i, int64_t begin, int64_t end) {
      const Row& row = rows[i];
      if (row.param != nullptr)
        adamw_update(row.param + begin, row.grad + begin, row.average + begin, row.square + begin, end - begin,
                     row.coefficients);
    });
  }

  const AdamWSettings adamw_;
  const double momentum_, adamw_lr_scale_;
  const bool nesterov_, matches_adamw_;
  const muon::Precision precision_;
  const int num_steps_;
};

}  // namespace

CHASSIS_PLUGIN(
    "requires=chassis.gemm/1\n"
    "requires=chassis.options/1\n"
    "requires=chassis.task/1\n"
    "requires=chassis.tensor/1\n"
    "swappable=1\n"
    "license=Apache-2.0\n",
    Muon)
