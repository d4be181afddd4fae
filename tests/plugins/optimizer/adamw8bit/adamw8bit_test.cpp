// adamw8bit against the formulas of its blocks, one element at a time; its codes against the search that defines them.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "chassis/dynamic_code.hpp"
#include "tests/support/optimizer_run.hpp"

namespace {

using chassis::DynamicCode;
using chassis::nearest_dynamic_code;
using fake::OptimizerRun;
using fake::OptimizerSample;
using Options = std::map<std::string, std::string>;

constexpr int64_t kBlock = 256;
const DynamicCode kSigned = chassis::dynamic_signed_code(), kUnsigned = chassis::dynamic_unsigned_code();

// One parameter with 8-bit states.
struct Reference {
  std::vector<float> param, average_absmax, square_absmax;
  std::vector<uint8_t> average, square;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  bool is_bnb = false, has_nonzero_squares = false;

  explicit Reference(const std::vector<float>& start) : param(start) {
    const size_t blocks = (start.size() + kBlock - 1) / kBlock;
    average_absmax.resize(blocks);
    square_absmax.resize(blocks);
    average.assign(start.size(), chassis::kDynamicSignedZero);
    square.assign(start.size(), chassis::kDynamicUnsignedZero);
  }

  void step(int64_t number, const float* grad, double lr, double weight_decay, double grad_scale) {
    const double root2 = std::sqrt(1 - std::pow(beta2, static_cast<double>(number)));
    const auto rate = static_cast<float>(-lr * root2 / (1 - std::pow(beta1, static_cast<double>(number))));
    const auto decay = static_cast<float>(1 - lr * weight_decay), small = static_cast<float>(root2 * eps);
    const auto b1 = static_cast<float>(beta1), b2 = static_cast<float>(beta2);
    const auto c1 = static_cast<float>(1 - beta1), c2 = static_cast<float>(1 - beta2);
    for (size_t block = 0; block < average_absmax.size(); ++block) {
      const size_t begin = block * kBlock, end = std::min(begin + kBlock, param.size());
      std::vector<float> ms, vs;
      for (size_t i = begin; i < end; ++i) {
        const float g = grad[i] * static_cast<float>(grad_scale);
        float m = kSigned[average[i]] * average_absmax[block] * b1 + c1 * g;
        float v = kUnsigned[square[i]] * square_absmax[block] * b2 + c2 * g * g;
        if (!std::isfinite(v)) {
          m = v = 0;
        } else if (is_bnb) {
          param[i] = (param[i] + rate * m / (std::sqrt(v) + small)) * decay;
        } else {
          param[i] = param[i] * decay + rate * m / (std::sqrt(v) + small);
        }
        ms.push_back(m), vs.push_back(v);
      }
      average_absmax[block] = square_absmax[block] = 0;
      for (const float m : ms) average_absmax[block] = std::max(average_absmax[block], std::abs(m));
      for (const float v : vs) square_absmax[block] = std::max(square_absmax[block], v);
      for (size_t i = begin; i < end; ++i) {
        const float m = ms[i - begin], v = vs[i - begin];
        int code = average_absmax[block] == 0 ? chassis::kDynamicSignedZero
                                              : nearest_dynamic_code(kSigned, m / average_absmax[block]);
        if (is_bnb && std::signbit(kSigned[static_cast<size_t>(code)]) != std::signbit(m)) code += m > 0 ? 1 : -1;
        average[i] = static_cast<uint8_t>(code);
        square[i] = square_absmax[block] == 0 ? 0 : nearest_dynamic_code(kUnsigned, v / square_absmax[block]);
        if (has_nonzero_squares && v > 0 && square[i] == 0) square[i] = 1;
      }
    }
  }
};

class AdamW8bit : public testing::Test {
 protected:
  fake::Instance instance(const Options& options = {}) {
    host_.set_by_user.clear();
    return fake::Instance(host_, plugin_, "optimizer", "adamw8bit", options);
  }
  std::string refusal(const Options& options) {
    try {
      instance(options);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "accepted";
  }
  template <typename T>
  static std::vector<T> values(chassis_tensor_t t) {
    return {OptimizerRun::data<T>(t), OptimizerRun::data<T>(t) + OptimizerRun::count(t)};
  }

  // Twenty steps of one parameter, whose last block is not full, with gradients of many magnitudes.
  void compare(const std::string& order, bool nonzero_squares = false, int steps = 20) {
    fake::Instance made =
        instance({{"order", "\"" + order + "\""}, {"nonzero_squares", nonzero_squares ? "true" : "false"}});
    OptimizerRun run(host_, made, {{{37, 1117}}});
    ASSERT_EQ(run.num_states[0], 4u);
    Reference reference(values<float>(run.params[0]));
    reference.is_bnb = order == "bnb";
    reference.has_nonzero_squares = nonzero_squares;
    for (int number = 1; number <= steps; ++number) {
      run.fill_grads(number);
      float* grad = OptimizerRun::data(run.grads[0]);
      for (int64_t i = 0; i < OptimizerRun::count(run.grads[0]); ++i)
        grad[i] *= std::exp2(static_cast<float>(i % 37) - 20.0f) * static_cast<float>(i % 1000 != 7);
      reference.step(number, grad, 1e-2, 0.1, 0.37);
      run.decay[0] = 0.1;
      run.step(number, 1e-2, 0.37);
    }
    EXPECT_EQ(values<uint8_t>(run.state(0, 0)), reference.average);
    EXPECT_EQ(values<float>(run.state(0, 1)), reference.average_absmax);
    EXPECT_EQ(values<uint8_t>(run.state(0, 2)), reference.square);
    EXPECT_EQ(values<float>(run.state(0, 3)), reference.square_absmax);
    EXPECT_EQ(values<float>(run.params[0]), reference.param);
  }

  fake::Host host_;
  fake::Plugin plugin_{host_, CHASSIS_TEST_PLUGIN_DIR "/adamw8bit.so"};
};

TEST_F(AdamW8bit, StepsAsItsFormulasSay) { compare("torch"); }
TEST_F(AdamW8bit, StepsAsTheKernelsOfBitsandbytesInTheirOrder) { compare("bnb"); }

TEST_F(AdamW8bit, KeepsSmallSquaresAboveZeroIfAsked) { compare("torch", true); }

// With both decays 0 the averages are the gradient and its square, so that codes can be chosen.
TEST_F(AdamW8bit, EveryValueGetsTheNearestCode) {
  fake::Instance made = instance({{"beta1", "0.0"}, {"beta2", "0.0"}});
  std::vector<float> sweep = {0.0f, -0.0f, 1e-38f, -1e-38f, 1e-45f};
  for (uint32_t bits = 0; bits <= 0x3f800000; bits += 0x1fff) {
    sweep.push_back(std::bit_cast<float>(bits));
    sweep.push_back(-sweep.back());
  }
  for (const DynamicCode* code : {&kSigned, &kUnsigned})
    for (size_t i = 0; i < 255; ++i) {
      const float middle = ((*code)[i] + (*code)[i + 1]) * 0.5f;
      for (const float base : {middle, (*code)[i], std::sqrt(std::abs(middle))})
        for (const float x : {base, std::nextafter(base, -2.0f), std::nextafter(base, 2.0f)})
          if (std::abs(x) <= 1) sweep.push_back(x), sweep.push_back(-x);
    }
  std::vector<float> grads;
  for (size_t i = 0; i < sweep.size(); ++i) {
    if (grads.size() % kBlock == 0) grads.push_back(1.0f);  // the largest of its block
    grads.push_back(sweep[i]);
  }
  OptimizerRun run(host_, made, {{{static_cast<int64_t>(grads.size())}}});
  std::copy(grads.begin(), grads.end(), OptimizerRun::data(run.grads[0]));
  run.step(1, 1e-3, 1.0);
  const auto average = values<uint8_t>(run.state(0, 0)), square = values<uint8_t>(run.state(0, 2));
  int64_t wrong = 0;
  for (size_t i = 0; i < grads.size(); ++i) {
    wrong += average[i] != nearest_dynamic_code(kSigned, grads[i]);
    wrong += square[i] != nearest_dynamic_code(kUnsigned, grads[i] * grads[i]);
  }
  EXPECT_EQ(wrong, 0) << "of " << grads.size();
}

TEST(DynamicCode, TiesGoToTheCodeThatTheSearchLookedAtLast) {
  int below = 0, above = 0;
  for (size_t i = 0; i < 255; ++i) {
    const uint8_t code = nearest_dynamic_code(kSigned, (kSigned[i] + kSigned[i + 1]) * 0.5f);
    EXPECT_TRUE(code == i || code == i + 1);
    (code == i ? below : above)++;
  }
  EXPECT_GT(below, 100);
  EXPECT_GT(above, 100);
}

TEST_F(AdamW8bit, SmallParametersHaveFp32StatesByTheirWholeSize) {
  fake::Instance made = instance(), fp32 = instance({{"embeddings", "\"fp32\""}});
  const OptimizerRun run(host_, made, {{{4095}}, {{64, 64}}, {{4096}, CHASSIS_ROLE_EMBEDDING}});
  EXPECT_EQ(run.num_states, (std::vector<uint32_t>{2, 4, 4}));
  const OptimizerRun other(host_, fp32, {{{64, 64}}, {{4096}, CHASSIS_ROLE_EMBEDDING}});
  EXPECT_EQ(other.num_states, (std::vector<uint32_t>{4, 2}));
}

TEST_F(AdamW8bit, SmallParametersAreSteppedAsByAdamW) {
  fake::Plugin adamw(host_, CHASSIS_TEST_PLUGIN_DIR "/adamw.so");
  fake::Instance ours = instance({{"min_8bit_size", "100000000"}}), theirs(host_, adamw, "optimizer", "adamw");
  OptimizerRun a(host_, ours), b(host_, theirs);
  for (int64_t number = 1; number <= 5; ++number)
    for (OptimizerRun* run : {&a, &b}) run->fill_grads(number), run->step(number, 1e-2, 0.5);
  EXPECT_EQ(a.bytes(), b.bytes());
}

TEST_F(AdamW8bit, StaysNearAdamW) {
  fake::Plugin adamw(host_, CHASSIS_TEST_PLUGIN_DIR "/adamw.so");
  fake::Instance ours = instance(), theirs(host_, adamw, "optimizer", "adamw");
  OptimizerRun a(host_, ours, {{{200, 300}}}), b(host_, theirs, {{{200, 300}}});
  const auto start = values<float>(a.params[0]);
  for (int64_t number = 1; number <= 50; ++number)
    for (OptimizerRun* run : {&a, &b}) run->fill_grads(number), run->step(number, 1e-3, 1.0);
  double difference = 0, moved = 0;
  for (size_t i = 0; i < start.size(); ++i) {
    difference += std::pow(OptimizerRun::data(a.params[0])[i] - OptimizerRun::data(b.params[0])[i], 2);
    moved += std::pow(OptimizerRun::data(b.params[0])[i] - start[i], 2);
  }
  EXPECT_LT(std::sqrt(difference / moved), 0.1);
  EXPECT_GT(difference, 0) << "8 bits are not 32";
}

TEST_F(AdamW8bit, AnElementWithAGradientThatIsNotFiniteStartsAgain) {
  fake::Instance made = instance();
  OptimizerRun run(host_, made, {{{4096}}});
  run.fill_grads(1), run.step(1, 1e-2, 1.0);
  const std::vector<float> before = values<float>(run.params[0]);
  run.fill_grads(2);
  float* grad = OptimizerRun::data(run.grads[0]);
  grad[5] = NAN, grad[300] = INFINITY, grad[301] = -INFINITY, grad[4095] = std::numeric_limits<float>::max();
  run.decay[0] = 0.5;
  run.step(2, 1e-2, 1.0);
  for (const size_t i : {5, 300, 301, 4095}) {
    EXPECT_EQ(OptimizerRun::data(run.params[0])[i], before[i]) << i;
    EXPECT_EQ(OptimizerRun::data<uint8_t>(run.state(0, 0))[i], chassis::kDynamicSignedZero) << i;
    EXPECT_EQ(OptimizerRun::data<uint8_t>(run.state(0, 2))[i], chassis::kDynamicUnsignedZero) << i;
  }
  EXPECT_NE(OptimizerRun::data(run.params[0])[6], before[6]);
  for (const float absmax : values<float>(run.state(0, 3))) EXPECT_TRUE(std::isfinite(absmax));
}

TEST_F(AdamW8bit, GivesTheSameBitsWithAnyNumberOfThreads) {
  std::vector<std::vector<char>> results;
  for (uint32_t threads : {1u, 3u, 5u}) {
    host_.num_threads = threads;
    fake::Instance made = instance();
    OptimizerRun run(host_, made);
    for (int64_t number = 1; number <= 3; ++number) run.fill_grads(number), run.step(number, 1e-3, 1.0);
    results.push_back(run.bytes());
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST_F(AdamW8bit, RefusesABetaThatForgetsNothing) {
  EXPECT_NE(refusal({{"beta1", "1.0"}}).find("beta1 of adamw8bit is 1, expected below 1"), std::string::npos);
}

}  // namespace
