// The products on CUDA: a weight, or that of one expert, is dequantized whole and multiplied by ATen; few rows have a
// kernel of their own.
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

DeviceStream stream_of(const Call& call, const BorrowedTensor& x) { return {x.view().device_index, call.stream()}; }

// One weight, multiplied by matrices of rows.
class DeviceMultiplier {
 public:
  DeviceMultiplier(const Host& host, const WeightShape& shape)
      : host_(host),
        shape_(shape),
        mm_out_(host, "aten::mm.out"),
        addmm_out_(host, "aten::addmm.out"),
        addmm_(host, "aten::addmm_"),
        t_(host, "aten::t") {}

  // y = x · Wᵀ + bias; bias may be empty. `room`: for the values of a weight; made when it is first needed.
  void forward(const Call& call, const Weight& weight, const BorrowedTensor& x, const BorrowedTensor& bias,
               const BorrowedTensor& y, Tensor& room) const {
    const DeviceWeight w = on_device(weight);
    const int64_t m = x.size(0);
    if (m <= kMaxDeviceRows && suits_device_rows(w, x.view().data))
      return check_launch(multiply_rows_on_device(stream_of(call, x), w, device_dtype(y.dtype()), m, x.view().data,
                                                  bias ? bias.view().data : nullptr, y.view().data),
                          "the product");
    dequantize(call, w, x, room);
    if (bias)
      addmm_out_(bias, x, t_(room), 1.0, 1.0, y);
    else
      mm_out_(x, t_(room), y);
  }
  void backward(const Call& call, const Weight& weight, const BorrowedTensor& dy, bool adds, const BorrowedTensor& dx,
                Tensor& room) const {
    dequantize(call, on_device(weight), dy, room);
    if (adds)
      addmm_(dx, dy, room, 1.0, 1.0);
    else
      mm_out_(dy, room, dx);
  }

 private:
  DeviceWeight on_device(const Weight& w) const {
    return {w.codes(),   w.map(),        w.absmax(),   w.nested(),   w.nested_absmax(), w.nested_map(), w.offset(),
            shape_.rows, shape_.columns, shape_.block, shape_.first, shape_.row_blocks, shape_.skipped};
  }
  void dequantize(const Call& call, const DeviceWeight& weight, const BorrowedTensor& like, Tensor& room) const {
    if (!room)
      room = Tensor::create(host_, like.dtype(), std::array{shape_.rows, shape_.columns}, like.device_type(),
                            like.view().device_index);
    check_launch(dequantize_on_device(stream_of(call, like), weight, device_dtype(like.dtype()), room.view().data),
                 "dequantizing");
  }

  const Host& host_;
  const WeightShape& shape_;
  const Operator mm_out_, addmm_out_, addmm_, t_;
};

// The base of both products.
class DeviceKernel : public Kernel {
 protected:
  DeviceKernel(const Host& host, const NodeView& node, int64_t block)
      : host_(host),
        shape_(node, block),
        multiplier_(host, shape_),
        view_(host, "aten::view"),
        sum_(host, "aten::sum.dim_IntList"),
        copy_(host, "aten::copy_"),
        add_(host, "aten::add_.Tensor"),
        zero_(host, "aten::zero_") {}

  Tensor matrix(const BorrowedTensor& x, int64_t columns) const {
    return view_(x, std::array<int64_t, 2>{x.num_elements() / std::max<int64_t>(columns, 1), columns});
  }
  // The gradient of the input as a matrix: that which the host passes, or a new one of these sizes, not yet filled.
  Tensor grad_input(Call& call, const BorrowedTensor& dy, const std::vector<int64_t>& sizes) const {
    if (!call.grad_input(0))
      call.set_grad_input(0, Tensor::create(host_, dy.dtype(), sizes, dy.device_type(), dy.view().device_index));
    return matrix(call.grad_input(0), shape_.columns);
  }

  const Host& host_;
  const WeightShape shape_;
  const DeviceMultiplier multiplier_;
  const Operator view_, sum_, copy_, add_, zero_;
};

class DeviceProduct final : public DeviceKernel {
 public:
  DeviceProduct(const Host& host, const NodeView& node, int64_t block)
      : DeviceKernel(host, node, block),
        input_tail_(node.input(0).local_shape().begin() + 2, node.input(0).local_shape().end()) {}

  void forward(Call& call) override {
    Tensor room;
    multiplier_.forward(call, Weight(call, shape_), matrix(call.input(0), shape_.columns), call.param(1),
                        matrix(call.output(0), shape_.rows), room);
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0);
    if (!dy || !call.wants_grad_input(0)) return;
    const bool adds = static_cast<bool>(call.grad_input(0));
    std::vector<int64_t> sizes(dy.sizes().begin(), dy.sizes().begin() + 2);
    sizes.insert(sizes.end(), input_tail_.begin(), input_tail_.end());
    Tensor room;
    multiplier_.backward(call, Weight(call, shape_), matrix(dy, shape_.rows), adds, grad_input(call, dy, sizes), room);
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
    const Tensor sum = sum_(matrix(dy, shape_.rows), std::array<int64_t, 1>{0}, false, DtypeArg{dbias.dtype()});
    if (adds)
      add_(dbias, sum);
    else
      copy_(dbias, sum);
  }

 private:
  const std::vector<int64_t> input_tail_;
};

// The values of one expert at a time are in memory. The products need the numbers of rows on the host, so that each
// call waits for the stream.
class GroupedDeviceProduct final : public DeviceKernel {
 public:
  GroupedDeviceProduct(const Host& host, const NodeView& node, int64_t block)
      : DeviceKernel(host, node, block),
        planned_x_(node.input(0), node.input(1)),
        narrow_(host, "aten::narrow"),
        select_(host, "aten::select.int") {}

  void forward(Call& call) override {
    const Tensor x = matrix(call.input(0), shape_.columns), y = matrix(call.output(0), shape_.rows);
    const BorrowedTensor bias = call.param(1);
    const ExpertRows rows = rows_in(call.input(1));
    const Weight weight(call, shape_);
    Tensor room;
    for_each_expert(rows, [&](int64_t e, int64_t begin, int64_t count) {
      const Tensor added = bias ? Tensor(select_(bias, 0, e)) : Tensor();
      multiplier_.forward(call, weight.of_expert(e), narrow_(x, 0, begin, count), added, narrow_(y, 0, begin, count),
                          room);
    });
    zero_rest(y, rows);
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), experts = call.input(1);
    if (!dy || !call.wants_grad_input(0)) return;
    const bool adds = static_cast<bool>(call.grad_input(0));
    const Tensor dx = grad_input(call, dy, planned_x_.in_call(experts)), all = matrix(dy, shape_.rows);
    const ExpertRows rows = rows_in(experts);
    const Weight weight(call, shape_);
    Tensor room;
    for_each_expert(rows, [&](int64_t e, int64_t begin, int64_t count) {
      multiplier_.backward(call, weight.of_expert(e), narrow_(all, 0, begin, count), adds, narrow_(dx, 0, begin, count),
                           room);
    });
    if (!adds) zero_rest(dx, rows);
  }

  // Computes the gradient of biases only, since the weight is frozen.
  void backward_params(Call& call) override {
    const BorrowedTensor dbias = call.grad_param(1), dy = call.grad_output(0);
    if (!dbias) return;
    if (call.grad_param_beta(1) == 0.0f) zero_(dbias);
    if (!dy) return;
    const Tensor all = matrix(dy, shape_.rows);
    for_each_expert(rows_in(call.input(1)), [&](int64_t e, int64_t begin, int64_t count) {
      add_(select_(dbias, 0, e),
           sum_(narrow_(all, 0, begin, count), std::array<int64_t, 1>{0}, false, DtypeArg{dbias.dtype()}));
    });
  }

 private:
  ExpertRows rows_in(const BorrowedTensor& experts) const {
    const int64_t num_pairs = experts.num_elements();
    const Tensor on_host = Tensor::create(host_, CHASSIS_DTYPE_I32, {num_pairs});
    copy_(on_host, view_(experts, std::array<int64_t, 1>{num_pairs}));
    return {on_host.data<int32_t>(), num_pairs, shape_.experts};
  }
  void zero_rest(const Tensor& all, const ExpertRows& rows) const {
    if (const int64_t begin = rows.num_rows(); begin < all.size(0)) zero_(narrow_(all, 0, begin, all.size(0) - begin));
  }

  const PlannedSizes planned_x_;
  const Operator narrow_, select_;
};

}  // namespace

std::unique_ptr<Kernel> make_device_product(const Host& host, const NodeView& node, int64_t block_size) {
  if (is_grouped_product(node)) return std::make_unique<GroupedDeviceProduct>(host, node, block_size);
  return std::make_unique<DeviceProduct>(host, node, block_size);
}

}  // namespace bnb4
