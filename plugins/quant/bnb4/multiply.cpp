// Few rows are computed directly from codes (rows.hpp), bf16 with AMX by tiles (tiled.hpp), and all others by panels
// that the host multiplies: in bf16 where the host multiplies bf16 without a conversion, else in fp32.
#include "multiply.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "chassis/bf16.hpp"
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

void split_row(const float* x, int64_t n, float* to) { row_loops().split_f32(x, n, to); }
void split_row(const uint16_t* x, int64_t n, float* to) { row_loops().split_bf16(x, n, to); }
float stored(float sum, const float* bias) { return bias == nullptr ? sum : sum + *bias; }
uint16_t stored(float sum, const uint16_t* bias) {
  uint16_t out;
  loops().round_bf16(&sum, bias, 1, &out);
  return out;
}

}  // namespace

Panels::Panels(const Host& host, const WeightShape& weight, uint32_t dtype, int64_t m, bool or_fewer)
    : rows(weight.rows), columns(weight.columns), panel_rows(most_rows(kPanelValues / std::max<int64_t>(1, columns))) {
  if (dtype == CHASSIS_DTYPE_F32) return;
  const int64_t fit = std::max(kFewestColumns, kSums / std::max<int64_t>(1, m));
  const int64_t rows_in_bf16 = std::min(panel_rows, most_rows(fit));
  const auto is_direct = [&](int64_t some) {
    return gemm_scratch_bytes(host, forward_problem(dtype, CHASSIS_DTYPE_F32, some, rows_in_bf16, columns)) == 0 &&
           gemm_scratch_bytes(host, backward_problem(dtype, some, rows, rows_in_bf16, columns)) == 0;
  };
  in_bf16 = is_direct(m);
  for (int64_t some = 1; or_fewer && some < m; some *= 2) in_bf16 = in_bf16 && is_direct(some);
  if (in_bf16) panel_rows = rows_in_bf16;
}

int64_t Panels::bytes() const { return aligned(panel_rows * columns * (in_bf16 ? 2 : 4)); }

int64_t Panels::most_rows(int64_t fit) const {
  return std::clamp<int64_t>(fit / kRowStep * kRowStep, kRowStep, std::max<int64_t>(rows, kRowStep));
}

uint64_t Multiplier::forward_bytes() const {
  const int64_t rows = panels_.rows, columns = panels_.columns;
  int64_t bytes = panels_.bytes();
  if (dtype_ != CHASSIS_DTYPE_F32 && tiles() != nullptr)
    bytes = tiled_bytes(num_threads(host_), planned_rows_, rows, columns, false);
  else if (panels_.in_bf16)  // sums are in fp32
    bytes += planned_rows_ * panels_.panel_rows * 4;
  else if (dtype_ != CHASSIS_DTYPE_F32)  // factors are widened too
    bytes += planned_rows_ * columns * 4;
  return static_cast<uint64_t>(std::max(bytes, rows_bytes(columns)));
}

uint64_t Multiplier::backward_bytes() const {
  const int64_t rows = panels_.rows, columns = panels_.columns;
  int64_t bytes = panels_.bytes();
  if (dtype_ != CHASSIS_DTYPE_F32 && tiles() != nullptr)
    bytes = tiled_bytes(num_threads(host_), planned_rows_, rows, columns, true);
  else if (panels_.in_bf16)
    bytes += planned_rows_ * columns * 4;
  else if (dtype_ != CHASSIS_DTYPE_F32)
    bytes += planned_rows_ * (rows + columns) * 4;
  return static_cast<uint64_t>(bytes);
}

void Multiplier::forward(const Weight& weight, int64_t rows, const void* x, const void* bias, void* y,
                         void* scratch) const {
  const auto run = [&](auto* typed) {
    using T = std::remove_pointer_t<decltype(typed)>;
    multiply(weight, rows, static_cast<const T*>(x), static_cast<const T*>(bias), static_cast<T*>(y), scratch);
  };
  if (dtype_ == CHASSIS_DTYPE_F32)
    run(static_cast<float*>(nullptr));
  else
    run(static_cast<uint16_t*>(nullptr));
}

void Multiplier::backward(const Weight& weight, int64_t rows, const void* dy, void* dx, bool adds,
                          void* scratch) const {
  if (dtype_ == CHASSIS_DTYPE_F32)
    multiply_back(weight, rows, static_cast<const float*>(dy), static_cast<float*>(dx), adds, scratch);
  else
    multiply_back(weight, rows, static_cast<const uint16_t*>(dy), static_cast<uint16_t*>(dx), adds, scratch);
}

template <typename T>
void Multiplier::multiply(const Weight& weight, int64_t rows, const T* x, const T* bias, T* y, void* scratch) const {
  const int64_t in = panels_.columns, out = panels_.rows;
  if (rows <= kMaxRows && suits_rows(in)) return multiply_rows(weight, rows, x, bias, y, static_cast<float*>(scratch));
  if constexpr (sizeof(T) == 2) {
    if (tiles() != nullptr)
      return multiply_tiled(host_, weight, {false, rows, x, y, bias, false}, static_cast<char*>(scratch));
    if (panels_.in_bf16) return multiply_in_bf16(weight, rows, x, bias, y, scratch);
  }
  if (bias != nullptr)
    for (int64_t r = 0; r < rows; ++r) std::memcpy(y + r * out, bias, static_cast<size_t>(out) * sizeof(T));
  auto* const panel = static_cast<float*>(scratch);
  const float* const factor = in_fp32(host_, x, rows * in, after_panel(panel));
  for (int64_t begin = 0; begin < out; begin += panels_.panel_rows) {
    const int64_t end = std::min(out, begin + panels_.panel_rows);
    read_panel<T>(host_, weight, begin, end, panel);
    chassis_gemm_problem_t p = forward_problem(CHASSIS_DTYPE_F32, dtype_, rows, end - begin, in);
    p.a = factor, p.b = panel;
    p.c = y + begin, p.ldc = out;
    p.beta = bias != nullptr ? 1.0f : 0.0f;
    gemm(host_, p);
  }
}

// The sums of a panel are rounded once, with the bias.
void Multiplier::multiply_in_bf16(const Weight& weight, int64_t rows, const uint16_t* x, const uint16_t* bias,
                                  uint16_t* y, void* scratch) const {
  const int64_t out = panels_.rows;
  auto* const panel = static_cast<uint16_t*>(scratch);
  float* const sums = after_panel(scratch);
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
void Multiplier::multiply_back(const Weight& weight, int64_t rows, const T* dy, T* dx, bool adds, void* scratch) const {
  const int64_t in = panels_.columns, out = panels_.rows;
  if constexpr (sizeof(T) == 4) {
    add_panels<T>(weight, rows, dy, static_cast<float*>(scratch), dx, adds);
  } else if (tiles() != nullptr) {
    multiply_tiled(host_, weight, {true, rows, dy, dx, nullptr, adds}, static_cast<char*>(scratch));
  } else if (float* const room = after_panel(scratch); panels_.in_bf16) {
    add_panels<T>(weight, rows, dy, static_cast<T*>(scratch), room, false);
    store_sums(room, rows * in, dx, adds);
  } else {
    const float* const wide = in_fp32(host_, dy, rows * out, room);
    float* const sums = room + rows * out;
    add_panels<T>(weight, rows, wide, static_cast<float*>(scratch), sums, false);
    store_sums(sums, rows * in, dx, adds);
  }
}

// Values of the weight are rounded to the type T.
template <typename T, typename Factor>
void Multiplier::add_panels(const Weight& weight, int64_t rows, const Factor* dy, Factor* panel, float* dx,
                            bool adds) const {
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
void Multiplier::multiply_rows(const Weight& weight, int64_t rows, const T* x, const T* bias, T* y,
                               float* split) const {
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

void Multiplier::store_sums(const float* sums, int64_t count, uint16_t* out, bool adds) const {
  parallel_for(host_, count, 1 << 15, [&](int64_t begin, int64_t end) {
    loops().round_bf16(sums + begin, adds ? out + begin : nullptr, end - begin, out + begin);
  });
}

}  // namespace bnb4
