// linear, softcap and the log-probabilities of labels as one. The gradient of a row's result with respect to x needs
// only a factor that comes later, so forward makes it for the factor 1 while the logits exist, and saves it: training
// computes two products if the weight is frozen, and four if not.
#include "head_tiles.hpp"

namespace fused {

bool saves_input_gradient(const NodeView& node) { return node.training() && node.input(0).needs_grad(); }
bool saves_log_sums(const NodeView& node) { return node.training() && node.param(0).needs_grad(); }

namespace {

template <typename T>
class TokenLogp final : public Kernel {
 public:
  TokenLogp(const Host& host, const NodeView& node)
      : spec_(node),
        sizes_(head_sizes(host, node)),
        saves_gradient_(saves_input_gradient(node)),
        saves_log_sums_(saves_log_sums(node)) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0), logp = call.output(0);
    float* const logps = logp.data<float>();
    std::fill_n(logps, logp.num_elements(), 0.0f);
    const auto chosen = chosen_rows(call, spec_);
    Tensor gradient, log_sums;
    if (call.training() && saves_gradient_) {
      gradient = Tensor::create_like(call.host(), x);
      if (static_cast<int64_t>(chosen.size()) < logp.num_elements())
        std::memset(gradient.data<T>(), 0, static_cast<size_t>(x.num_elements()) * sizeof(T));
    }
    if (call.training() && saves_log_sums_) {
      log_sums = Tensor::create(call.host(), CHASSIS_DTYPE_F32, {logp.num_elements()});
      std::fill_n(log_sums.data<float>(), logp.num_elements(), 0.0f);
    }
    with_factors<T>(sizes_, [&]<typename P>() {
      const int64_t most_rows = sizes_.block_rows;
      HeadTiles<T, P> tiles(call, spec_, sizes_.columns, most_rows);
      const auto store = [&] {
        for (int64_t r = 0; r < tiles.num_rows(); ++r) {
          const auto& row = tiles.rows[static_cast<size_t>(r)];
          logps[tiles.row_in_call(r)] = row.logp();
          if (log_sums) log_sums.data<float>()[tiles.row_in_call(r)] = row.log_sum();
        }
      };
      if (gradient)
        for_softmax_with_input_gradient(call, tiles, chosen, most_rows, -1.0f, gradient.data<T>(), false, store);
      else
        for_softmax(call, tiles, chosen, most_rows, store);
    });
    if (gradient) call.save(0, std::move(gradient));
    if (log_sums) call.save(saves_gradient_ ? 1 : 0, std::move(log_sums));
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dlogp = call.grad_output(0), saved = call.saved(0);
    if (!dlogp || !call.wants_grad_input(0)) return;
    const GradInput<T> dx = grad_input<T>(call, 0, saved);
    const float* const factors = dlogp.data<float>();
    const T* const from = saved.data<T>();
    const int64_t rows = dlogp.num_elements(), in = call.param(0).size(1);
    parallel_for(call.host(), rows, row_grain(in), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        row_loops<T>().scale(from + row * in, factors[row], dx.carry ? dx.carry + row * in : nullptr,
                             dx.data + row * in, in);
    });
  }

  // Computes the logits again, of the rows that have a gradient.
  void backward_params(Call& call) override {
    const BorrowedTensor dlogp = call.grad_output(0);
    if (!call.grad_param(0)) return;
    const float* const factors = dlogp ? dlogp.data<float>() : nullptr;
    const auto chosen = chosen_rows(call, spec_, [&](int64_t row) { return factors && factors[row] != 0.0f; });
    if (chosen.empty()) {
      grad_param(call, 0);
      return;
    }
    const BorrowedTensor log_sums = call.saved(saves_gradient_ ? 1 : 0);
    const float *const logps = call.output(0).data<float>(), *const log_sum = log_sums.data<float>();
    with_factors<T>(sizes_, [&]<typename P>() {
      const int64_t most_rows = sizes_.block_rows;
      HeadTiles<T, P> tiles(call, spec_, sizes_.columns, most_rows);
      HeadMemory<float> logits(call.host(), most_rows * tiles.columns());
      std::optional<HeadMemory<P>> g;
      if constexpr (!std::is_same_v<P, float>) g.emplace(call.host(), most_rows * tiles.columns());
      float beta = call.grad_param_beta(0);
      tiles.for_blocks(chosen, [&] {
        tiles.for_tiles([&](const auto& tile) {
          tiles.logits(tile, logits.data());
          HeadMemory<P>* const rounded = g ? &*g : nullptr;
          tiles.for_rows(tile.columns, [&](int64_t r) {
            const int64_t in_call = tiles.row_in_call(r);
            to_gradient(tiles, tile, r, logits.data() + r * tile.columns, log_sum[in_call], logps[in_call],
                        factors[in_call]);
            tiles.round_row(tile, r, logits.data(), rounded);
          });
          tiles.add_weight_gradient(tile, tiles.factor(logits.data(), rounded), beta);
        });
        beta = 1.0f;
      });
    });
  }

 private:
  // Turns the logits x of a row into the gradient of factor · logp.
  template <typename Tiles, typename Tile>
  void to_gradient(const Tiles& tiles, const Tile& tile, int64_t row, float* x, float log_sum, float logp,
                   float factor) const {
    tiles.cap(x, tile.columns);
    const int64_t label = tiles.label_column(tile, row);
    const float of_label = label < 0 ? 0.0f : -std::expm1(logp) * factor * tiles.slope(x[label]);
    if (spec_.softcap > 0.0f)
      loops().logits.softmax_capped(x, tile.columns, log_sum, -factor, spec_.softcap);
    else
      loops().logits.softmax_scaled(x, tile.columns, log_sum, -factor);
    if (label >= 0) x[label] = of_label;
  }

  HeadSpec spec_;
  HeadSizes sizes_;
  bool saves_gradient_, saves_log_sums_;
};

}  // namespace

std::unique_ptr<Kernel> make_token_logp(const Host& host, const NodeView& node) {
  return make_for<TokenLogp>(node.param(0).dtype(), host, node);
}

}  // namespace fused
