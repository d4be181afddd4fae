// The choice of experts, and their weights: a few numbers for each token, in fp32.
#include <string>

#include "kernels.hpp"

namespace grouped {
namespace {

class TopExperts final : public Kernel {
 public:
  explicit TopExperts(const NodeView& node)
      : chosen_(node.output(0).size(2)),
        groups_(node.op(0).attr_int("groups", 1)),
        top_groups_(node.op(0).attr_int("top_groups", groups_)) {}

  void forward(Call& call) override {
    const BorrowedTensor logits = call.input(0), documents = call.input(1), out = call.output(0);
    const int64_t num_experts = logits.size(2), tokens = logits.num_elements() / num_experts;
    parallel_for(call.host(), tokens, row_grain(16 * num_experts), [&](int64_t begin, int64_t end) {
      std::vector<int32_t> candidates(static_cast<size_t>(num_experts)), largest(static_cast<size_t>(groups_));
      for (int64_t t = begin; t < end; ++t) {
        int32_t* const chosen = out.data<int32_t>() + t * chosen_;
        if (documents && documents.data<int32_t>()[t] < 0)
          std::fill(chosen, chosen + chosen_, -1);
        else
          choose(logits.data<float>() + t * num_experts, static_cast<int32_t>(num_experts), candidates, largest,
                 chosen);
      }
    });
  }

  void backward_inputs(Call&) override {}  // a choice has no gradient

 private:
  void choose(const float* logits, int32_t num_experts, std::vector<int32_t>& candidates, std::vector<int32_t>& largest,
              int32_t* chosen) const {
    // NaN counts as the smallest, so that the order is total.
    const auto is_larger = [&](int32_t a, int32_t b) {
      const float x = std::isnan(logits[a]) ? -INFINITY : logits[a], y = std::isnan(logits[b]) ? -INFINITY : logits[b];
      return x != y ? x > y : a < b;
    };
    size_t count = 0;
    if (groups_ == 1) {
      for (int32_t e = 0; e < num_experts; ++e) candidates[count++] = e;
    } else {
      const auto per_group = static_cast<int32_t>(num_experts / groups_);
      for (int32_t g = 0; g < groups_; ++g) {
        largest[g] = g * per_group;
        for (int32_t e = g * per_group; e < (g + 1) * per_group; ++e)
          if (is_larger(e, largest[g])) largest[g] = e;
      }
      std::partial_sort(largest.begin(), largest.begin() + top_groups_, largest.end(), is_larger);
      for (int64_t i = 0; i < top_groups_; ++i)
        for (int32_t e = 0; e < per_group; ++e) candidates[count++] = largest[i] / per_group * per_group + e;
    }
    const auto end = candidates.begin() + static_cast<std::ptrdiff_t>(count);
    std::partial_sort(candidates.begin(), candidates.begin() + chosen_, end, is_larger);
    std::copy(candidates.begin(), candidates.begin() + chosen_, chosen);
    std::sort(chosen, chosen + chosen_);
  }

  const int64_t chosen_, groups_, top_groups_;
};

// The scores of a token's experts, and the number by which they are divided.
class ExpertWeights final : public Kernel {
 public:
  explicit ExpertWeights(const NodeView& node)
      : score_(score_of(node.op(0).attr_string("score"))),
        normalizes_(node.op(0).attr_int("normalize", 0) != 0),
        factor_(static_cast<float>(node.op(0).attr_float("factor", 1))) {}

  void forward(Call& call) override {
    float* const out = call.output(0).data<float>();
    for_tokens(call, [&](int64_t t, const Token& token) {
      for (int64_t j = 0; j < token.k; ++j) out[t * token.k + j] = factor_ * token.scores[j] / token.divisor;
    });
  }

  // As in the reference: ds = factor · (dw - Σ dw·s/d) / d, and of a softmax dx = p · ([chosen] · ds - Σ ds·p).
  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), logits = call.input(0);
    if (!dy || !call.wants_grad_input(0)) return;
    const auto dx = grad_input<float>(call, 0, CHASSIS_DTYPE_F32, logits.sizes());
    const int64_t num_experts = logits.size(2);
    for_tokens(call, [&](int64_t t, const Token& token) {
      const float* const dw = dy.data<float>() + t * token.k;
      float* const row = dx.data + t * num_experts;
      if (!dx.adds) std::fill(row, row + num_experts, 0.0f);
      float mean = 0, sum = 0;
      if (normalizes_)
        for (int64_t j = 0; j < token.k; ++j) mean += dw[j] * token.scores[j] / token.divisor;
      for (int64_t j = 0; j < token.k; ++j) {
        if (token.experts[j] < 0) continue;
        const float score = token.scores[j], ds = factor_ * (dw[j] - mean) / token.divisor;
        row[token.experts[j]] += score_ == Score::kSigmoid ? ds * score * (1 - score) : ds * score;
        sum += ds * score;
      }
      if (score_ == Score::kSoftmax)
        for (int64_t e = 0; e < num_experts; ++e) row[e] -= sum * token.all[e];
      if (score_ == Score::kChosenSoftmax)
        for (int64_t j = 0; j < token.k; ++j)
          if (token.experts[j] >= 0) row[token.experts[j]] -= sum * token.scores[j];
    });
  }

 private:
  enum class Score { kSoftmax, kChosenSoftmax, kSigmoid };
  static Score score_of(std::string_view name) {
    return name == "softmax" ? Score::kSoftmax : name == "sigmoid" ? Score::kSigmoid : Score::kChosenSoftmax;
  }

  struct Token {
    int64_t k;
    const int32_t* experts;
    const float* scores;  // 0 for an expert of -1
    const float* all;     // kSoftmax: of all experts
    float divisor;
  };

  template <typename Body>
  void for_tokens(Call& call, Body&& body) const {
    const BorrowedTensor logits = call.input(0), experts = call.input(1);
    const int64_t num_experts = logits.size(2), k = experts.size(2), tokens = logits.num_elements() / num_experts;
    parallel_for(call.host(), tokens, row_grain(16 * num_experts), [&](int64_t begin, int64_t end) {
      std::vector<float> all(static_cast<size_t>(num_experts)), scores(static_cast<size_t>(k));
      for (int64_t t = begin; t < end; ++t) {
        const float* const x = logits.data<float>() + t * num_experts;
        const int32_t* const chosen = experts.data<int32_t>() + t * k;
        float largest = -INFINITY, sum = 0;
        if (score_ == Score::kSoftmax) {
          largest = *std::max_element(x, x + num_experts);
          for (int64_t e = 0; e < num_experts; ++e) sum += all[e] = std::exp(x[e] - largest);
          for (float& p : all) p /= sum;
        } else if (score_ == Score::kChosenSoftmax) {
          for (int64_t j = 0; j < k; ++j)
            if (chosen[j] >= 0) largest = std::max(largest, x[chosen[j]]);
          for (int64_t j = 0; j < k; ++j)
            if (chosen[j] >= 0) sum += std::exp(x[chosen[j]] - largest);
        }
        float divisor = 0;
        for (int64_t j = 0; j < k; ++j) {
          const int32_t e = chosen[j];
          scores[j] = e < 0                             ? 0
                      : score_ == Score::kSoftmax       ? all[e]
                      : score_ == Score::kChosenSoftmax ? std::exp(x[e] - largest) / sum
                                                        : 1 / (1 + std::exp(-x[e]));
          divisor += scores[j];
        }
        if (!normalizes_ || divisor == 0) divisor = 1;
        body(t, Token{k, chosen, scores.data(), all.data(), divisor});
      }
    });
  }

  const Score score_;
  const bool normalizes_;
  const float factor_;
};

}  // namespace

std::unique_ptr<Kernel> make_top_experts(const NodeView& node) { return std::make_unique<TopExperts>(node); }
std::unique_ptr<Kernel> make_expert_weights(const NodeView& node) { return std::make_unique<ExpertWeights>(node); }

}  // namespace grouped
