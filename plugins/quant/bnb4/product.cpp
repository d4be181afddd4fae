// The kernels of products. Nothing is saved for backward but the experts of rows: the weight is dequantized again.
#include "product.hpp"

#include <algorithm>

#include "chassis/bf16.hpp"
#include "chassis/cost.hpp"
#include "multiply.hpp"

namespace bnb4 {

using namespace chassis;

namespace {

// The rows that a product gets, as planned. An expert may get all of them.
int64_t rows_of(const NodeView& node, int64_t columns) {
  return node.input(0).num_elements() / std::max<int64_t>(columns, 1);
}

float value_at(const BorrowedTensor& x, int64_t i) {
  if (x.dtype() == CHASSIS_DTYPE_F32) return static_cast<const float*>(x.view().data)[i];
  return from_bf16(static_cast<const uint16_t*>(x.view().data)[i]);
}

class Product final : public Kernel {
 public:
  Product(const Host& host, const NodeView& node, int64_t block)
      : host_(host),
        dtype_(node.output(0).dtype()),
        shape_(node, block),
        multiplier_(host, shape_, dtype_, rows_of(node, shape_.columns)),
        input_tail_(node.input(0).local_shape().begin() + 2, node.input(0).local_shape().end()) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0), bias = call.param(1);
    const int64_t rows = x.num_elements() / std::max<int64_t>(shape_.columns, 1);
    multiplier_.forward(Weight(call, shape_), rows, x.view().data, bias ? bias.view().data : nullptr,
                        call.output(0).view().data, call.workspace());
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0);
    if (!dy || !call.wants_grad_input(0)) return;
    const bool adds = static_cast<bool>(call.grad_input(0));
    if (!adds) {
      std::vector<int64_t> sizes(dy.sizes().begin(), dy.sizes().begin() + 2);
      sizes.insert(sizes.end(), input_tail_.begin(), input_tail_.end());
      call.set_grad_input(0, Tensor::create(host_, dtype_, sizes, CHASSIS_DEVICE_CPU, 0));
    }
    multiplier_.backward(Weight(call, shape_), dy.num_elements() / std::max<int64_t>(shape_.rows, 1), dy.view().data,
                         call.grad_input(0).view().data, adds, call.workspace());
  }

  // Computes the gradient of a bias only, since the weight is frozen.
  void backward_params(Call& call) override {
    const BorrowedTensor dbias = call.grad_param(1), dy = call.grad_output(0);
    if (!dbias) return;
    auto* const out = dbias.data<float>();
    const int64_t columns = shape_.rows;
    if (call.grad_param_beta(1) == 0.0f) std::fill_n(out, columns, 0.0f);
    if (!dy) return;
    const int64_t rows = dy.num_elements() / std::max<int64_t>(columns, 1);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) out[c] += value_at(dy, r * columns + c);
  }

 private:
  const Host& host_;
  const uint32_t dtype_;
  const WeightShape shape_;
  const Multiplier multiplier_;
  const std::vector<int64_t> input_tail_;
};

// A product for each expert that has rows, which are neighbours. Only these experts are dequantized, one at a time.
class GroupedProduct final : public Kernel {
 public:
  GroupedProduct(const Host& host, const NodeView& node, int64_t block)
      : host_(host),
        dtype_(node.output(0).dtype()),
        shape_(node, block),
        multiplier_(host, shape_, dtype_, rows_of(node, shape_.columns), true),
        planned_x_(node.input(0), node.input(1)) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0), experts = call.input(1), bias = call.param(1);
    const ExpertRows rows = rows_in(experts);
    const Weight weight(call, shape_);
    void* const y = call.output(0).view().data;
    for_each_expert(rows, [&](int64_t e, int64_t begin, int64_t count) {
      multiplier_.forward(weight.of_expert(e), count, at(x.view().data, begin * shape_.columns),
                          bias ? at(bias.view().data, e * shape_.rows) : nullptr, at(y, begin * shape_.rows),
                          call.workspace());
    });
    zero_rest(static_cast<char*>(y), rows, experts.num_elements(), shape_.rows * dtype_bytes(dtype_));
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), experts = call.input(1);
    if (!dy || !call.wants_grad_input(0)) return;
    const bool adds = static_cast<bool>(call.grad_input(0));
    if (!adds)
      call.set_grad_input(0, Tensor::create(host_, dtype_, planned_x_.in_call(experts), CHASSIS_DEVICE_CPU, 0));
    const ExpertRows rows = rows_in(experts);
    const Weight weight(call, shape_);
    void* const dx = call.grad_input(0).view().data;
    for_each_expert(rows, [&](int64_t e, int64_t begin, int64_t count) {
      multiplier_.backward(weight.of_expert(e), count, at(dy.view().data, begin * shape_.rows),
                           at(dx, begin * shape_.columns), adds, call.workspace());
    });
    if (!adds) zero_rest(static_cast<char*>(dx), rows, experts.num_elements(), shape_.columns * dtype_bytes(dtype_));
  }

  // Computes the gradient of biases only, since the weight is frozen.
  void backward_params(Call& call) override {
    const BorrowedTensor dbias = call.grad_param(1), dy = call.grad_output(0);
    if (!dbias) return;
    auto* const out = dbias.data<float>();
    const int64_t columns = shape_.rows;
    if (call.grad_param_beta(1) == 0.0f) std::fill_n(out, shape_.experts * columns, 0.0f);
    if (!dy) return;
    for_each_expert(rows_in(call.input(1)), [&](int64_t e, int64_t begin, int64_t count) {
      for (int64_t r = begin; r < begin + count; ++r)
        for (int64_t c = 0; c < columns; ++c) out[e * columns + c] += value_at(dy, r * columns + c);
    });
  }

 private:
  ExpertRows rows_in(const BorrowedTensor& experts) const {
    return {experts.data<int32_t>(), experts.num_elements(), shape_.experts};
  }
  void* at(void* data, int64_t i) const { return static_cast<char*>(data) + i * dtype_bytes(dtype_); }

  const Host& host_;
  const uint32_t dtype_;
  const WeightShape shape_;
  const Multiplier multiplier_;
  const PlannedSizes planned_x_;
};

}  // namespace

double claim_product(const Host& host, const NodeView& node, std::string_view scheme) {
  const OpView op = node.op(0);
  op.refuse_attrs_other_than({"storage"});
  if (!op.has_attr("storage")) refuse("the weight is not quantized");
  if (op.attr_string("storage") != scheme) refuse("computes ", scheme, ", not ", op.attr_string("storage"));
  const bool on_cuda = node.device_type() == CHASSIS_DEVICE_CUDA;
#if !defined(CHASSIS_BNB4_CUDA)
  if (on_cuda) refuse("runs only on the CPU: this program was built without CUDA");
#endif
  if (!on_cuda && node.device_type() != CHASSIS_DEVICE_CPU) refuse("runs only on the CPU and on CUDA devices");
  const uint32_t dtype = node.output(0).dtype();
  if (dtype != CHASSIS_DTYPE_F32 && dtype != CHASSIS_DTYPE_BF16 && !(on_cuda && dtype == CHASSIS_DTYPE_F16))
    refuse("computes in f32 and bf16, and on CUDA in f16, not ", dtype_name(dtype));
  return cost_ns(host, node, 2);
}

void infer_product(const Host& host, const NodeView& node, int64_t block_size, Infer& out) {
  const bool is_grouped = is_grouped_product(node);
  const WeightShape weight(node, block_size);
  const uint32_t dtype = node.output(0).dtype(), flags = CHASSIS_KERNEL_HOST_OUTPUTS | CHASSIS_KERNEL_ADDS_GRAD_INPUTS;
  if (is_grouped && node.training()) out.keeps_input(1);
  if (node.device_type() == CHASSIS_DEVICE_CUDA) {  // one matrix, whole
    const auto values = static_cast<uint64_t>(weight.rows * weight.columns * dtype_bytes(dtype));
    out.flags(flags).workspace(values, values);
    return;
  }
  const Multiplier multiplier(host, weight, dtype, rows_of(node, weight.columns), is_grouped);
  out.flags(flags | CHASSIS_KERNEL_HOST_WORKSPACE);
  out.workspace(multiplier.forward_bytes(), multiplier.backward_bytes());
}

std::unique_ptr<Kernel> make_product(const Host& host, const NodeView& node, int64_t block_size) {
#if defined(CHASSIS_BNB4_CUDA)
  if (node.device_type() == CHASSIS_DEVICE_CUDA) return make_device_product(host, node, block_size);
#endif
  if (is_grouped_product(node)) return std::make_unique<GroupedProduct>(host, node, block_size);
  return std::make_unique<Product>(host, node, block_size);
}

}  // namespace bnb4
