// The product on CUDA: the weight is dequantized whole and multiplied by ATen; few rows have a kernel of their own.
#include "chassis/dispatch.hpp"
#include "device.hpp"
#include "product.hpp"
#include "weight.hpp"

namespace bnb4 {

using namespace chassis;

namespace {

DeviceDtype device_dtype(uint32_t dtype) {
  switch (dtype) {
    case CHASSIS_DTYPE_F32:
      return DeviceDtype::kF32;
    case CHASSIS_DTYPE_F16:
      return DeviceDtype::kF16;
    case CHASSIS_DTYPE_BF16:
      return DeviceDtype::kBF16;
  }
  throw Failure(CHASSIS_INTERNAL, "a product of 4 bits in ", dtype_name(dtype));
}

void check_launch(const char* error, std::string_view what) {
  if (error != nullptr) throw Failure(CHASSIS_INTERNAL, what, " of a weight in 4 bits: CUDA error '", error, "'");
}

class DeviceProduct final : public Kernel {
 public:
  DeviceProduct(const Host& host, const NodeView& node, int64_t block)
      : host_(host),
        shape_(node, block),
        rows_(shape_.rows),
        columns_(shape_.columns),
        input_tail_(node.input(0).local_shape().begin() + 2, node.input(0).local_shape().end()),
        mm_out_(host, "aten::mm.out"),
        addmm_out_(host, "aten::addmm.out"),
        addmm_(host, "aten::addmm_"),
        view_(host, "aten::view"),
        t_(host, "aten::t"),
        sum_(host, "aten::sum.dim_IntList"),
        copy_(host, "aten::copy_"),
        add_(host, "aten::add_.Tensor"),
        zero_(host, "aten::zero_") {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0), y = call.output(0), bias = call.param(1);
    const int64_t m = x.num_elements() / std::max<int64_t>(columns_, 1);
    const DeviceWeight weight = device_weight(call);
    if (m <= kMaxDeviceRows && suits_device_rows(weight, x.view().data))
      return check_launch(multiply_rows_on_device(stream_of(call, x), weight, device_dtype(y.dtype()), m, x.view().data,
                                                  bias ? bias.view().data : nullptr, y.view().data),
                          "the product");
    const Tensor values = dequantized(call, x), x_rows = matrix(x, columns_), y_rows = matrix(y, rows_);
    if (bias)
      addmm_out_(bias, x_rows, t_(values), 1.0, 1.0, y_rows);
    else
      mm_out_(x_rows, t_(values), y_rows);
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0);
    if (!dy || !call.wants_grad_input(0)) return;
    const bool adds = static_cast<bool>(call.grad_input(0));
    if (!adds) {
      std::vector<int64_t> sizes(dy.sizes().begin(), dy.sizes().begin() + 2);
      sizes.insert(sizes.end(), input_tail_.begin(), input_tail_.end());
      call.set_grad_input(0, Tensor::create(host_, dy.dtype(), sizes, dy.device_type(), dy.view().device_index));
    }
    const Tensor values = dequantized(call, dy), dy_rows = matrix(dy, rows_),
                 dx_rows = matrix(call.grad_input(0), columns_);
    if (adds)
      addmm_(dx_rows, dy_rows, values, 1.0, 1.0);
    else
      mm_out_(dy_rows, values, dx_rows);
  }

  // Computes the gradient of a bias only, since the weight is frozen.
  void backward_params(Call& call) override {
    const BorrowedTensor dbias = call.grad_param(1), dy = call.grad_output(0);
    if (!dbias) return;
    const bool adds = call.grad_param_beta(1) != 0.0f;
    if (!dy) {
      if (!adds) zero_(dbias);
      return;
    }
    const Tensor sum = sum_(matrix(dy, rows_), std::array<int64_t, 1>{0}, false, DtypeArg{dbias.dtype()});
    if (adds)
      add_(dbias, sum);
    else
      copy_(dbias, sum);
  }

 private:
  DeviceWeight device_weight(const Call& call) const {
    const Weight w(call, shape_);
    return {w.codes(), w.map(),  w.absmax(),   w.nested(),   w.nested_absmax(), w.nested_map(), w.offset(),
            rows_,     columns_, shape_.block, shape_.first, shape_.row_blocks, shape_.skipped};
  }
  static DeviceStream stream_of(const Call& call, const BorrowedTensor& x) {
    return {x.view().device_index, call.stream()};
  }
  Tensor dequantized(const Call& call, const BorrowedTensor& like) const {
    Tensor values =
        Tensor::create(host_, like.dtype(), std::array{rows_, columns_}, like.device_type(), like.view().device_index);
    check_launch(dequantize_on_device(stream_of(call, like), device_weight(call), device_dtype(like.dtype()),
                                      values.view().data),
                 "dequantizing");
    return values;
  }
  Tensor matrix(const BorrowedTensor& x, int64_t columns) const {
    return view_(x, std::array<int64_t, 2>{x.num_elements() / std::max<int64_t>(columns, 1), columns});
  }

  const Host& host_;
  const WeightShape shape_;
  const int64_t rows_, columns_;
  const std::vector<int64_t> input_tail_;
  const Operator mm_out_, addmm_out_, addmm_, view_, t_, sum_, copy_, add_, zero_;
};

}  // namespace

std::unique_ptr<Kernel> make_device_product(const Host& host, const NodeView& node, int64_t block_size) {
  return std::make_unique<DeviceProduct>(host, node, block_size);
}

}  // namespace bnb4
