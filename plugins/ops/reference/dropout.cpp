// dropout: one call of Philox4x32-10 (Salmon et al. 2011) for every element, exactly as chassis/op.h says.
#include <array>

#include "values.hpp"

namespace reference {
namespace {

using Words = std::array<uint32_t, 4>;

Words philox(Words counter, uint64_t key) {
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0], b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ k0, static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ k1, static_cast<uint32_t>(a)};
    k0 += 0x9E3779B9, k1 += 0xBB67AE85;
  }
  return counter;
}

class Dropout : public Kernel {
 public:
  Dropout(double p, int64_t first) : p_(p), first_(first) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0);
    write_output(call, 0, x.dtype(), {x.sizes().begin(), x.sizes().end()}, dropped(call, x));
  }
  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0);
    if (dy) store_grad_input(call, 0, dy.dtype(), dy.sizes(), dropped(call, dy));
  }

 private:
  Values dropped(const Call& call, const BorrowedTensor& x) const {
    Values y = read(x);
    const int64_t time = x.size(1), positions = x.size(0) * time;
    if (positions == 0) return y;
    const int64_t elements = x.num_elements() / positions;
    for (int64_t i = 0; i < x.num_elements(); ++i) {
      const int64_t j = first_ + i % elements, t = call.query_offset() + i / elements % time, b = i / elements / time;
      const auto row = static_cast<uint64_t>(call.raw().first_row + b);
      const Words words = philox({static_cast<uint32_t>(j / 4), static_cast<uint32_t>(t), static_cast<uint32_t>(row),
                                  static_cast<uint32_t>(row >> 32)},
                                 call.raw().random_key);
      double& value = y[static_cast<size_t>(i)];
      value = words[static_cast<size_t>(j % 4)] >= p_ * 0x1p32 ? value / (1 - p_) : 0;
    }
    return y;
  }

  double p_;
  int64_t first_;
};

std::unique_ptr<Kernel> make_dropout(const NodeView& node) {
  return std::make_unique<Dropout>(node.op(0).attr_float("p"), node.op(0).attr_int("first", 0));
}

}  // namespace

std::span<const Entry> dropout_entries() {
  static constexpr Entry kEntries[] = {
      {"dropout", make_dropout, 0, {"p", "first", "query_part"}},
  };
  return kEntries;
}

}  // namespace reference
