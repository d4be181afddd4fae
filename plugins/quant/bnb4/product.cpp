// The product and the gradient of its input. Nothing is saved for backward: the weight is dequantized again. Few rows
// are computed directly from codes (rows.hpp), bf16 with AMX by tiles (tiled.hpp), and all others by panels that the
// host multiplies: in bf16 where the host multiplies bf16 without a conversion, else in fp32.
#include "product.hpp"

#include <algorithm>
#include <cstring>

#include "chassis/bf16.hpp"
#include "chassis/cost.hpp"
#include "chassis/gemm.hpp"
#include "chassis/task.hpp"
#include "loops.hpp"
#include "rows.hpp"
#include "tiled.hpp"

namespace bnb4 {

using namespace chassis;

namespace {

constexpr int64_t kPanelValues = 2 << 20;                 // dequantized rows, which stay in the cache
constexpr int64_t kSums = 2 << 20, kFewestColumns = 512;  // of one panel of bf16
constexpr int64_t kRowStep = 16;
constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// A factor of `m` rows times the transpose of a panel of `panel_rows` rows.
chassis_gemm_problem_t forward_problem(uint32_t dtype, uint32_t c_dtype, int64_t m, int64_t panel_rows,
                                       int64_t columns) {
  chassis_gemm_problem_t p = gemm_problem(dtype, c_dtype, m, panel_rows, columns);
  p.flags = CHASSIS_GEMM_TRANSPOSE_B;
  p.lda = p.ldb = columns, p.ldc = panel_rows;
  return p;
}

// The panel's columns of a gradient of `m` rows, times the panel.
chassis_gemm_problem_t backward_problem(uint32_t dtype, int64_t m, int64_t rows, int64_t panel_rows, int64_t columns) {
  chassis_gemm_problem_t p = gemm_problem(dtype, CHASSIS_DTYPE_F32, m, columns, panel_rows);
  p.lda = rows, p.ldb = p.ldc = columns;
  return p;
}

// The division of a weight into panels of whole rows, and the bytes of a panel. `m` rows are multiplied.
struct Panels {
  int64_t rows, columns, panel_rows;
  bool in_bf16 = false;  // else in fp32

  Panels(const Host& host, const WeightShape& weight, uint32_t dtype, int64_t m)
      : rows(weight.rows),
        columns(weight.columns),
        panel_rows(most_rows(kPanelValues / std::max<int64_t>(1, columns))) {
    if (dtype == CHASSIS_DTYPE_F32) return;
    const int64_t fit = std::max(kFewestColumns, kSums / std::max<int64_t>(1, m));
    const int64_t rows_in_bf16 = std::min(panel_rows, most_rows(fit));
    const auto is_direct = [&](const chassis_gemm_problem_t& p) { return gemm_scratch_bytes(host, p) == 0; };
    in_bf16 = is_direct(forward_problem(dtype, CHASSIS_DTYPE_F32, m, rows_in_bf16, columns)) &&
              is_direct(backward_problem(dtype, m, rows, rows_in_bf16, columns));
    if (in_bf16) panel_rows = rows_in_bf16;
  }
  int64_t bytes() const { return aligned(panel_rows * columns * (in_bf16 ? 2 : 4)); }

 private:
  int64_t most_rows(int64_t fit) const {
    return std::clamp<int64_t>(fit / kRowStep * kRowStep, kRowStep, std::max<int64_t>(rows, kRowStep));
  }
};

// Few rows need no panel if every row of the weight begins at a group.
bool suits_rows(int64_t columns) { return columns % kRowGroup == 0; }
int64_t rows_bytes(int64_t columns) { return suits_rows(columns) ? aligned(kMaxRows * columns * 4) : 0; }

// Elements [first, first + count) of a weight in fp32, rounded to bf16.
void read_rounded(const Weight& weight, int64_t first, int64_t count, float* out) {
  constexpr int64_t kPiece = 4096;
  uint16_t piece[kPiece];
  for (int64_t at = 0; at < count; at += kPiece) {
    const int64_t some = std::min(kPiece, count - at);
    weight.read(first + at, some, piece);
    for (int64_t i = 0; i < some; ++i) out[at + i] = from_bf16(piece[i]);
  }
}

// Dequantizes rows [begin, end) to `out`, rounded to the type T.
template <typename T, typename Out>
void read_panel(const Host& host, const Weight& weight, int64_t begin, int64_t end, Out* out) {
  const int64_t first = begin * weight.columns(), count = end * weight.columns() - first;
  const int64_t step = std::max<int64_t>(weight.block(), 4096), shift = first % step;  // cut at blocks
  parallel_for(host, (shift + count + step - 1) / step, 8, [&](int64_t a, int64_t b) {
    const int64_t from = std::max<int64_t>(0, a * step - shift), to = std::min(count, b * step - shift);
    if constexpr (sizeof(T) == sizeof(Out))
      weight.read(first + from, to - from, out + from);
    else
      read_rounded(weight, first + from, to - from, out + from);
  });
}

// Returns fp32 factors unchanged, and bf16 factors widened into `room`, once for all panels.
const float* in_fp32(const Host&, const float* x, int64_t, float*) { return x; }
const float* in_fp32(const Host& host, const uint16_t* x, int64_t count, float* room) {
  parallel_for(host, count, 1 << 15, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) room[i] = from_bf16(x[i]);
  });
  return room;
}

class Product final : public Kernel {
 public:
  Product(const Host& host, const NodeView& node, int64_t block)
      : host_(host),
        dtype_(node.output(0).dtype()),
        shape_(node, block),
        panels_(host, shape_, dtype_, rows_of(node, shape_)),
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

  // Computes the gradient of a bias only, since the weight is frozen.
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
  static int64_t rows_of(const NodeView& node, const WeightShape& weight) {
    return node.input(0).num_elements() / std::max<int64_t>(weight.columns, 1);
  }
  static float value(const BorrowedTensor& x, int64_t i) {
    if (x.dtype() == CHASSIS_DTYPE_F32) return static_cast<const float*>(x.view().data)[i];
    return from_bf16(static_cast<const uint16_t*>(x.view().data)[i]);
  }

  float* after_panel(void* panel) const { return static_cast<float*>(panel) + panels_.bytes() / 4; }

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
    const T* const added = bias ? static_cast<const T*>(bias.view().data) : nullptr;
    if constexpr (sizeof(T) == 2)
      if (panels_.in_bf16)
        return multiply_in_bf16(weight, rows, static_cast<const T*>(x.view().data), added, to, call.workspace());
    if (bias)
      for (int64_t r = 0; r < rows; ++r) std::memcpy(to + r * out, added, static_cast<size_t>(out) * sizeof(T));
    auto* const panel = static_cast<float*>(call.workspace());
    const float* const factor = in_fp32(host_, static_cast<const T*>(x.view().data), rows * in, after_panel(panel));
    for (int64_t begin = 0; begin < out; begin += panels_.panel_rows) {
      const int64_t end = std::min(out, begin + panels_.panel_rows);
      read_panel<T>(host_, weight, begin, end, panel);
      chassis_gemm_problem_t p = forward_problem(CHASSIS_DTYPE_F32, dtype_, rows, end - begin, in);
      p.a = factor, p.b = panel;
      p.c = to + begin, p.ldc = out;
      p.beta = bias ? 1.0f : 0.0f;
      gemm(host_, p);
    }
  }

  // The sums of a panel are rounded once, with the bias.
  void multiply_in_bf16(const Weight& weight, int64_t rows, const uint16_t* x, const uint16_t* bias, uint16_t* y,
                        void* workspace) const {
    const int64_t out = panels_.rows;
    auto* const panel = static_cast<uint16_t*>(workspace);
    float* const sums = after_panel(workspace);
    for (int64_t begin = 0; begin < out; begin += panels_.panel_rows) {
      const int64_t end = std::min(out, begin + panels_.panel_rows), width = end - begin;
      read_panel<uint16_t>(host_, weight, begin, end, panel);
      chassis_gemm_problem_t p = forward_problem(dtype_, CHASSIS_DTYPE_F32, rows, width, panels_.columns);
      p.a = x, p.b = panel, p.c = sums;
      gemm(host_, p);
      parallel_for(host_, rows, std::max<int64_t>(1, (1 << 15) / width), [&](int64_t first, int64_t last) {
        for (int64_t r = first; r < last; ++r) {
          loops().round_bf16(sums + r * width, bias == nullptr ? nullptr : bias + begin, width, y + r * out + begin);
        }
      });
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
    const T* const gradient = static_cast<const T*>(dy.view().data);
    T* const to = static_cast<T*>(dx.view().data);
    if constexpr (!kRounds) {
      add_panels<T>(weight, rows, gradient, reinterpret_cast<float*>(workspace), to, adds);
    } else if (float* const room = after_panel(workspace); panels_.in_bf16) {
      add_panels<T>(weight, rows, gradient, reinterpret_cast<T*>(workspace), room, false);
      store_sums(room, rows * in, to, adds);
    } else {
      const float* const wide = in_fp32(host_, gradient, rows * out, room);
      float* const sums = room + rows * out;
      add_panels<T>(weight, rows, wide, reinterpret_cast<float*>(workspace), sums, false);
      store_sums(sums, rows * in, to, adds);
    }
  }

  // Values of the weight are rounded to the type T.
  template <typename T, typename Factor>
  void add_panels(const Weight& weight, int64_t rows, const Factor* dy, Factor* panel, float* dx, bool adds) const {
    const int64_t in = panels_.columns, out = panels_.rows;
    for (int64_t begin = 0; begin < out; begin += panels_.panel_rows) {
      const int64_t end = std::min(out, begin + panels_.panel_rows);
      read_panel<T>(host_, weight, begin, end, panel);
      chassis_gemm_problem_t p =
          backward_problem(sizeof(Factor) == 4 ? CHASSIS_DTYPE_F32 : CHASSIS_DTYPE_BF16, rows, out, end - begin, in);
      p.a = dy + begin, p.b = panel, p.c = dx;
      p.beta = begin > 0 || adds ? 1.0f : 0.0f;
      gemm(host_, p);
    }
  }

  // Each thread computes with some rows of the weight.
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
    uint16_t out;
    loops().round_bf16(&sum, bias, 1, &out);
    return out;
  }

  void store_sums(const float* sums, int64_t count, uint16_t* out, bool adds) const {
    parallel_for(host_, count, 1 << 15, [&](int64_t begin, int64_t end) {
      loops().round_bf16(sums + begin, adds ? out + begin : nullptr, end - begin, out + begin);
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
    const Panels panels(host, WeightShape(node, block_size), node.input(0).dtype(), num_rows);
    forward = backward = panels.bytes();
    if (panels.in_bf16) {  // sums are in fp32
      forward += num_rows * panels.panel_rows * 4;
      backward += num_rows * columns * 4;
    } else if (is_bf16) {  // factors are widened too
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
