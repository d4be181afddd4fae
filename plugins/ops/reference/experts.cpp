// Mixtures of experts: the choice of experts and their weights, the rows of each expert, and their sum.
#include <cmath>
#include <numeric>

#include "chassis/experts.hpp"
#include "chassis/task.hpp"
#include "values.hpp"

namespace reference {
namespace {

ExpertRows rows_of(const BorrowedTensor& experts) { return {experts.data<int32_t>(), experts.num_elements()}; }

class TopExperts : public Kernel {
 public:
  explicit TopExperts(const NodeView& node)
      : chosen_(node.output(0).size(2)),
        groups_(node.op(0).attr_int("groups", 1)),
        top_groups_(node.op(0).attr_int("top_groups", groups_)) {}

  void forward(Call& call) override {
    const BorrowedTensor logits = call.input(0), documents = call.input(1);
    const int64_t num_experts = logits.size(2), tokens = logits.num_elements() / num_experts;
    const Values values = read(logits);
    const BorrowedTensor out =
        call.make_output(0, CHASSIS_DTYPE_I32, std::vector<int64_t>{logits.size(0), logits.size(1), chosen_});
    for (int64_t t = 0; t < tokens; ++t) {
      int32_t* chosen = out.data<int32_t>() + t * chosen_;
      if (documents && documents.data<int32_t>()[t] < 0)
        std::fill(chosen, chosen + chosen_, -1);
      else
        choose(&values[t * num_experts], num_experts, chosen);
    }
  }

  void backward_inputs(Call&) override {}  // a choice has no gradient

 private:
  void choose(const double* logits, int64_t num_experts, int32_t* chosen) const {
    const auto is_larger = [&](int64_t a, int64_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
    const int64_t per_group = num_experts / groups_;
    std::vector<int64_t> largest(static_cast<size_t>(groups_));  // of each group
    for (int64_t g = 0; g < groups_; ++g) {
      largest[g] = g * per_group;
      for (int64_t e = g * per_group; e < (g + 1) * per_group; ++e)
        if (is_larger(e, largest[g])) largest[g] = e;
    }
    std::partial_sort(largest.begin(), largest.begin() + top_groups_, largest.end(), is_larger);
    std::vector<int64_t> candidates;
    for (int64_t i = 0; i < top_groups_; ++i)
      for (int64_t e = 0; e < per_group; ++e) candidates.push_back(largest[i] / per_group * per_group + e);
    std::partial_sort(candidates.begin(), candidates.begin() + chosen_, candidates.end(), is_larger);
    std::copy(candidates.begin(), candidates.begin() + chosen_, chosen);
    std::sort(chosen, chosen + chosen_);
  }

  const int64_t chosen_, groups_, top_groups_;
};

class ExpertWeights : public Kernel {
 public:
  explicit ExpertWeights(const NodeView& node)
      : score_(node.op(0).attr_string("score")),
        normalizes_(node.op(0).attr_int("normalize", 0) != 0),
        factor_(node.op(0).attr_float("factor", 1)) {}

  void forward(Call& call) override {
    const BorrowedTensor logits = call.input(0), experts = call.input(1);
    Values out(static_cast<size_t>(experts.num_elements()));
    for_tokens(logits, experts, [&](int64_t t, const Token& token) {
      for (size_t j = 0; j < token.scores.size(); ++j)
        out[t * experts.size(2) + static_cast<int64_t>(j)] = factor_ * token.scores[j] / token.divisor;
    });
    write_output(call, 0, at_least_f32(logits.dtype()), {experts.sizes().begin(), experts.sizes().end()}, out);
  }

  // With w = factor · s / d, where d is Σ s if weights are normalized: ds = factor · (dw - Σ dw·s/d) / d. And of a
  // softmax, dlogit_i = p_i · ([i is chosen] · ds_i - Σ ds·p), over all experts or the chosen ones.
  void backward_inputs(Call& call) override {
    const BorrowedTensor logits = call.input(0), experts = call.input(1);
    const int64_t num_experts = logits.size(2), k = experts.size(2);
    const Values dy = read_grad_output(call, static_cast<size_t>(experts.num_elements()));
    Values dlogits(static_cast<size_t>(logits.num_elements()));
    for_tokens(logits, experts, [&](int64_t t, const Token& token) {
      const double* dw = &dy[t * k];
      double* dx = &dlogits[t * num_experts];
      double mean = 0;
      if (normalizes_)
        for (size_t j = 0; j < token.scores.size(); ++j) mean += dw[j] * token.scores[j] / token.divisor;
      double sum = 0;
      for (size_t j = 0; j < token.scores.size(); ++j) {
        const double score = token.scores[j], ds = factor_ * (dw[j] - mean) / token.divisor;
        const auto expert = static_cast<int64_t>(experts.data<int32_t>()[t * k + static_cast<int64_t>(j)]);
        if (expert < 0) continue;
        dx[expert] += score_ == "sigmoid" ? ds * score * (1 - score) : ds * score;
        sum += ds * score;
      }
      if (score_ == "softmax")
        for (int64_t e = 0; e < num_experts; ++e) dx[e] -= sum * token.all[static_cast<size_t>(e)];
      if (score_ == "chosen_softmax")
        for (size_t j = 0; j < token.scores.size(); ++j)
          if (const int32_t e = experts.data<int32_t>()[t * k + static_cast<int64_t>(j)]; e >= 0)
            dx[e] -= sum * token.scores[j];
    });
    store_grad_input(call, 0, logits.dtype(), logits.sizes(), dlogits);
  }

 private:
  struct Token {
    Values scores;  // of the chosen experts; 0 for an expert of -1
    Values all;     // softmax: of all experts
    double divisor = 1;
  };

  template <typename Body>
  void for_tokens(const BorrowedTensor& logits, const BorrowedTensor& experts, Body&& body) const {
    const int64_t num_experts = logits.size(2), k = experts.size(2), tokens = logits.num_elements() / num_experts;
    const Values values = read(logits);
    for (int64_t t = 0; t < tokens; ++t) {
      const double* x = &values[t * num_experts];
      const int32_t* chosen = experts.data<int32_t>() + t * k;
      Token token;
      token.scores.resize(static_cast<size_t>(k));
      if (score_ == "softmax") {
        token.all = softmax(Values(x, x + num_experts));
        for (int64_t j = 0; j < k; ++j) token.scores[j] = chosen[j] < 0 ? 0 : token.all[chosen[j]];
      } else if (score_ == "sigmoid") {
        for (int64_t j = 0; j < k; ++j) token.scores[j] = chosen[j] < 0 ? 0 : 1 / (1 + std::exp(-x[chosen[j]]));
      } else {
        Values logits_of_chosen;
        for (int64_t j = 0; j < k; ++j)
          if (chosen[j] >= 0) logits_of_chosen.push_back(x[chosen[j]]);
        const Values weights = softmax(std::move(logits_of_chosen));
        for (int64_t j = 0, next = 0; j < k; ++j) token.scores[j] = chosen[j] < 0 ? 0 : weights[next++];
      }
      if (normalizes_) {
        token.divisor = std::accumulate(token.scores.begin(), token.scores.end(), 0.0);
        if (token.divisor == 0) token.divisor = 1;  // all are -1
      }
      body(t, token);
    }
  }

  static Values softmax(Values x) {
    if (x.empty()) return x;
    const double largest = *std::max_element(x.begin(), x.end());
    double sum = 0;
    for (double& value : x) sum += value = std::exp(value - largest);
    for (double& value : x) value /= sum;
    return x;
  }

  const std::string score_;
  const bool normalizes_;
  const double factor_;
};

// Row r of the output is the token of pair r, times the pair's weight if there are weights.
class Dispatch : public Kernel {
 public:
  explicit Dispatch(const NodeView& node)
      : planned_x_(node.input(0), node.output(0)),
        planned_y_(node.output(0), node.input(1)),
        x_dtype_(node.input(0).dtype()) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0), experts = call.input(1), weights = call.input(2);
    const int64_t k = experts.size(2), width = x.num_elements() / (x.size(0) * x.size(1));
    const ExpertRows rows = rows_of(experts);
    const Values xs = read(x), w = weights ? read(weights) : Values(static_cast<size_t>(experts.num_elements()), 1.0);
    Values y(static_cast<size_t>(experts.num_elements() * width));
    for (int64_t r = 0; r < rows.num_rows(); ++r)
      for (int64_t i = 0; i < width; ++i) y[r * width + i] = w[rows.pair(r)] * xs[rows.pair(r) / k * width + i];
    write_output(call, 0, x_dtype_, planned_y_.in_call(experts), y);
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), experts = call.input(1), weights = call.input(2);
    if (!dy) return;
    const int64_t k = experts.size(2), pairs = experts.num_elements(), width = dy.num_elements() / pairs;
    const ExpertRows rows = rows_of(experts);
    const Values dys = read(dy), w = weights ? read(weights) : Values(static_cast<size_t>(pairs), 1.0);
    Values dx(static_cast<size_t>(pairs / k * width));
    for (int64_t p = 0; p < pairs; ++p)
      if (rows.row(p) >= 0)
        for (int64_t i = 0; i < width; ++i) dx[p / k * width + i] += w[p] * dys[rows.row(p) * width + i];
    store_grad_input(call, 0, x_dtype_, planned_x_.in_call(experts), dx);
    if (!weights || !call.wants_grad_input(2)) return;
    const Values xs = read(call.input(0));
    Values dw(static_cast<size_t>(pairs));
    for (int64_t p = 0; p < pairs; ++p)
      if (rows.row(p) >= 0)
        for (int64_t i = 0; i < width; ++i) dw[p] += xs[p / k * width + i] * dys[rows.row(p) * width + i];
    store_grad_input(call, 2, weights.dtype(), weights.sizes(), dw);
  }

 private:
  PlannedSizes planned_x_, planned_y_;
  uint32_t x_dtype_;
};

class GroupedLinear : public Kernel {
 public:
  explicit GroupedLinear(const NodeView& node)
      : planned_x_(node.input(0), node.input(1)),
        planned_y_(node.output(0), node.input(1)),
        dtype_(node.input(0).dtype()) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0), experts = call.input(1), weight = call.param(0), bias = call.param(1);
    const auto [rows, out, in] = sizes_of(experts, weight);
    const Values xs = read(x), w = read(weight),
                 b = bias ? read(bias) : Values(static_cast<size_t>(weight.size(0) * out));
    Values y(static_cast<size_t>(experts.num_elements() * out));
    parallel_for(call.host(), weight.size(0), 1, [&, &rows = rows, out = out, in = in](int64_t begin, int64_t end) {
      for (int64_t e = begin; e < end; ++e)
        for (int64_t r = rows.begin(e); r < rows.end(e); ++r)
          for (int64_t o = 0; o < out; ++o) {
            double sum = b[e * out + o];
            for (int64_t i = 0; i < in; ++i) sum += xs[r * in + i] * w[(e * out + o) * in + i];
            y[r * out + o] = sum;
          }
    });
    write_output(call, 0, dtype_, planned_y_.in_call(experts), y);
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), experts = call.input(1), weight = call.param(0);
    if (!dy) return;
    const auto [rows, out, in] = sizes_of(experts, weight);
    const Values dys = read(dy), w = read(weight);
    Values dx(static_cast<size_t>(experts.num_elements() * in));
    for (int64_t e = 0; e < weight.size(0); ++e)
      for (int64_t r = rows.begin(e); r < rows.end(e); ++r)
        for (int64_t o = 0; o < out; ++o)
          for (int64_t i = 0; i < in; ++i) dx[r * in + i] += dys[r * out + o] * w[(e * out + o) * in + i];
    store_grad_input(call, 0, dtype_, planned_x_.in_call(experts), dx);
  }

  void backward_params(Call& call) override {
    const BorrowedTensor x = call.input(0), experts = call.input(1), weight = call.param(0);
    const auto [rows, out, in] = sizes_of(experts, weight);
    const Values xs = read(x), dy = read_grad_output(call, static_cast<size_t>(experts.num_elements() * out));
    Values dweight(static_cast<size_t>(weight.num_elements())), dbias(static_cast<size_t>(weight.size(0) * out));
    for (int64_t e = 0; e < weight.size(0); ++e)
      for (int64_t r = rows.begin(e); r < rows.end(e); ++r)
        for (int64_t o = 0; o < out; ++o) {
          const double d = dy[r * out + o];
          dbias[e * out + o] += d;
          for (int64_t i = 0; i < in; ++i) dweight[(e * out + o) * in + i] += d * xs[r * in + i];
        }
    store_grad_param(call, 0, dweight);
    store_grad_param(call, 1, dbias);
  }

 private:
  struct Sizes {
    ExpertRows rows;
    int64_t out, in;
  };
  static Sizes sizes_of(const BorrowedTensor& experts, const BorrowedTensor& weight) {
    return {{experts.data<int32_t>(), experts.num_elements(), weight.size(0)}, weight.size(1), weight.size(2)};
  }

  PlannedSizes planned_x_, planned_y_;
  uint32_t dtype_;
};

class Combine : public Kernel {
 public:
  explicit Combine(const NodeView& node)
      : planned_x_(node.input(0), node.input(1)),
        planned_y_(node.output(0), node.input(1)),
        dtype_(node.input(0).dtype()) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0), experts = call.input(1), weights = call.input(2);
    const int64_t pairs = experts.num_elements(), k = experts.size(2), width = x.num_elements() / pairs;
    const ExpertRows rows = rows_of(experts);
    const Values xs = read(x), w = weights ? read(weights) : Values(static_cast<size_t>(pairs), 1.0);
    Values y(static_cast<size_t>(pairs / k * width));
    for (int64_t p = 0; p < pairs; ++p)
      if (rows.row(p) >= 0)
        for (int64_t i = 0; i < width; ++i) y[p / k * width + i] += w[p] * xs[rows.row(p) * width + i];
    write_output(call, 0, dtype_, planned_y_.in_call(experts), y);
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), experts = call.input(1), weights = call.input(2);
    if (!dy) return;
    const int64_t pairs = experts.num_elements(), k = experts.size(2), width = dy.num_elements() / (pairs / k);
    const ExpertRows rows = rows_of(experts);
    const Values dys = read(dy), w = weights ? read(weights) : Values(static_cast<size_t>(pairs), 1.0);
    Values dx(static_cast<size_t>(pairs * width));
    for (int64_t r = 0; r < rows.num_rows(); ++r)
      for (int64_t i = 0; i < width; ++i) dx[r * width + i] = w[rows.pair(r)] * dys[rows.pair(r) / k * width + i];
    store_grad_input(call, 0, dtype_, planned_x_.in_call(experts), dx);
    if (!weights || !call.wants_grad_input(2)) return;
    const Values xs = read(call.input(0));
    Values dw(static_cast<size_t>(pairs));
    for (int64_t p = 0; p < pairs; ++p)
      if (rows.row(p) >= 0)
        for (int64_t i = 0; i < width; ++i) dw[p] += xs[rows.row(p) * width + i] * dys[p / k * width + i];
    store_grad_input(call, 2, weights.dtype(), weights.sizes(), dw);
  }

 private:
  PlannedSizes planned_x_, planned_y_;
  uint32_t dtype_;
};

class GateTokens : public Kernel {
 public:
  explicit GateTokens(const NodeView& node) : x_dtype_(node.input(0).dtype()), score_dtype_(node.input(1).dtype()) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0), scores = call.input(1);
    const int64_t tokens = scores.num_elements(), width = x.num_elements() / tokens;
    Values y = read(x);
    const Values s = read(scores);
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t i = 0; i < width; ++i) y[t * width + i] *= sigmoid(s[t]);
    write_output(call, 0, x_dtype_, {x.sizes().begin(), x.sizes().end()}, y);
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), x = call.input(0), scores = call.input(1);
    if (!dy) return;
    const int64_t tokens = scores.num_elements(), width = x.num_elements() / tokens;
    const Values dys = read(dy), xs = read(x), s = read(scores);
    Values dx = dys, ds(static_cast<size_t>(tokens));
    for (int64_t t = 0; t < tokens; ++t) {
      const double gate = sigmoid(s[t]);
      for (int64_t i = 0; i < width; ++i) {
        dx[t * width + i] *= gate;
        ds[t] += dys[t * width + i] * xs[t * width + i] * gate * (1 - gate);
      }
    }
    store_grad_input(call, 0, x_dtype_, x.sizes(), dx);
    store_grad_input(call, 1, score_dtype_, scores.sizes(), ds);
  }

 private:
  static double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
  uint32_t x_dtype_, score_dtype_;
};

template <typename T>
std::unique_ptr<Kernel> make_expert_op(const NodeView& node) {
  return std::make_unique<T>(node);
}

}  // namespace

std::span<const Entry> expert_entries() {
  static constexpr Entry kEntries[] = {
      {"top_experts", make_expert_op<TopExperts>, 0, {"groups", "top_groups"}},
      {"expert_weights", make_expert_op<ExpertWeights>, 0b11, {"score", "normalize", "factor"}},
      {"dispatch", make_expert_op<Dispatch>, 0b111, {}},
      {"grouped_linear", make_expert_op<GroupedLinear>, 0b11, {}},
      {"combine", make_expert_op<Combine>, 0b111, {}},
      {"gate_tokens", make_expert_op<GateTokens>, 0b11, {}},
  };
  return kEntries;
}

}  // namespace reference
