// The loops of every instruction set, compared with loops in fp64.
#include "plugins/ops/fused/loops.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/support/every_isa.hpp"

namespace fused {
namespace {

// Sizes shorter than a vector, of whole vectors, and with a tail.
constexpr size_t kSizes[] = {1, 5, 16, 37, 128, 777};
constexpr float kEps = 1e-5f;

std::vector<const Loops*> every_table() {
  return chassis::test::tables_of_every_isa([](auto isa) -> const Loops& { return loops(isa); });
}

double wide(float x) { return static_cast<double>(x); }
double wide(Bf16 x) { return static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(x) << 16)); }
template <typename T>
std::vector<double> wide(const std::vector<T>& row) {
  std::vector<double> out;
  for (const T x : row) out.push_back(wide(x));
  return out;
}

// A result in fp64, and the sum of the sizes of its terms.
struct Exact {
  double value, size;
};

// Calls exact(i) for every element.
template <typename T, typename ExactOf>
void expect_near(const char* name, const std::vector<T>& got, ExactOf&& exact) {
  for (size_t i = 0; i < got.size(); ++i) {
    const Exact e = exact(i);
    const double rounding = sizeof(T) == 2 ? std::abs(e.value) * 0x1p-8 : 0;
    ASSERT_NEAR(wide(got[i]), e.value, e.size * 0x1p-20 + rounding + 1e-37) << name << "[" << i << "]";
  }
}

template <typename T>
class FusedLoops : public testing::Test {
 protected:
  std::vector<T> row(size_t n, float spread = 1) {
    std::normal_distribution<float> normal(0.25f * spread, spread);
    std::vector<T> out(n);
    for (T& x : out) {
      const float value = normal(generator_);
      if constexpr (std::is_same_v<T, float>)
        x = value;
      else
        x = static_cast<Bf16>(std::bit_cast<uint32_t>(value) >> 16);
    }
    return out;
  }

  // Calls check(loops, n) with the loops of every instruction set.
  template <typename Check>
  void for_every_table(Check&& check) {
    size_t number = 0;
    for (const Loops* table : every_table()) {
      ++number;
      for (const size_t n : kSizes) {
        SCOPED_TRACE(testing::Message() << "instruction set " << number << ", " << n << " elements");
        if constexpr (std::is_same_v<T, float>)
          check(table->f32, n);
        else
          check(table->bf16, n);
      }
    }
  }

 private:
  std::mt19937 generator_{11};
};
using Types = testing::Types<float, Bf16>;
TYPED_TEST_SUITE(FusedLoops, Types);

double inverse_root_mean_square(const std::vector<double>& x) {
  double squares = 0;
  for (const double v : x) squares += v * v;
  return 1 / std::sqrt(squares / static_cast<double>(x.size()) + static_cast<double>(kEps));
}

TYPED_TEST(FusedLoops, NormsWithAndWithoutAnOffset) {
  this->for_every_table([&](const RowLoops<TypeParam>& loops, size_t n) {
    const auto count = static_cast<int64_t>(n);
    const auto a = this->row(n), b = this->row(n), weight = this->row(n), dy = this->row(n), carry = this->row(n);
    const auto w = wide(weight), d = wide(dy), c = wide(carry);
    for (const float offset : {0.0f, 1.0f}) {
      const auto gain = [&](size_t i) { return static_cast<double>(offset) + w[i]; };
      const auto normed = [&](const std::vector<double>& x, double r) {
        return [&, r](size_t i) {
          return Exact{x[i] * r * gain(i), std::abs(x[i]) * r * (static_cast<double>(offset) + std::abs(w[i]))};
        };
      };
      std::vector<TypeParam> y(n), sum(n), dx(n);
      const float r = loops.norm(a.data(), weight.data(), offset, y.data(), count, kEps);
      const auto x = wide(a);
      const double exact_r = inverse_root_mean_square(x);
      ASSERT_NEAR(wide(r), exact_r, exact_r * 0x1p-19);
      expect_near("norm", y, normed(x, exact_r));

      const float sum_r = loops.add_norm(a.data(), b.data(), weight.data(), offset, sum.data(), y.data(), count, kEps);
      expect_near("sum", sum, [&](size_t i) {
        return Exact{x[i] + wide(b[i]), std::abs(x[i]) + std::abs(wide(b[i]))};
      });
      const auto added = wide(sum);
      const double exact_sum_r = inverse_root_mean_square(added);
      ASSERT_NEAR(wide(sum_r), exact_sum_r, exact_sum_r * 0x1p-19);
      expect_near("add_norm", y, normed(added, exact_sum_r));

      double dot = 0, dot_size = 0;
      for (size_t i = 0; i < n; ++i) {
        dot += d[i] * gain(i) * x[i];
        dot_size += std::abs(d[i] * x[i]) * (static_cast<double>(offset) + std::abs(w[i]));
      }
      const double cube = wide(r) * wide(r) * wide(r) / static_cast<double>(n);
      for (const bool carries : {false, true}) {
        loops.norm_backward(dy.data(), a.data(), weight.data(), offset, carries ? carry.data() : nullptr, dx.data(),
                            count, r);
        expect_near(carries ? "dx with a carry" : "dx", dx, [&](size_t i) {
          const double carried = carries ? c[i] : 0;
          return Exact{
              carried + wide(r) * d[i] * gain(i) - x[i] * cube * dot,
              std::abs(carried) + wide(r) * std::abs(d[i]) * (1 + std::abs(w[i])) + std::abs(x[i]) * cube * dot_size};
        });
      }
      auto in_place = carry;
      loops.norm_backward(dy.data(), a.data(), weight.data(), offset, in_place.data(), in_place.data(), count, r);
      EXPECT_EQ(in_place, dx) << "dx in the place of its carry";
    }
    std::vector<float> dweight(n, 0.5f);
    loops.norm_weight(dy.data(), a.data(), dweight.data(), count, 0.75f);
    expect_near("dweight", dweight, [&](size_t i) {
      const double term = d[i] * wide(a[i]) * 0.75;
      return Exact{0.5 + term, 0.5 + std::abs(term)};
    });
  });
}

TYPED_TEST(FusedLoops, LayerNorms) {
  this->for_every_table([&](const RowLoops<TypeParam>& loops, size_t n) {
    const auto count = static_cast<int64_t>(n);
    const double num = static_cast<double>(n);
    const auto a = this->row(n), weight = this->row(n), bias = this->row(n), dy = this->row(n), carry = this->row(n);
    const auto x = wide(a), w = wide(weight), d = wide(dy), c = wide(carry);
    double sum = 0, sum_size = 0, squares = 0;
    for (const double v : x) sum += v, sum_size += std::abs(v);
    const double exact_mean = sum / num;
    for (const double v : x) squares += (v - exact_mean) * (v - exact_mean);
    const double exact_r = 1 / std::sqrt(squares / num + static_cast<double>(kEps));
    std::vector<TypeParam> y(n), dx(n);
    float mean = 0, r = 0;
    for (const bool biased : {true, false}) {
      r = loops.layer_norm(a.data(), weight.data(), biased ? bias.data() : nullptr, y.data(), count, kEps, &mean);
      ASSERT_NEAR(wide(mean), exact_mean, sum_size / num * 0x1p-20);
      ASSERT_NEAR(wide(r), exact_r, exact_r * 0x1p-19);
      expect_near(biased ? "layer_norm with a bias" : "layer_norm", y, [&](size_t i) {
        const double b = biased ? wide(bias[i]) : 0;
        return Exact{(x[i] - exact_mean) * exact_r * w[i] + b,
                     (std::abs(x[i]) + sum_size / num) * exact_r * std::abs(w[i]) + std::abs(b)};
      });
    }

    const auto normed = [&](size_t i) { return (x[i] - wide(mean)) * wide(r); };
    double mean_d = 0, mean_d_size = 0, dot = 0, dot_size = 0;
    for (size_t i = 0; i < n; ++i) {
      mean_d += d[i] * w[i] / num, mean_d_size += std::abs(d[i] * w[i]) / num;
      dot += d[i] * w[i] * normed(i) / num, dot_size += std::abs(d[i] * w[i] * normed(i)) / num;
    }
    for (const bool carries : {false, true}) {
      loops.layer_norm_backward(dy.data(), a.data(), weight.data(), carries ? carry.data() : nullptr, dx.data(), count,
                                mean, r);
      expect_near(carries ? "dx with a carry" : "dx", dx, [&](size_t i) {
        const double carried = carries ? c[i] : 0;
        return Exact{
            carried + wide(r) * (d[i] * w[i] - mean_d - normed(i) * dot),
            std::abs(carried) + wide(r) * (std::abs(d[i] * w[i]) + mean_d_size + std::abs(normed(i)) * dot_size)};
      });
    }
    auto in_place = carry;
    loops.layer_norm_backward(dy.data(), a.data(), weight.data(), in_place.data(), in_place.data(), count, mean, r);
    EXPECT_EQ(in_place, dx) << "dx in the place of its carry";
    std::vector<float> dweight(n, 0.5f);
    loops.layer_norm_weight(dy.data(), a.data(), dweight.data(), count, mean, r);
    expect_near("dweight", dweight, [&](size_t i) {
      return Exact{0.5 + d[i] * normed(i), 0.5 + std::abs(d[i]) * (std::abs(x[i]) + std::abs(wide(mean))) * wide(r)};
    });
  });
}

TYPED_TEST(FusedLoops, RotationsInBothDirections) {
  this->for_every_table([&](const RowLoops<TypeParam>& loops, size_t half) {
    const auto x = this->row(2 * half);
    std::vector<float> cosine(half), sine(half);
    for (size_t i = 0; i < half; ++i) {
      const double angle = 0.7 * static_cast<double>(i + 1);
      cosine[i] = static_cast<float>(std::cos(angle)), sine[i] = static_cast<float>(std::sin(angle));
    }
    for (const float direction : {1.0f, -1.0f}) {
      std::vector<TypeParam> y(2 * half);
      loops.rotate(x.data(), cosine.data(), sine.data(), y.data(), static_cast<int64_t>(half), direction);
      expect_near("rotate", y, [&](size_t i) {
        const size_t pair = i % half;
        const double turned = (i < half ? -1 : 1) * wide(direction) * wide(sine[pair]) * wide(x[(i + half) % x.size()]);
        const double kept = wide(cosine[pair]) * wide(x[i]);
        return Exact{kept + turned, std::abs(kept) + std::abs(turned)};
      });
      auto in_place = x;
      loops.rotate(in_place.data(), cosine.data(), sine.data(), in_place.data(), static_cast<int64_t>(half), direction);
      EXPECT_EQ(in_place, y) << "in place";
    }
  });
}

// A gate f(g) = g · sigmoid(h(g)), by h and its derivative.
struct Gate {
  double (*argument)(double g);
  double (*slope)(double g);
};
constexpr double kGeluScale = 0.79788456080286535588;  // √(2/π)
constexpr Gate kSilu = {[](double g) { return g; }, [](double) { return 1.0; }};
constexpr Gate kGelu = {[](double g) { return 2 * kGeluScale * (g + 0.044715 * g * g * g); },
                        [](double g) { return 2 * kGeluScale * (1 + 3 * 0.044715 * g * g); }};

TYPED_TEST(FusedLoops, GatedActivations) {
  this->for_every_table([&](const RowLoops<TypeParam>& loops, size_t n) {
    const auto count = static_cast<int64_t>(n);
    const auto gate = this->row(n, 3), up = this->row(n), dy = this->row(n);
    const auto g = wide(gate), u = wide(up), d = wide(dy);
    std::vector<TypeParam> y(n), dgate(n), dup(n);
    const auto expect_gate = [&](const char* name, const Gate& f) {
      const auto sigmoid = [&](size_t i) { return 1 / (1 + std::exp(-f.argument(g[i]))); };
      expect_near(name, y, [&](size_t i) { return Exact{g[i] * sigmoid(i) * u[i], std::abs(g[i] * u[i])}; });
      expect_near(name, dup, [&](size_t i) { return Exact{g[i] * sigmoid(i) * d[i], std::abs(g[i] * d[i])}; });
      expect_near(name, dgate, [&](size_t i) {
        const double s = sigmoid(i), h = f.slope(g[i]);
        return Exact{d[i] * u[i] * s * (1 + g[i] * (1 - s) * h), std::abs(d[i] * u[i]) * (1 + std::abs(g[i]) * h)};
      });
    };
    loops.silu_mul(gate.data(), up.data(), y.data(), count);
    loops.silu_mul_backward(dy.data(), gate.data(), up.data(), dgate.data(), dup.data(), count);
    expect_gate("silu", kSilu);
    loops.gelu_tanh_mul(gate.data(), up.data(), y.data(), count);
    loops.gelu_tanh_mul_backward(dy.data(), gate.data(), up.data(), dgate.data(), dup.data(), count);
    expect_gate("gelu_tanh", kGelu);
  });
}

TYPED_TEST(FusedLoops, Sums) {
  this->for_every_table([&](const RowLoops<TypeParam>& loops, size_t n) {
    const auto a = this->row(n), b = this->row(n);
    auto sum = b;
    std::vector<float> wide_sum(n, 0.5f);
    loops.add(a.data(), sum.data(), static_cast<int64_t>(n));
    loops.add_to_wide(a.data(), wide_sum.data(), static_cast<int64_t>(n));
    expect_near("add", sum, [&](size_t i) {
      return Exact{wide(a[i]) + wide(b[i]), std::abs(wide(a[i])) + std::abs(wide(b[i]))};
    });
    expect_near("add_to_wide", wide_sum, [&](size_t i) { return Exact{0.5 + wide(a[i]), 0.5 + std::abs(wide(a[i]))}; });
  });
}

TYPED_TEST(FusedLoops, ScaledRows) {
  this->for_every_table([&](const RowLoops<TypeParam>& loops, size_t n) {
    const auto count = static_cast<int64_t>(n);
    const auto x = this->row(n), carry = this->row(n);
    std::vector<TypeParam> y(n);
    for (const bool carries : {false, true}) {
      loops.scale(x.data(), -0.3f, carries ? carry.data() : nullptr, y.data(), count);
      expect_near(carries ? "scale with a carry" : "scale", y, [&](size_t i) {
        const double own = wide(x[i]) * wide(-0.3f), carried = carries ? wide(carry[i]) : 0;
        return Exact{carried + own, std::abs(carried) + std::abs(own)};
      });
    }
    auto in_place = carry;
    loops.scale(x.data(), -0.3f, in_place.data(), in_place.data(), count);
    EXPECT_EQ(in_place, y) << "in the place of its carry";
  });
}

class FusedLogits : public FusedLoops<float> {
 protected:
  // Calls check(loops, logits), with logits so far apart that some probabilities are 0 in fp32.
  template <typename Check>
  void for_every_row(Check&& check) {
    for (const Loops* table : every_table())
      for (const size_t n : kSizes) {
        SCOPED_TRACE(testing::Message() << n << " logits");
        check(table->logits, row(n, 30));
      }
  }
};

TEST_F(FusedLogits, ExponentialsAndTheirSum) {
  for_every_row([&](const LogitLoops& loops, const std::vector<float>& x) {
    const auto count = static_cast<int64_t>(x.size());
    const float largest = *std::max_element(x.begin(), x.end());
    ASSERT_EQ(loops.largest(x.data(), count), largest);
    double sum = 0;
    for (const float v : x) sum += std::exp(wide(v) - wide(largest));
    auto e = x;
    ASSERT_NEAR(wide(loops.exp_sum(e.data(), count, largest)), sum, sum * 0x1p-20);
    expect_near("exp_sum", e, [&](size_t i) {
      const double value = std::exp(wide(x[i]) - wide(largest));
      return Exact{value, value * (1 + std::abs(wide(x[i])) + std::abs(wide(largest)))};
    });
    auto p = x;
    loops.softmax_scaled(p.data(), count, largest, 0.25f);
    expect_near("softmax_scaled", p, [&](size_t i) {
      const double value = std::exp(wide(x[i]) - wide(largest)) * 0.25;
      return Exact{value, value * (1 + std::abs(wide(x[i])) + std::abs(wide(largest)))};
    });
  });
}

TEST_F(FusedLogits, CapsAndTheCappedSoftmax) {
  for_every_row([&](const LogitLoops& loops, const std::vector<float>& x) {
    const auto count = static_cast<int64_t>(x.size());
    for (const float cap : {1.5f, 30.0f}) {
      const double c = wide(cap);
      auto capped = x;
      loops.softcap(capped.data(), count, cap);
      expect_near("softcap", capped, [&](size_t i) {
        const double value = c * std::tanh(wide(x[i]) / c);
        return Exact{value, std::abs(value)};
      });
      const float largest = *std::max_element(capped.begin(), capped.end());
      const auto exact = [&](double scale) {
        return [&, scale](size_t i) {
          const double p = std::exp(wide(capped[i]) - wide(largest)) * scale, t = wide(capped[i]) / c;
          return Exact{p * (1 - t * t), p * (2 + std::abs(wide(capped[i])) + std::abs(wide(largest)))};
        };
      };
      double sum = 0;
      for (const float v : capped) sum += std::exp(wide(v) - wide(largest));
      auto e = capped, gradient = capped;
      ASSERT_NEAR(wide(loops.exp_sum_capped(e.data(), count, largest, cap)), sum, sum * 0x1p-20);
      expect_near("exp_sum_capped", e, exact(1));
      loops.softmax_capped(gradient.data(), count, largest, 0.25f, cap);
      expect_near("softmax_capped", gradient, exact(0.25));
    }
  });
}

TYPED_TEST(FusedLoops, CombinedRows) {
  this->for_every_table([&](const RowLoops<TypeParam>& loops, size_t n) {
    const auto x = this->row(n);
    std::vector<float> sum(n, 0.5f);
    loops.combine(x.data(), -0.3f, 1.5f, sum.data(), static_cast<int64_t>(n));
    expect_near("combine", sum, [&](size_t i) {
      const double term = wide(-0.3f) * wide(x[i]);
      return Exact{0.75 + term, 0.75 + std::abs(term)};
    });
  });
}

TEST(FusedRounding, WidensAndScales) {
  for (const Loops* table : every_table())
    for (const size_t n : kSizes) {
      std::vector<Bf16> x(n);
      for (size_t i = 0; i < n; ++i) x[i] = static_cast<Bf16>(0x3f80 + i % 300);
      std::vector<float> y(n);
      table->logits.from_bf16(x.data(), -0.5f, y.data(), static_cast<int64_t>(n));
      for (size_t i = 0; i < n; ++i) ASSERT_EQ(wide(y[i]), -0.5 * wide(x[i])) << i;
    }
}

TEST(FusedRounding, IsToTheNearestBf16TiesToEven) {
  const float kStep = 0x1p-7f;  // between neighbours from 1 to 2
  const std::pair<float, float> cases[] = {{1, 1},
                                           {1 + kStep / 2, 1},
                                           {1 + kStep * 0.502f, 1 + kStep},
                                           {1 + 1.5f * kStep, 1 + 2 * kStep},
                                           {-1 - 1.5f * kStep, -1 - 2 * kStep},
                                           {1 + 2.5f * kStep, 1 + 2 * kStep},
                                           {3.4e38f, INFINITY},
                                           {-INFINITY, -INFINITY}};
  for (const Loops* table : every_table())
    for (const size_t n : kSizes)
      for (const auto& [from, to] : cases) {
        const std::vector<float> x(n, from);
        std::vector<Bf16> y(n);
        table->logits.to_bf16(x.data(), y.data(), static_cast<int64_t>(n));
        for (const Bf16 got : y) ASSERT_EQ(wide(got), wide(to)) << from;
      }
}

TEST(FusedRounding, KeepsNaN) {
  for (const Loops* table : every_table()) {
    const std::vector<float> x(37, std::bit_cast<float>(0x7f800001u));
    std::vector<Bf16> y(x.size());
    table->logits.to_bf16(x.data(), y.data(), static_cast<int64_t>(x.size()));
    for (const Bf16 got : y) ASSERT_TRUE(std::isnan(wide(got)));
  }
}

}  // namespace
}  // namespace fused
