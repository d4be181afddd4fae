// Adam with decoupled weight decay (Loshchilov & Hutter 2019) on fp32 states, element by element, with the arithmetic
// of PyTorch's fused kernel. For optimizers that step some parameters this way. Compile the files that use it with
// -ffp-contract=off, so that every instruction set gives the same bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "chassis/options.hpp"

CHASSIS_SDK_BEGIN

struct AdamWSettings {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;

  // [control] The options beta1, beta2, betas (both as a list) and eps. Throws INVALID_ARGUMENT.
  static AdamWSettings read(const Host& host, std::string_view plugin) {
    AdamWSettings out{option_value<double>(host, "beta1"), option_value<double>(host, "beta2"),
                      option_value<double>(host, "eps")};
    const auto betas = option_value<std::vector<double>>(host, "betas");
    if (!betas.empty()) {
      if (betas.size() != 2)
        fail_invalid(option_origin(host, "betas"), ": betas has ", betas.size(), " items, expected 2");
      for (const char* name : {"beta1", "beta2"}) {
        const std::string origin = option_origin(host, name);
        if (origin != "default") fail_invalid(origin, ": ", name, " and betas are both set; set one or the other");
      }
      out.beta1 = betas[0], out.beta2 = betas[1];
    }
    for (const auto& [name, beta] : {std::pair("beta1", out.beta1), {"beta2", out.beta2}})
      if (beta >= 1)
        fail_invalid(option_origin(host, betas.empty() ? name : "betas"), ": ", name, " of ", plugin, " is ", beta,
                     ", expected below 1");
    return out;
  }
};

// Rounded from double once per step and tensor.
struct AdamWCoefficients {
  float decay, one_minus_beta1, beta2, one_minus_beta2, sqrt_correction2, eps, minus_step_size, grad_scale;

  // `step` is 1 for the first.
  static AdamWCoefficients of(const AdamWSettings& settings, int64_t step, double lr, double weight_decay,
                              double grad_scale) {
    const double correction1 = 1 - std::pow(settings.beta1, static_cast<double>(step));
    const double correction2 = 1 - std::pow(settings.beta2, static_cast<double>(step));
    return {static_cast<float>(1 - lr * weight_decay),  static_cast<float>(1 - settings.beta1),
            static_cast<float>(settings.beta2),         static_cast<float>(1 - settings.beta2),
            static_cast<float>(std::sqrt(correction2)), static_cast<float>(settings.eps),
            static_cast<float>(-lr / correction1),      static_cast<float>(grad_scale)};
  }
};

// Written so that the compiler vectorises it.
[[gnu::always_inline]] inline void adamw_update(float* __restrict p, const float* __restrict g, float* __restrict m,
                                                float* __restrict v, int64_t count, const AdamWCoefficients& k) {
  const bool from_average = k.one_minus_beta1 < 0.5f;  // lerp from the nearer end
  const float weight = from_average ? k.one_minus_beta1 : k.one_minus_beta1 - 1.0f;
  for (int64_t i = 0; i < count; ++i) {
    const float grad = g[i] * k.grad_scale;
    const float average = (from_average ? m[i] : grad) + weight * (grad - m[i]);
    const float square = v[i] * k.beta2 + k.one_minus_beta2 * grad * grad;
    m[i] = average;
    v[i] = square;
    const float denominator = std::sqrt(square) / k.sqrt_correction2 + k.eps;
    p[i] = p[i] * k.decay + k.minus_step_size * average / denominator;
  }
}

CHASSIS_SDK_END
