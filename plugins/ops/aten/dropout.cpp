// dropout with this plugin's own loops on the CPU; backward draws the mask again, so nothing is kept. Also
// channel_scale, by ATen.
#include <cmath>

#include "chassis/task.hpp"
#include "dropout_loops.hpp"
#include "workspace.hpp"

namespace aten {
namespace {

constexpr int64_t kGrainElements = 16384;

class Dropout : public AtenKernel {
 public:
  Dropout(const Operators& aten, double p, int64_t first)
      : AtenKernel(aten),
        first_(first),
        threshold_(static_cast<uint32_t>(std::ceil(p * 0x1p32))),
        scale_(1 / (1 - p)),
        loops_(for_best_isa([](auto isa) -> const DropoutLoops& { return dropout_loops(isa); })) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0);
    run(call, x, call.make_output(0, x.dtype(), x.sizes()), false);
  }
  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0);
    if (!dy || !call.wants_grad_input(0)) return;
    const bool add = static_cast<bool>(call.grad_input(0));
    if (!add) call.set_grad_input(0, Tensor::create_like(call.host(), dy));
    run(call, dy, call.grad_input(0), add);
  }

 private:
  void run(const Call& call, const BorrowedTensor& x, const BorrowedTensor& y, bool add) const {
    if (x.dtype() == CHASSIS_DTYPE_F32)
      run_as<float>(call, x, y, add, loops_.apply_f32);
    else if (x.dtype() == CHASSIS_DTYPE_F64)
      run_as<double>(call, x, y, add, loops_.apply_f64);
    else
      run_as<uint16_t>(call, x, y, add, loops_.apply_bf16);
  }

  template <typename T, typename Apply>
  void run_as(const Call& call, const BorrowedTensor& x, const BorrowedTensor& y, bool add, Apply apply) const {
    const int64_t time = x.size(1), positions = x.size(0) * time;
    if (positions == 0) return;
    const int64_t elements = x.num_elements() / positions, first_row = call.raw().first_row,
                  first_time = call.query_offset();
    const uint64_t key = call.raw().random_key;
    const T* from = x.data<T>();
    T* to = y.data<T>();
    parallel_for(call.host(), positions, std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, elements)),
                 [&](int64_t begin, int64_t end) {
                   uint32_t words[kDrawnWords];
                   for (int64_t position = begin; position < end; ++position) {
                     const auto t = static_cast<uint32_t>(first_time + position % time);
                     const auto row = static_cast<uint64_t>(first_row + position / time);
                     for (int64_t j = 0; j < elements;) {
                       const int64_t word = first_ + j, within = word % 4;
                       const int64_t count = std::min<int64_t>(kDrawnWords - within, elements - j);
                       loops_.draw(key, static_cast<uint32_t>(word / 4), t, row, words);
                       const int64_t at = position * elements + j;
                       apply(from + at, words + within, threshold_, scale_, add ? to + at : nullptr, to + at, count);
                       j += count;
                     }
                   }
                 });
  }

  const int64_t first_;  // the first of a position's elements that this rank has
  const uint32_t threshold_;
  const double scale_;
  const DropoutLoops& loops_;
};

class ChannelScale : public AtenKernel {
 public:
  using AtenKernel::AtenKernel;

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0), weight = call.param(0);
    const BorrowedTensor y = call.make_output(0, x.dtype(), x.sizes());
    aten_.mul_out(matrix(x, weight.size(0)), weight, matrix(y, weight.size(0)));
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), weight = call.param(0);
    if (!dy || !call.wants_grad_input(0)) return;
    const bool add = static_cast<bool>(call.grad_input(0));
    if (!add) call.set_grad_input(0, Tensor::create_like(call.host(), dy));
    const Tensor dx = matrix(call.grad_input(0), weight.size(0)), rows = matrix(dy, weight.size(0));
    if (add)
      aten_.addcmul_(dx, rows, weight);
    else
      aten_.mul_out(rows, weight, dx);
  }

  void backward_params(Call& call) override {
    const BorrowedTensor buffer = call.grad_param(0);
    if (!buffer) return;
    if (call.grad_param_beta(0) == 0) aten_.zero_(buffer);
    if (!call.grad_output(0)) return;
    const int64_t columns = buffer.size(0);
    const Tensor all_x = matrix(call.input(0), columns), all_dy = matrix(call.grad_output(0), columns);
    for_slabs(all_x.size(0), columns, [&](int64_t begin, int64_t rows) {
      const Tensor product = aten_.to_dtype(aten_.narrow(all_x, 0, begin, rows), DtypeArg{buffer.dtype()}, false, true);
      aten_.mul_(product, aten_.narrow(all_dy, 0, begin, rows));
      aten_.add_(buffer, aten_.sum_dims(product, Shape{0}));
    });
  }
};

void check_dropout(const NodeView& node) {
  const uint32_t dtype = node.input(0).dtype();
  if (node.device_type() != CHASSIS_DEVICE_CPU) refuse("draws the bits of dropout on the CPU only");
  if (dtype == CHASSIS_DTYPE_F16) refuse("dropout is in f32, f64 and bf16, not ", dtype_name(dtype));
  if (node.op(0).attr_float("p") > 1 - 0x1p-32)
    refuse("dropout with p = ", node.op(0).attr_float("p"), " keeps nothing");
}

std::unique_ptr<Kernel> make_dropout(const Operators& aten, const NodeView& node) {
  return std::make_unique<Dropout>(aten, node.op(0).attr_float("p"), node.op(0).attr_int("first", 0));
}

std::unique_ptr<Kernel> make_channel_scale(const Operators& aten, const NodeView&) {
  return std::make_unique<ChannelScale>(aten);
}

}  // namespace

std::span<const Entry> dropout_entries() {
  static constexpr Entry kEntries[] = {
      {.pattern = "channel_scale",
       .make = make_channel_scale,
       .keeps_inputs = 0b1,
       .overwrites_inputs = 0b1,
       .passes = 3,
       .workspace = channel_scale_workspace,
       .keeps_for_weight = true},
      {.pattern = "dropout",
       .make = make_dropout,
       .overwrites_inputs = 0b1,
       .passes = 4,
       .attrs = {"p", "first", "query_part"},
       .check = check_dropout},
  };
  return kEntries;
}

}  // namespace aten
