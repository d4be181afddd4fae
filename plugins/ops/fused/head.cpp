// linear, softcap and cross entropy as one. The gradient of the loss is already known: with a frozen weight, two
// products give the loss and the gradient of x tile by tile; else a block of rows keeps its exponentials until their
// sums are known, and three products give the loss and both gradients.
#include "head_tiles.hpp"

namespace fused {
namespace {

template <typename T>
class Head final : public Kernel {
 public:
  Head(const Host& host, const NodeView& node) : spec_(node), sizes_(head_sizes(host, node)) {}

  void forward(Call& call) override {
    store_loss(call, with_factors<T>(sizes_, [&]<typename P>() {
                 HeadTiles<T, P> tiles(call, spec_, sizes_.columns, sizes_.block_rows);
                 double loss = 0.0;
                 for_softmax(call, tiles, chosen_rows(call, spec_), sizes_.block_rows, [&] { loss += loss_of(tiles); });
                 return loss;
               }));
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor scale = call.grad_output(0);
    if (scale) run(call, *scale.data<float>(), call.wants_grad_input(0), false);
  }

  void backward_params(Call& call) override {
    const BorrowedTensor scale = call.grad_output(0);
    if (scale)
      run(call, *scale.data<float>(), false, true);
    else
      grad_param(call, 0);
  }

  void forward_backward(Call& call) override {
    const BorrowedTensor scale = call.grad_output(0);
    if (scale) return store_loss(call, run(call, *scale.data<float>(), call.wants_grad_input(0), true));
    grad_param(call, 0);
    forward(call);
  }

 private:
  // Returns the loss.
  double run(Call& call, float scale, bool with_input, bool with_param) const {
    const BorrowedTensor x = call.input(0);
    const bool adds = static_cast<bool>(call.grad_input(0));
    const auto chosen = chosen_rows(call, spec_);
    if (with_input && !adds) {
      call.set_grad_input(0, Tensor::create_like(call.host(), x));
      if (static_cast<int64_t>(chosen.size()) < call.input(1).num_elements())
        std::memset(call.grad_input(0).data<T>(), 0, static_cast<size_t>(x.num_elements()) * sizeof(T));
    }
    with_param = with_param && call.grad_param(0);
    if (with_param && chosen.empty()) grad_param(call, 0);
    T* const dx = with_input ? call.grad_input(0).data<T>() : nullptr;
    return with_factors<T>(sizes_, [&]<typename P>() {
      if (with_param) return keep<P>(call, chosen, scale, dx, adds);
      const int64_t most_rows = sizes_.block_rows;
      HeadTiles<T, P> tiles(call, spec_, sizes_.columns, most_rows);
      double loss = 0.0;
      const auto add_loss = [&] { loss += loss_of(tiles); };
      if (dx)
        for_softmax_with_input_gradient(call, tiles, chosen, most_rows, scale, dx, adds, add_loss);
      else
        for_softmax(call, tiles, chosen, most_rows, add_loss);
      return loss;
    });
  }

  // Both gradients; that of x is left out if dx is NULL. Returns the loss.
  template <typename P>
  double keep(Call& call, const std::vector<int64_t>& chosen, float scale, T* dx, bool adds) const {
    const int64_t most_rows = sizes_.kept_rows;
    HeadTiles<T, P> tiles(call, spec_, sizes_.kept_columns, most_rows);
    // The exponentials of each tile are together. They become the gradient of the logits, in place if T is P.
    HeadMemory<T> kept(call.host(), most_rows * tiles.vocab());
    HeadMemory<float> sums(call.host(), most_rows * tiles.in()), largest(call.host(), most_rows * tiles.num_tiles());
    std::optional<HeadMemory<float>> wide;
    if constexpr (!std::is_same_v<T, float>) wide.emplace(call.host(), most_rows * tiles.columns());
    double loss = 0.0;
    float beta = call.grad_param_beta(0);
    tiles.for_blocks(chosen, [&] {
      const int64_t rows = tiles.num_rows();
      tiles.for_tiles([&](const auto& tile) {
        T* const out = kept.data() + rows * tile.first;
        float* const x = in_place_or<float>(out, wide);
        tiles.logits(tile, x);
        tiles.add_to_softmax(tile, x, nullptr, [&](int64_t r) {
          largest[r * tiles.num_tiles() + tile.index] = tiles.rows[static_cast<size_t>(r)].largest;
          if constexpr (!std::is_same_v<T, float>)
            loops().logits.to_bf16(x + r * tile.columns, out + r * tile.columns, tile.columns);
        });
      });
      loss += loss_of(tiles);
      tiles.for_tiles([&](const auto& tile) {
        T* const from = kept.data() + rows * tile.first;
        P* const g = in_place_or<P>(from, wide);
        tiles.for_rows(tile.columns, [&](int64_t r) {
          const auto& row = tiles.rows[static_cast<size_t>(r)];
          const double size = std::exp(static_cast<double>(largest[r * tiles.num_tiles() + tile.index]) - row.largest);
          const auto factor = static_cast<float>(static_cast<double>(scale) * size / row.sum());
          T* const kept_row = from + r * tile.columns;
          P* const to = g + r * tile.columns;
          if constexpr (std::is_same_v<T, P>)
            row_loops<T>().scale(kept_row, factor, nullptr, to, tile.columns);
          else
            loops().logits.from_bf16(kept_row, factor, to, tile.columns);
          const int64_t label = tiles.label_column(tile, r);
          if (label < 0) return;
          const float of_label = -scale * row.not_label() * tiles.slope(row.label_logit);
          if constexpr (std::is_same_v<P, float>)
            to[label] = of_label;
          else
            loops().logits.to_bf16(&of_label, to + label, 1);
        });
        if (dx) tiles.add_input_gradient(tile, g, sums.data());
        tiles.add_weight_gradient(tile, g, beta);
      });
      beta = 1.0f;
      if (dx) tiles.store_input_gradient(sums.data(), dx, adds);
    });
    return loss;
  }

  // The room for the numbers of a tile in fp32, or in T if P is T: their own if they have this type, else `wide`.
  template <typename P>
  static P* in_place_or(T* own, const std::optional<HeadMemory<float>>& wide) {
    if constexpr (std::is_same_v<T, P>)
      return own;
    else
      return wide->data();
  }

  // The summed loss of a block.
  template <typename P>
  static double loss_of(const HeadTiles<T, P>& tiles) {
    double loss = 0.0;
    for (int64_t r = 0; r < tiles.num_rows(); ++r)
      loss -= static_cast<double>(tiles.rows[static_cast<size_t>(r)].logp());
    return loss;
  }

  static void store_loss(Call& call, double loss) { *call.output(0).data<float>() = static_cast<float>(loss); }

  HeadSpec spec_;
  HeadSizes sizes_;
};

}  // namespace

std::unique_ptr<Kernel> make_head(const Host& host, const NodeView& node) {
  return make_for<Head>(node.param(0).dtype(), host, node);
}

}  // namespace fused
