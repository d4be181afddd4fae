// The C example against plain formulas in double, forward and backward. The C++ example calls ATen, so it runs in the
// installed program: tests/sdk/third_party.sh.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "chassis/kind/ops.h"
#include "tests/support/fake_host.hpp"

namespace {

constexpr int64_t B = 2, T = 5, N = 4, K = 2, D = 6, Dv = 3;
constexpr double kScale = 0.4;

class AttentionC : public testing::Test {
 protected:
  AttentionC() {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (chassis_tensor_t t : {q_, k_, v_, dy_}) {
      for (int64_t i = 0; i < fake::tensor(t)->view.num_elements; ++i) data(t)[i] = normal(random);
    }
    const int32_t ids[B * T] = {0, 0, 0, 1, 1, 0, 0, 1, -1, -1};
    std::copy_n(ids, B * T, static_cast<int32_t*>(fake::tensor(ids_)->view.data));
  }
  ~AttentionC() override {
    for (chassis_tensor_t t : {q_, k_, v_, ids_, dy_}) delete fake::tensor(t);
  }
  static float* data(chassis_tensor_t t) { return static_cast<float*>(fake::tensor(t)->view.data); }

  chassis_node_t node() {
    attrs_ = {{fake::str("scale"), CHASSIS_ATTR_FLOAT, 0, {.f = kScale}},
              {fake::str("causal"), CHASSIS_ATTR_INT, 0, {.i = 1}},
              {fake::str("document"), CHASSIS_ATTR_INT, 0, {.i = 1}},
              {fake::str("window"), CHASSIS_ATTR_INT, 0, {.i = window_}}};
    op_ = {sizeof op_, 4, fake::str("attention"), attrs_.data(), indexes_, nullptr, indexes_ + 4, 4, 0, 1, 0};
    for (size_t i = 0; i < 5; ++i) {
      operands_[i] = {sizeof operands_[i], dtype_, 4, 1, nullptr, nullptr};
      operand_pointers_[i] = &operands_[i];
    }
    chassis_node_t node{};
    node.struct_size = sizeof node;
    node.operands = operand_pointers_;
    node.ops = &op_pointer_;
    node.inputs = indexes_;
    node.outputs = indexes_ + 4;
    node.num_operands = 5;
    node.num_ops = node.num_outputs = 1;
    node.num_inputs = 4;
    return node;
  }

  // Loss = Σ y·dy, in double; one element of one input may be changed by `by`.
  double loss(const chassis_tensor_t* moved = nullptr, int64_t element = 0, double by = 0) const {
    const auto at = [&](const chassis_tensor_t& t, int64_t i) {
      return data(t)[i] + (&t == moved && i == element ? by : 0.0);
    };
    const auto* ids = static_cast<const int32_t*>(fake::tensor(ids_)->view.data);
    double sum = 0;
    for (int64_t b = 0; b < B; ++b) {
      for (int64_t t = 0; t < T; ++t) {
        if (ids[b * T + t] < 0) continue;
        for (int64_t n = 0; n < N; ++n) {
          double total = 0, weighted = 0;
          for (int64_t s = 0; s <= t; ++s) {
            if (ids[b * T + s] != ids[b * T + t]) continue;
            double score = 0, value = 0;
            for (int64_t d = 0; d < D; ++d) {
              score += at(q_, ((b * T + t) * N + n) * D + d) * at(k_, ((b * T + s) * K + n / (N / K)) * D + d);
            }
            for (int64_t d = 0; d < Dv; ++d) {
              value += at(v_, ((b * T + s) * K + n / (N / K)) * Dv + d) * data(dy_)[((b * T + t) * N + n) * Dv + d];
            }
            total += std::exp(kScale * score);
            weighted += std::exp(kScale * score) * value;
          }
          sum += weighted / total;
        }
      }
    }
    return sum;
  }

  fake::Host host_;
  fake::Plugin plugin_{host_, CHASSIS_TEST_BINARY_DIR "/tests/sdk/plugins/attention_c.so"};
  fake::Instance instance_{host_, plugin_, "ops", "attention_c"};
  const chassis_ops_t& table_ = instance_.interface<chassis_ops_t>(CHASSIS_OPS_ID);
  chassis_tensor_t q_ = host_.make(CHASSIS_DTYPE_F32, {B, T, N, D}), k_ = host_.make(CHASSIS_DTYPE_F32, {B, T, K, D}),
                   v_ = host_.make(CHASSIS_DTYPE_F32, {B, T, K, Dv}), ids_ = host_.make(CHASSIS_DTYPE_I32, {B, T}),
                   dy_ = host_.make(CHASSIS_DTYPE_F32, {B, T, N, Dv});
  int64_t window_ = 0;
  uint32_t dtype_ = CHASSIS_DTYPE_F32;
  std::vector<chassis_attr_t> attrs_;
  chassis_op_view_t op_{};
  const chassis_op_view_t* op_pointer_ = &op_;
  chassis_operand_t operands_[5];
  const chassis_operand_t* operand_pointers_[5];
  uint32_t indexes_[5] = {0, 1, 2, 3, 4};
};

TEST_F(AttentionC, RefusesWithAMessage) {
  double cost = 0;
  window_ = 4;
  chassis_node_t windowed = node();
  EXPECT_EQ(host_.message(table_.claim(instance_.self(), &windowed, &cost)), "has no mask 'window'");
  window_ = 0;
  dtype_ = CHASSIS_DTYPE_BF16;
  chassis_node_t halved = node();
  EXPECT_EQ(host_.message(table_.claim(instance_.self(), &halved, &cost)), "computes in float32 only");
  dtype_ = CHASSIS_DTYPE_F32;
  chassis_node_t plain = node();
  EXPECT_EQ(host_.message(table_.claim(instance_.self(), &plain, &cost)), "ok");
}

TEST_F(AttentionC, MatchesTheFormulasForwardAndBackward) {
  const chassis_node_t raw = node();
  void* kernel = nullptr;
  host_.check(table_.create_kernel(instance_.self(), &raw, &kernel));
  const chassis_tensor_t inputs[4] = {q_, k_, v_, ids_};
  chassis_tensor_t y = nullptr, grads[4] = {};
  chassis_call_t call{};
  call.struct_size = sizeof call;
  call.inputs = inputs;
  call.outputs = &y;
  host_.check(table_.forward(instance_.self(), kernel, &call));
  double sum = 0;
  for (int64_t i = 0; i < B * T * N * Dv; ++i) sum += static_cast<double>(data(y)[i]) * data(dy_)[i];
  EXPECT_NEAR(sum, loss(), 1e-5);
  EXPECT_EQ(data(y)[B * T * N * Dv - 1], 0);  // a padded row

  const uint8_t needs[4] = {1, 1, 1, 0};
  call.grad_outputs = &dy_;
  call.grad_inputs = grads;
  call.needs_grad_inputs = needs;
  host_.check(table_.backward_inputs(instance_.self(), kernel, &call));
  const chassis_tensor_t* moved[3] = {&q_, &k_, &v_};
  for (int input = 0; input < 3; ++input) {
    for (int64_t i = 0; i < fake::tensor(*moved[input])->view.num_elements; ++i) {
      const double slope = (loss(moved[input], i, 1e-5) - loss(moved[input], i, -1e-5)) / 2e-5;
      EXPECT_NEAR(data(grads[input])[i], slope, 2e-5) << input << " " << i;
    }
  }
  table_.destroy_kernel(instance_.self(), kernel);
  for (chassis_tensor_t t : {y, grads[0], grads[1], grads[2]}) delete fake::tensor(t);
}

}  // namespace
