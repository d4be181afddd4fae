// The product and the gradient of its input. Nothing is saved for backward: the weight is dequantized again. Few rows
// go from codes to sums (rows.hpp), bf16 with AMX by tiles (tiled.hpp), the others by panels that a library multiplies.
#include "product.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "chassis/cost.hpp"
#include "chassis/gemm.hpp"
#include "chassis/task.hpp"
#include "rows.hpp"
#include "tiled.hpp"

namespace bnb4 {

using namespace chassis;

namespace {

constexpr int64_t kPanelBytes = 8 << 20;  // of dequantized rows in fp32, which stay in the cache
constexpr int64_t kRowStep = 16;
constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// How a weight is cut into panels of whole rows.
struct Panels {
  int64_t rows, columns, panel_rows;

  explicit Panels(const WeightShape& weight) : rows(weight.rows), columns(weight.columns) {
    const int64_t fit = kPanelBytes / 4 / std::max<int64_t>(1, columns) / kRowStep * kRowStep;
    panel_rows = std::clamp<int64_t>(fit, kRowStep, std::max<int64_t>(rows, 1));
  }
  int64_t bytes() const { return aligned(panel_rows * columns * 4); }
};

// Few rows need no panel if every row of the weight begins at a group.
bool suits_rows(int64_t columns) { return columns % kRowGroup == 0; }
int64_t rows_bytes(int64_t columns) { return suits_rows(columns) ? aligned(kMaxRows * columns * 4) : 0; }

float bf16_to_float(uint16_t half) { return std::bit_cast<float>(static_cast<uint32_t>(half) << 16); }

// Elements [first, first + count) of a weight in fp32, rounded to the type T.
template <typename T>
void read_rounded(const Weight& weight, int64_t first, int64_t count, float* out) {
  if constexpr (sizeof(T) == 4) {
    weight.read(first, count, out);
  } else {
    constexpr int64_t kPiece = 4096;
    uint16_t piece[kPiece];
    for (int64_t at = 0; at < count; at += kPiece) {
      const int64_t some = std::min(kPiece, count - at);
      weight.read(first + at, some, piece);
      for (int64_t i = 0; i < some; ++i) out[at + i] = bf16_to_float(piece[i]);
    }
  }
}

// Dequantizes rows [begin, end) to `out`.
template <typename T>
void read_panel(const Host& host, const Weight& weight, int64_t begin, int64_t end, float* out) {
  const int64_t first = begin * weight.columns(), count = end * weight.columns() - first;
  const int64_t step = std::max<int64_t>(weight.block(), 4096), shift = first % step;  // cut at blocks
  parallel_for(host, (shift + count + step - 1) / step, 8, [&](int64_t a, int64_t b) {
    const int64_t from = std::max<int64_t>(0, a * step - shift), to = std::min(count, b * step - shift);
    read_rounded<T>(weight, first + from, to - from, out + from);
  });
}

// fp32 factors as they are, those in bf16 widened to `room`, once for all panels.
const float* in_fp32(const Host&, const float* x, int64_t, float*) { return x; }
const float* in_fp32(const Host& host, const uint16_t* x, int64_t count, float* room) {
  parallel_for(host, count, 1 << 15, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) room[i] = bf16_to_float(x[i]);
  });
  return room;
}

class Product final : public Kernel {
 public:
  Product(const Host& host, const NodeView& node, int64_t block)
      : host_(host),
        dtype_(node.output(0).dtype()),
        shape_(node, block),
        panels_(shape_),
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

  chassis_gemm_problem_t problem(int64_t m, int64_t n, int64_t k) const {
    chassis_gemm_problem_t p{};
    p.struct_size = sizeof p;
    p.a_dtype = p.b_dtype = CHASSIS_DTYPE_F32;
    p.c_dtype = dtype_;
    p.device_type = CHASSIS_DEVICE_CPU;
    p.m = m, p.n = n, p.k = k;
    p.alpha = 1.0f;
    return p;
  }
  float* after_panel(float* panel) const { return panel + panels_.bytes() / 4; }
  void run(const chassis_gemm_problem_t& p) const {
    const auto& service = host_.service<chassis_gemm_t>();
    host_.check(service.run(&service, &p));
  }

  template <typename T>
  void multiply(Call& call) {
    const BorrowedTensor x = call.input(0), y = call.output(0);
    const int64_t in = panels_.columns, out = panels_.rows, rows = x.num_elements() / std::max<int64_t>(in, 1);
    const Weight weight(call, shape_);
    auto* const to = static_cast<T*>(y.view().data);
    const BorrowedTensor bias = has_bias_ ? call.param(1) : BorrowedTensor();
    if (rows <= kMaxRows && suits_rows(in))
      return multiply_rows(weight, rows, static_cast<const T*>(x.view().data),
                           bias ? static_cast<const T*>(bias.view().data) : nullptr, to,
                           static_cast<float*>(call.workspace()));
    if constexpr (sizeof(T) == 2)
      if (tiles() != nullptr)
        return multiply_tiled(host_, weight,
                              {false, rows, static_cast<const T*>(x.view().data), to,
                               bias ? static_cast<const T*>(bias.view().data) : nullptr, false},
                              static_cast<char*>(call.workspace()));
    if (bias)
      for (int64_t r = 0; r < rows; ++r)
        std::memcpy(to + r * out, bias.view().data, static_cast<size_t>(out) * sizeof(T));
    auto* const panel = static_cast<float*>(call.workspace());
    const float* const factor = in_fp32(host_, static_cast<const T*>(x.view().data), rows * in, after_panel(panel));
    for (int64_t begin = 0; begin < out; begin += panels_.panel_rows) {
      const int64_t end = std::min(out, begin + panels_.panel_rows);
      read_panel<T>(host_, weight, begin, end, panel);
      chassis_gemm_problem_t p = problem(rows, end - begin, in);
      p.flags = CHASSIS_GEMM_TRANSPOSE_B;
      p.a = factor, p.lda = in;
      p.b = panel, p.ldb = in;
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
    const Weight weight(call, shape_);
    const bool adds = static_cast<bool>(call.grad_input(0));
    if (!adds) {
      std::vector<int64_t> sizes(dy.sizes().begin(), dy.sizes().begin() + 2);
      sizes.insert(sizes.end(), input_tail_.begin(), input_tail_.end());
      call.set_grad_input(0, Tensor::create(host_, dtype_, sizes, CHASSIS_DEVICE_CPU, 0));
    }
    const BorrowedTensor dx = call.grad_input(0);
    auto* const workspace = static_cast<char*>(call.workspace());
    if constexpr (kRounds)
      if (tiles() != nullptr)
        return multiply_tiled(
            host_, weight,
            {true, rows, static_cast<const T*>(dy.view().data), static_cast<T*>(dx.view().data), nullptr, adds},
            workspace);
    auto* const panel = reinterpret_cast<float*>(workspace);
    const float* const factor = in_fp32(host_, static_cast<const T*>(dy.view().data), rows * out, after_panel(panel));
    auto* const to = kRounds ? after_panel(panel) + rows * out : static_cast<float*>(dx.view().data);
    for (int64_t begin = 0; begin < out; begin += panels_.panel_rows) {
      const int64_t end = std::min(out, begin + panels_.panel_rows);
      read_panel<T>(host_, weight, begin, end, panel);
      chassis_gemm_problem_t p = problem(rows, in, end - begin);
      p.c_dtype = CHASSIS_DTYPE_F32;
      p.a = factor + begin, p.lda = out;
      p.b = panel, p.ldb = in;
      p.c = to, p.ldc = in;
      p.beta = begin > 0 || (adds && !kRounds) ? 1.0f : 0.0f;
      run(p);
    }
    if constexpr (kRounds) store_sums(to, rows * in, static_cast<uint16_t*>(dx.view().data), adds);
  }

  // Each thread has some rows of the weight.
  template <typename T>
  void multiply_rows(const Weight& weight, int64_t rows, const T* x, const T* bias, T* y, float* split) const {
    const int64_t in = weight.columns(), out = weight.rows();
    for (int64_t r = 0; r < rows; ++r) split_row(x + r * in, in, split + r * in);
    parallel_for(host_, out, std::max<int64_t>(1, (1 << 15) / std::max<int64_t>(in, 1)), [&](int64_t a, int64_t b) {
      constexpr int64_t kBlocks = 256;
      float restored[kBlocks];
      for (int64_t n = a; n < b; ++n) {
        float sums[kMaxRows] = {};
        for (int64_t k = 0; k < in;) {
          const int64_t first = n * in + k, within = first % weight.block();
          const int64_t count = std::min(in - k, kBlocks * weight.block() - within);
          const float* const absmax =
              weight.absmax_of(first / weight.block(), (within + count - 1) / weight.block() + 1, restored);
          row_loops().add_dots(rows, split + k, in, weight.map(), weight.codes() + first / 2, absmax, within,
                               weight.block(), count, sums);
          k += count;
        }
        for (int64_t r = 0; r < rows; ++r) y[r * out + n] = stored(sums[r], bias == nullptr ? nullptr : bias + n);
      }
    });
  }
  static void split_row(const float* x, int64_t n, float* to) { row_loops().split_f32(x, n, to); }
  static void split_row(const uint16_t* x, int64_t n, float* to) { row_loops().split_bf16(x, n, to); }
  static float stored(float sum, const float* bias) { return bias == nullptr ? sum : sum + *bias; }
  static uint16_t stored(float sum, const uint16_t* bias) {
    return rounded(bias == nullptr ? sum : sum + bf16_to_float(*bias));
  }
  static uint16_t rounded(float x) {
    const auto word = std::bit_cast<uint32_t>(x);
    if ((word & 0x7fffffff) > 0x7f800000) return 0x7fc0;  // NaN
    return static_cast<uint16_t>((word + 0x7fffu + (word >> 16 & 1u)) >> 16);
  }

  void store_sums(const float* sums, int64_t count, uint16_t* out, bool adds) const {
    parallel_for(host_, count, 1 << 15, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) out[i] = rounded(sums[i] + (adds ? bf16_to_float(out[i]) : 0.0f));
    });
  }

  const Host& host_;
  const uint32_t dtype_;
  const WeightShape shape_;
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
  const OperandView weight = node.param(0);
  const int64_t rows = weight.size(0), columns = weight.size(1);
  if (node.device_type() == CHASSIS_DEVICE_CUDA) {
    const auto values = static_cast<uint64_t>(weight.num_elements() * dtype_bytes(node.output(0).dtype()));
    out.flags(CHASSIS_KERNEL_HOST_OUTPUTS | CHASSIS_KERNEL_ADDS_GRAD_INPUTS).workspace(values, values);
    return;
  }
  const int64_t num_rows = node.input(0).num_elements() / std::max<int64_t>(columns, 1);
  const bool is_bf16 = node.input(0).dtype() != CHASSIS_DTYPE_F32;
  int64_t forward, backward;
  if (is_bf16 && tiles() != nullptr) {
    const int threads = num_threads(host);
    forward = tiled_bytes(threads, num_rows, rows, columns, false);
    backward = tiled_bytes(threads, num_rows, rows, columns, true);
  } else {
    forward = backward = Panels(WeightShape(node, block_size)).bytes();
    if (is_bf16) {  // factors are widened, and the gradient is summed in fp32
      forward += num_rows * columns * 4;
      backward += num_rows * (rows + columns) * 4;
    }
  }
  out.flags(CHASSIS_KERNEL_HOST_OUTPUTS | CHASSIS_KERNEL_ADDS_GRAD_INPUTS | CHASSIS_KERNEL_HOST_WORKSPACE);
  out.workspace(static_cast<uint64_t>(std::max(forward, rows_bytes(columns))), static_cast<uint64_t>(backward));
}

std::unique_ptr<Kernel> make_product(const Host& host, const NodeView& node, int64_t block_size) {
#if defined(CHASSIS_BNB4_CUDA)
  if (node.device_type() == CHASSIS_DEVICE_CUDA) return make_device_product(host, node, block_size);
#endif
  return std::make_unique<Product>(host, node, block_size);
}

}  // namespace bnb4
