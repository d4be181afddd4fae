// muon against its formulas in fp64, and AdamW for what is no hidden matrix.
#include <gtest/gtest.h>

#include <cmath>

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

Matrix newton_schulz(Matrix x, int64_t rows, int64_t columns, int steps) {
  if (rows > columns)
    return transposed(newton_schulz(transposed(x, rows, columns), columns, rows, steps), columns, rows);
  double norm = 0;
  for (const double v : x) norm += v * v;
  for (double& v : x) v /= std::max(std::sqrt(norm), 1e-7);
  for (int i = 0; i < steps; ++i) {
    const Matrix gram = product(x, transposed(x, rows, columns), rows, rows, columns);
    Matrix polynomial = product(gram, gram, rows, rows, rows);
    for (size_t e = 0; e < gram.size(); ++e) polynomial[e] = -4.7750 * gram[e] + 2.0315 * polynomial[e];
    const Matrix cubes = product(polynomial, x, rows, columns, rows);
    for (size_t e = 0; e < x.size(); ++e) x[e] = 3.4445 * x[e] + cubes[e];
  }
  return x;
}

class Muon : public testing::Test {
 protected:
  // Two steps of matrices whose sizes leave rests in tiles of every instruction set.
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

  fake::Host host_;
  fake::Plugin plugin_{host_, CHASSIS_TEST_PLUGIN_DIR "/muon.so"};
};

TEST_F(Muon, StepsByOrthogonalizedMomentum) { compare("match_rms_adamw", true); }
TEST_F(Muon, StepsWithTheOriginalRatesAndWithoutNesterov) { compare("original", false); }

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
