// The product and the gradient of its input. Nothing is saved for backward: the weight is dequantized again.
#include "product.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "chassis/cost.hpp"
#include "chassis/gemm.hpp"
#include "chassis/task.hpp"
#include "loops.hpp"
#include "nested.hpp"

namespace bnb4 {

using namespace chassis;

namespace {

constexpr int64_t kPanelBytes = 1 << 20;  // of dequantized rows, which stay in the second-level cache
constexpr int64_t kRowStep = 16;
constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// How a weight [rows, columns] is cut into panels of whole rows, and the workspace of one. A panel is dequantized from
// the block in which it begins.
struct Panels {
  int64_t rows, columns, block, element_bytes, panel_rows;

  Panels(int64_t rows, int64_t columns, int64_t block, uint32_t dtype)
      : rows(rows), columns(columns), block(block), element_bytes(dtype_bytes(dtype)) {
    const int64_t fit = kPanelBytes / std::max<int64_t>(1, columns * element_bytes) / kRowStep * kRowStep;
    panel_rows = std::clamp<int64_t>(fit, kRowStep, std::max<int64_t>(rows, 1));
  }
  int64_t panel_bytes() const { return aligned((panel_rows * columns + block) * element_bytes); }
  int64_t absmax_bytes() const { return aligned((panel_rows * columns / block + 2) * 4); }
  int64_t bytes() const { return panel_bytes() + absmax_bytes(); }
};

// A weight's components in one call.
class Weight {
 public:
  Weight(const Call& call, const Panels& panels) : panels_(panels) {
    const BorrowedTensor codes = call.component(0, kCodes), absmax = call.component(0, kAbsmax);
    codes_ = codes.data<uint8_t>();
    map_ = call.component(0, kQuantMap).data<float>();
    if (absmax.dtype() == CHASSIS_DTYPE_F32) {
      absmax_ = absmax.data<float>();
    } else {
      nested_ = absmax.data<uint8_t>();
      nested_absmax_ = call.component(0, kNestedAbsmax).data<float>();
      nested_map_ = call.component(0, kNestedMap).data<float>();
      offset_ = *call.component(0, kNestedOffset).data<float>();
    }
    const int64_t elements = panels.rows * panels.columns, blocks = (elements + panels.block - 1) / panels.block;
    if (codes.num_elements() != (elements + 1) / 2 || absmax.num_elements() != blocks)
      throw Failure(CHASSIS_INTERNAL, "a weight of ", elements, " elements has ", codes.num_elements(), " codes and ",
                    absmax.num_elements(), " scales, expected ", (elements + 1) / 2, " and ", blocks);
  }

  // Dequantizes rows [begin, end) and returns where the first one is.
  template <typename T>
  const T* panel(const Host& host, int64_t begin, int64_t end, char* workspace) const {
    const int64_t block = panels_.block, from = begin * panels_.columns, to = end * panels_.columns;
    const int64_t first = from / block, count = (to + block - 1) / block - first;
    T* const values = reinterpret_cast<T*>(workspace);
    auto* const restored = reinterpret_cast<float*>(workspace + panels_.panel_bytes());
    parallel_for(host, count, std::max<int64_t>(1, 16384 / block), [&](int64_t a, int64_t b) {
      const float* absmax = absmax_ + first + a;
      if (nested_ != nullptr) {
        restore_absmax(nested_ + first + a, nested_absmax_, nested_map_, offset_, first + a, b - a, restored + a);
        absmax = restored + a;
      }
      const int64_t start = (first + a) * block, length = std::min(to, (first + b) * block) - start;
      dequantize(codes_ + start / 2, absmax, length, values + a * block);
    });
    return values + (from - first * block);
  }

 private:
  void dequantize(const uint8_t* codes, const float* absmax, int64_t n, float* out) const {
    loops().dequantize_f32(map_, codes, absmax, n, panels_.block, out);
  }
  void dequantize(const uint8_t* codes, const float* absmax, int64_t n, uint16_t* out) const {
    loops().dequantize_bf16(map_, codes, absmax, n, panels_.block, out);
  }

  const Panels& panels_;
  const uint8_t* codes_ = nullptr;
  const float *map_ = nullptr, *absmax_ = nullptr;
  const uint8_t* nested_ = nullptr;
  const float *nested_absmax_ = nullptr, *nested_map_ = nullptr;
  float offset_ = 0.0f;
};

class Product final : public Kernel {
 public:
  Product(const Host& host, const NodeView& node, int64_t block)
      : host_(host),
        dtype_(node.output(0).dtype()),
        panels_(node.param(0).size(0), node.param(0).size(1), block, dtype_),
        has_bias_(node.has_param(1)),
        input_tail_(node.input(0).local_shape().begin() + 2, node.input(0).local_shape().end()) {}

  void forward(Call& call) override {
    if (dtype_ == CHASSIS_DTYPE_F32)
      multiply<float>(call);
    else
      multiply<uint16_t>(call);
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0);
    if (!dy || !call.wants_grad_input(0)) return;
    if (dtype_ == CHASSIS_DTYPE_F32)
      multiply_back<float>(call, dy);
    else
      multiply_back<uint16_t>(call, dy);
  }

  // Of a bias alone: the weight is frozen.
  void backward_params(Call& call) override {
    const BorrowedTensor dbias = call.grad_param(1), dy = call.grad_output(0);
    if (!dbias) return;
    auto* const out = dbias.data<float>();
    const int64_t columns = panels_.rows;
    if (call.grad_param_beta(1) == 0.0f) std::fill_n(out, columns, 0.0f);
    if (!dy) return;
    const int64_t rows = dy.num_elements() / std::max<int64_t>(columns, 1);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) out[c] += value(dy, r * columns + c);
  }

 private:
  static float value(const BorrowedTensor& x, int64_t i) {
    if (x.dtype() == CHASSIS_DTYPE_F32) return static_cast<const float*>(x.view().data)[i];
    return bf16_to_float(static_cast<const uint16_t*>(x.view().data)[i]);
  }
  static float bf16_to_float(uint16_t half) { return std::bit_cast<float>(static_cast<uint32_t>(half) << 16); }

  chassis_gemm_problem_t problem(int64_t m, int64_t n, int64_t k) const {
    chassis_gemm_problem_t p{};
    p.struct_size = sizeof p;
    p.a_dtype = p.b_dtype = p.c_dtype = dtype_;
    p.device_type = CHASSIS_DEVICE_CPU;
    p.m = m, p.n = n, p.k = k;
    p.alpha = 1.0f;
    return p;
  }
  void run(const chassis_gemm_problem_t& p) const {
    const auto& service = host_.service<chassis_gemm_t>();
    host_.check(service.run(&service, &p));
  }

  template <typename T>
  void multiply(Call& call) {
    const BorrowedTensor x = call.input(0), y = call.output(0);
    const int64_t in = panels_.columns, out = panels_.rows, rows = x.num_elements() / std::max<int64_t>(in, 1);
    const Weight weight(call, panels_);
    auto* const to = static_cast<T*>(y.view().data);
    const BorrowedTensor bias = has_bias_ ? call.param(1) : BorrowedTensor();
    if (bias)
      for (int64_t r = 0; r < rows; ++r)
        std::memcpy(to + r * out, bias.view().data, static_cast<size_t>(out) * sizeof(T));
    auto* const workspace = static_cast<char*>(call.workspace());
    for (int64_t begin = 0; begin < out; begin += panels_.panel_rows) {
      const int64_t end = std::min(out, begin + panels_.panel_rows);
      chassis_gemm_problem_t p = problem(rows, end - begin, in);
      p.flags = CHASSIS_GEMM_TRANSPOSE_B;
      p.a = x.view().data, p.lda = in;
      p.b = weight.panel<T>(host_, begin, end, workspace), p.ldb = in;
      p.c = to + begin, p.ldc = out;
      p.beta = bias ? 1.0f : 0.0f;
      run(p);
    }
  }

  // dx = Σ over panels of dy · W, summed in fp32.
  template <typename T>
  void multiply_back(Call& call, const BorrowedTensor& dy) {
    constexpr bool kRounds = sizeof(T) == 2;
    const int64_t in = panels_.columns, out = panels_.rows, rows = dy.num_elements() / std::max<int64_t>(out, 1);
    const Weight weight(call, panels_);
    const bool adds = static_cast<bool>(call.grad_input(0));
    if (!adds) {
      std::vector<int64_t> sizes(dy.sizes().begin(), dy.sizes().begin() + 2);
      sizes.insert(sizes.end(), input_tail_.begin(), input_tail_.end());
      call.set_grad_input(0, Tensor::create(host_, dtype_, sizes, CHASSIS_DEVICE_CPU, 0));
    }
    const BorrowedTensor dx = call.grad_input(0);
    auto* const workspace = static_cast<char*>(call.workspace());
    auto* const to =
        kRounds ? reinterpret_cast<float*>(workspace + panels_.bytes()) : static_cast<float*>(dx.view().data);
    for (int64_t begin = 0; begin < out; begin += panels_.panel_rows) {
      const int64_t end = std::min(out, begin + panels_.panel_rows);
      chassis_gemm_problem_t p = problem(rows, in, end - begin);
      p.c_dtype = CHASSIS_DTYPE_F32;
      p.a = static_cast<const T*>(dy.view().data) + begin, p.lda = out;
      p.b = weight.panel<T>(host_, begin, end, workspace), p.ldb = in;
      p.c = to, p.ldc = in;
      p.beta = begin > 0 || (adds && !kRounds) ? 1.0f : 0.0f;
      run(p);
    }
    if constexpr (kRounds) store_sums(to, rows * in, static_cast<uint16_t*>(dx.view().data), adds);
  }

  void store_sums(const float* sums, int64_t count, uint16_t* out, bool adds) const {
    parallel_for(host_, count, 1 << 15, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const float sum = sums[i] + (adds ? bf16_to_float(out[i]) : 0.0f);
        const auto word = std::bit_cast<uint32_t>(sum);
        out[i] = static_cast<uint16_t>((word + 0x7fffu + (word >> 16 & 1u)) >> 16);
      }
    });
  }

  const Host& host_;
  const uint32_t dtype_;
  const Panels panels_;
  const bool has_bias_;
  const std::vector<int64_t> input_tail_;
};

}  // namespace

double claim_product(const Host& host, const NodeView& node, std::string_view scheme) {
  const OpView op = node.op(0);
  op.refuse_attrs_other_than({"storage"});
  if (!op.has_attr("storage")) refuse("the weight is not quantized");
  if (op.attr_string("storage") != scheme) refuse("computes ", scheme, ", not ", op.attr_string("storage"));
  if (node.device_type() != CHASSIS_DEVICE_CPU) refuse("runs only on the CPU");
  const uint32_t dtype = node.output(0).dtype();
  if (dtype != CHASSIS_DTYPE_F32 && dtype != CHASSIS_DTYPE_BF16)
    refuse("computes in f32 and bf16, not ", dtype_name(dtype));
  return cost_ns(host, node, 2);
}

void infer_product(const NodeView& node, int64_t block_size, Infer& out) {
  const OperandView weight = node.param(0);
  const Panels panels(weight.size(0), weight.size(1), block_size, node.output(0).dtype());
  const OperandView x = node.input(0);
  const auto bytes = static_cast<uint64_t>(panels.bytes());
  const bool rounds = x.dtype() != CHASSIS_DTYPE_F32;  // the gradient is summed in fp32 first
  const uint64_t sums = rounds ? static_cast<uint64_t>(x.num_elements()) * 4 : 0;
  out.flags(CHASSIS_KERNEL_HOST_OUTPUTS | CHASSIS_KERNEL_ADDS_GRAD_INPUTS | CHASSIS_KERNEL_HOST_WORKSPACE);
  out.workspace(bytes, bytes + sums);
}

std::unique_ptr<Kernel> make_product(const Host& host, const NodeView& node, int64_t block_size) {
  return std::make_unique<Product>(host, node, block_size);
}

}  // namespace bnb4
