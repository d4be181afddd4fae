// muon against its formulas in fp64, and against AdamW for parameters that are not hidden matrices.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "chassis/service/gemm.h"
#include "host/service/tables.hpp"
#include "tests/support/optimizer_run.hpp"

namespace {

using fake::OptimizerRun;
using fake::OptimizerSample;
using Matrix = std::vector<double>;

Matrix product(const Matrix& a, const Matrix& b, int64_t m, int64_t n, int64_t k) {
  Matrix out(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i)
    for (int64_t x = 0; x < k; ++x)
      for (int64_t j = 0; j < n; ++j)
        out[static_cast<size_t>(i * n + j)] += a[static_cast<size_t>(i * k + x)] * b[static_cast<size_t>(x * n + j)];
  return out;
}

Matrix transposed(const Matrix& a, int64_t rows, int64_t columns) {
  Matrix out(a.size());
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      out[static_cast<size_t>(j * rows + i)] = a[static_cast<size_t>(i * columns + j)];
  return out;
}

double norm_of(const Matrix& x) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  return std::sqrt(sum);
}

void keep(Matrix&) {}

void round_to_bf16(Matrix& x) {
  for (double& v : x) {
    const auto word = std::bit_cast<uint32_t>(static_cast<float>(v));
    v = std::bit_cast<float>((word + 0x7fffu + (word >> 16 & 1u)) & 0xffff0000u);
  }
}

Matrix newton_schulz(Matrix x, int64_t rows, int64_t columns, int steps, void (*finish)(Matrix&) = keep) {
  if (rows > columns)
    return transposed(newton_schulz(transposed(x, rows, columns), columns, rows, steps, finish), columns, rows);
  finish(x);
  Matrix norm = {norm_of(x)};
  finish(norm);
  for (double& v : x) v /= std::max(norm[0], 1e-7);
  finish(x);
  for (int i = 0; i < steps; ++i) {
    Matrix gram = product(x, transposed(x, rows, columns), rows, rows, columns);
    finish(gram);
    Matrix polynomial = product(gram, gram, rows, rows, rows);
    for (size_t e = 0; e < gram.size(); ++e) polynomial[e] = -4.7750 * gram[e] + 2.0315 * polynomial[e];
    finish(polynomial);
    const Matrix cubes = product(polynomial, x, rows, columns, rows);
    for (size_t e = 0; e < x.size(); ++e) x[e] = 3.4445 * x[e] + cubes[e];
    finish(x);
  }
  return x;
}

class Muon : public testing::Test {
 protected:
  Muon() { host_.more_services[CHASSIS_GEMM_ID] = gemm_->get(); }

  // Two steps of matrices whose sizes leave partial tiles for every instruction set.
  void compare(const std::string& adjust_lr, bool nesterov) {
    fake::Instance instance(host_, plugin_, "optimizer", "muon",
                            {{"adjust_lr", "\"" + adjust_lr + "\""}, {"nesterov", nesterov ? "true" : "false"}});
    const std::vector<OptimizerSample> samples = {{{70, 131}}, {{131, 70}}, {{6, 64}},
                                                  {{1, 9}},    {{9, 1}},    {{200, 200}}};
    OptimizerRun run(host_, instance, samples);
    std::vector<Matrix> params, averages;
    for (chassis_tensor_t p : run.params) {
      params.emplace_back(OptimizerRun::data(p), OptimizerRun::data(p) + OptimizerRun::count(p));
      averages.emplace_back(params.back().size());
    }
    constexpr double kLr = 1e-2, kScale = 0.37;
    for (int64_t number = 1; number <= 2; ++number) {
      run.fill_grads(number);
      for (size_t i = 0; i < params.size(); ++i) {
        Matrix update(params[i].size());
        for (size_t e = 0; e < update.size(); ++e) {
          const double grad = OptimizerRun::data(run.grads[i])[e] * kScale;
          averages[i][e] = 0.95 * averages[i][e] + 0.05 * grad;
          update[e] = nesterov ? 0.05 * grad + 0.95 * averages[i][e] : averages[i][e];
        }
        const int64_t rows = samples[i].sizes[0], columns = samples[i].sizes[1];
        update = newton_schulz(update, rows, columns, 5);
        const auto a = static_cast<double>(rows), b = static_cast<double>(columns);
        const double factor =
            adjust_lr == "original" ? std::sqrt(std::max(1.0, a / b)) : 0.2 * std::sqrt(std::max(a, b));
        for (size_t e = 0; e < update.size(); ++e)
          params[i][e] = params[i][e] * (1 - kLr * run.decay[i]) - kLr * factor * update[e];
      }
      run.step(number, kLr, kScale);
    }
    for (size_t i = 0; i < params.size(); ++i)
      for (size_t e = 0; e < params[i].size(); ++e)
        ASSERT_NEAR(OptimizerRun::data(run.params[i])[e], params[i][e], 2e-5) << "matrix " << i << " at " << e;
  }

  // An update in bf16 is nearer to the formulas in fp64 that round at the same places than to those that do not. The
  // remaining differences come from sums that lie near the middle between two values.
  void expect_rounding(int64_t rows, int64_t columns) {
    fake::Instance instance(host_, plugin_, "optimizer", "muon",
                            {{"precision", "\"bf16\""}, {"adjust_lr", "\"original\""}});
    OptimizerRun run(host_, instance, {{{rows, columns}}});
    run.decay[0] = 0;
    run.fill_grads(1);
    const size_t count = static_cast<size_t>(rows * columns);
    const float* const grads = OptimizerRun::data(run.grads[0]);
    const float* const now = OptimizerRun::data(run.params[0]);
    Matrix update(grads, grads + count), before(now, now + count);
    for (double& v : update) v *= 0.05 + 0.95 * 0.05;
    run.step(1, 1.0, 1.0);
    const double factor = std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(columns)));
    const auto distance = [&](const Matrix& expected) {
      Matrix difference(count);
      for (size_t e = 0; e < count; ++e) difference[e] = (before[e] - now[e]) / factor - expected[e];
      return norm_of(difference) / norm_of(expected);
    };
    const double rounded = distance(newton_schulz(update, rows, columns, 5, round_to_bf16));
    EXPECT_LT(rounded, 0.01) << rows << " x " << columns;
    EXPECT_LT(rounded, distance(newton_schulz(update, rows, columns, 5))) << rows << " x " << columns;
  }

  std::unique_ptr<chassis::Table> gemm_ = chassis::make_gemm_table({});
  fake::Host host_;
  fake::Plugin plugin_{host_, CHASSIS_TEST_PLUGIN_DIR "/muon.so"};
};

TEST_F(Muon, StepsByOrthogonalizedMomentum) { compare("match_rms_adamw", true); }
TEST_F(Muon, StepsWithTheOriginalRatesAndWithoutNesterov) { compare("original", false); }

TEST_F(Muon, InBf16RoundsAfterEachProduct) {
  for (const auto& [rows, columns] : {std::pair(70, 131), {131, 70}, {260, 261}, {6, 64}})
    expect_rounding(rows, columns);
}

TEST_F(Muon, InBf16IsTheSameWhereTheHostDoesNotMultiplyBf16Directly) {
  chassis_gemm_t other = *static_cast<const chassis_gemm_t*>(gemm_->get());
  other.scratch_bytes = [](const chassis_gemm_t*, const chassis_gemm_problem_t*) -> uint64_t { return 1; };
  host_.more_services[CHASSIS_GEMM_ID] = &other;
  for (const auto& [rows, columns] : {std::pair(70, 131), {131, 70}, {6, 64}}) expect_rounding(rows, columns);
}

TEST_F(Muon, EmbeddingsTheHeadAndVectorsAreSteppedByAdamW) {
  fake::Plugin adamw(host_, CHASSIS_TEST_PLUGIN_DIR "/adamw.so");
  fake::Instance ours(host_, plugin_, "optimizer", "muon"),
      theirs(host_, adamw, "optimizer", "adamw", {{"beta2", "0.95"}});
  const std::vector<OptimizerSample> samples = {
      {{40, 16}, CHASSIS_ROLE_EMBEDDING}, {{40, 16}, CHASSIS_ROLE_HEAD}, {{333}, CHASSIS_ROLE_NORM}};
  OptimizerRun a(host_, ours, samples), b(host_, theirs, samples);
  EXPECT_EQ(a.num_states, (std::vector<uint32_t>{2, 2, 2}));
  for (int64_t number = 1; number <= 5; ++number)
    for (OptimizerRun* run : {&a, &b}) run->fill_grads(number), run->step(number, 1e-2, 0.5);
  EXPECT_EQ(a.bytes(), b.bytes());
}

// Weights of experts [experts, rows, columns] against a parameter for each expert.
TEST_F(Muon, StepsTheMatrixOfEachExpertByItself) {
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>(24, 40), {40, 24}, {1, 9}}) {
    constexpr int64_t kNumExperts = 5;
    fake::Instance instance(host_, plugin_, "optimizer", "muon");
    OptimizerRun together(host_, instance, {{{kNumExperts, rows, columns}}});
    OptimizerRun apart(host_, instance, std::vector<OptimizerSample>(kNumExperts, {{rows, columns}}));
    EXPECT_EQ(together.num_states, std::vector<uint32_t>{1});
    together.decay[0] = 0.1;
    std::fill(apart.decay.begin(), apart.decay.end(), 0.1);
    const auto slice = [&](chassis_tensor_t whole, size_t e) {
      return OptimizerRun::data(whole) + static_cast<int64_t>(e) * rows * columns;
    };
    for (size_t e = 0; e < kNumExperts; ++e)
      std::copy_n(slice(together.params[0], e), rows * columns, OptimizerRun::data(apart.params[e]));
    for (int64_t number = 1; number <= 3; ++number) {
      together.fill_grads(number);
      std::fill_n(slice(together.grads[0], 2), rows * columns, 0.0f);  // an expert without a token
      for (size_t e = 0; e < kNumExperts; ++e)
        std::copy_n(slice(together.grads[0], e), rows * columns, OptimizerRun::data(apart.grads[e]));
      for (OptimizerRun* run : {&together, &apart}) run->step(number, 1e-2, 0.5);
    }
    for (size_t e = 0; e < kNumExperts; ++e)
      for (int64_t i = 0; i < rows * columns; ++i) {
        ASSERT_EQ(slice(together.params[0], e)[i], OptimizerRun::data(apart.params[e])[i]) << e << " at " << i;
        ASSERT_EQ(slice(together.states[0], e)[i], OptimizerRun::data(apart.states[e])[i]) << e << " at " << i;
      }
  }
}

TEST_F(Muon, GivesTheSameBitsWithAnyNumberOfThreads) {
  std::vector<std::vector<char>> results;
  for (uint32_t threads : {1u, 5u}) {
    host_.num_threads = threads;
    fake::Instance instance(host_, plugin_, "optimizer", "muon");
    OptimizerRun run(host_, instance, {{{150, 300}}, {{300, 150}}, {{20000}}});
    for (int64_t number = 1; number <= 3; ++number) run.fill_grads(number), run.step(number, 1e-3, 1.0);
    results.push_back(run.bytes());
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST_F(Muon, AMatrixWithoutAGradientDoesNotMove) {
  fake::Instance instance(host_, plugin_, "optimizer", "muon");
  OptimizerRun run(host_, instance, {{{16, 24}}});
  run.decay[0] = 0;
  const std::vector<char> before = run.bytes();
  run.step(1, 1e-2, 1.0);  // zero gradients
  EXPECT_EQ(run.bytes(), before);
}

}  // namespace
