// Attention in plain loops, forward only, for generation and for tests that need no gradients of it.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/support/stub_provider.hpp"

namespace chassis::test {

// Causal within documents; the scale is head_dim^-0.5.
inline void naive_attention(const StubNode& node, chassis_call_t& call) {
  const Tensor q = Tensor::share(call.inputs[0]), k = Tensor::share(call.inputs[1]), v = Tensor::share(call.inputs[2]);
  const int32_t* documents =
      node.inputs.size() > 3 && call.inputs[3] ? Tensor::share(call.inputs[3]).data_as<int32_t>() : nullptr;
  const int64_t B = q.size(0), T = q.size(1), N = q.size(2), D = q.size(3), S = k.size(1), K = k.size(2);
  const int64_t sizes[] = {B, T, N, D};
  Tensor y = Tensor::zeros(sizes, Dtype::f32);
  const float *qs = q.data_as<float>(), *ks = k.data_as<float>(), *vs = v.data_as<float>();
  float* ys = y.data_as<float>();
  std::vector<double> p(static_cast<size_t>(S));
  for (int64_t b = 0; b < B; ++b)
    for (int64_t t = 0; t < T; ++t)
      for (int64_t n = 0; n < N; ++n) {
        const int64_t h = n / (N / K), last = std::min(S - 1, t + call.query_offset);
        auto seen = [&](int64_t s) { return !documents || documents[b * S + s] == documents[b * T + t]; };
        double largest = -INFINITY, sum = 0.0;
        for (int64_t s = 0; s <= last; ++s) {
          double dot = 0.0;
          for (int64_t d = 0; d < D; ++d) dot += qs[((b * T + t) * N + n) * D + d] * ks[((b * S + s) * K + h) * D + d];
          p[static_cast<size_t>(s)] = seen(s) ? dot / std::sqrt(static_cast<double>(D)) : -INFINITY;
          largest = std::max(largest, p[static_cast<size_t>(s)]);
        }
        for (int64_t s = 0; s <= last; ++s)
          sum += p[static_cast<size_t>(s)] = std::exp(p[static_cast<size_t>(s)] - largest);
        for (int64_t d = 0; d < D; ++d) {
          double out = 0.0;
          for (int64_t s = 0; s <= last; ++s)
            out += p[static_cast<size_t>(s)] / sum * vs[((b * S + s) * K + h) * D + d];
          ys[((b * T + t) * N + n) * D + d] = static_cast<float>(out);
        }
      }
  call.outputs[0] = y.release();
}

}  // namespace chassis::test
