// Checks of a problem, and its product by LibTorch, by the MKL in it, by product.cpp or by few_rows.cpp.
#include "host/service/gemm.hpp"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <string_view>

#include "host/service/device.hpp"
#include "host/service/few_rows.hpp"
#include "host/service/handle.hpp"
#include "host/state/dtype.hpp"

namespace chassis {
namespace {

using Problem = chassis_gemm_problem_t;

// MKL's declaration. LibTorch links MKL statically, exports part of it and does not ship its header.
using Bf16Product = void (*)(int layout, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                             const void* a, int lda, const void* b, int ldb, float beta, float* c, int ldc);
constexpr int kRowMajor = 101, kPlain = 111, kTransposed = 112;

Bf16Product bf16_product() {
  static const auto found = reinterpret_cast<Bf16Product>(::dlsym(RTLD_DEFAULT, "cblas_gemm_bf16bf16f32"));
  return found;
}

// One of a, b and c as it is stored, before any transposition.
struct StoredMatrix {
  std::string_view name;
  uint32_t dtype;
  int64_t rows, columns, ld;
  const void* data;
  bool transposed = false;

  // The bytes from the first row to the end of the last one; none if their number overflows.
  std::optional<int64_t> bytes() const {
    if (rows == 0 || columns == 0) return 0;
    int64_t span = 0;
    if (__builtin_mul_overflow(rows - 1, ld, &span) || __builtin_add_overflow(span, columns, &span) ||
        __builtin_mul_overflow(span, size_bytes(static_cast<Dtype>(dtype)), &span))
      return std::nullopt;
    return span;
  }
};

StoredMatrix stored_a(const Problem& p) {
  const bool transposed = (p.flags & CHASSIS_GEMM_TRANSPOSE_A) != 0;
  return {"a", p.a_dtype, transposed ? p.k : p.m, transposed ? p.m : p.k, p.lda, p.a, transposed};
}
StoredMatrix stored_b(const Problem& p) {
  const bool transposed = (p.flags & CHASSIS_GEMM_TRANSPOSE_B) != 0;
  return {"b", p.b_dtype, transposed ? p.n : p.k, transposed ? p.k : p.n, p.ldb, p.b, transposed};
}
StoredMatrix stored_c(const Problem& p) { return {"c", p.c_dtype, p.m, p.n, p.ldc, p.c}; }

bool overlap(const StoredMatrix& x, const StoredMatrix& y) {
  const auto *from = static_cast<const char*>(x.data), *other = static_cast<const char*>(y.data);
  return from < other + *y.bytes() && other < from + *x.bytes();
}

// The problem for some rows of c.
Problem rows_of(const Problem& p, int64_t begin, int64_t count) {
  const auto behind = [](const void* data, uint32_t dtype, int64_t elements) {
    const int64_t bytes = dtype == CHASSIS_DTYPE_F32 ? sizeof(float) : sizeof(uint16_t);
    return data ? static_cast<const char*>(data) + elements * bytes : nullptr;
  };
  Problem part = p;
  part.m = count;
  part.a = behind(p.a, p.a_dtype, p.flags & CHASSIS_GEMM_TRANSPOSE_A ? begin : begin * p.lda);
  part.c = const_cast<void*>(static_cast<const void*>(behind(p.c, p.c_dtype, begin * p.ldc)));
  return part;
}

bool is_bf16_product(const Problem& p) {
  return p.a_dtype == CHASSIS_DTYPE_BF16 && p.b_dtype == CHASSIS_DTYPE_BF16 && p.c_dtype == CHASSIS_DTYPE_F32;
}

bool fits_int(const Problem& p) {
  const int64_t largest = std::max({p.m, p.n, p.k, p.lda, p.ldb, p.ldc});
  return largest <= std::numeric_limits<int>::max();
}

// A view of the matrix after its transposition.
at::Tensor matrix(const StoredMatrix& x) {
  const auto options = at::TensorOptions().dtype(scalar_type(static_cast<Dtype>(x.dtype)));
  at::Tensor stored = at::from_blob(const_cast<void*>(x.data), {x.rows, x.columns}, {x.ld, 1}, options);
  return x.transposed ? stored.t() : stored;
}

void run_native(const Problem& p) {
  const auto order = [&](uint32_t flag) { return p.flags & flag ? kTransposed : kPlain; };
  const auto narrow = [](int64_t size) { return static_cast<int>(size); };
  bf16_product()(kRowMajor, order(CHASSIS_GEMM_TRANSPOSE_A), order(CHASSIS_GEMM_TRANSPOSE_B), narrow(p.m), narrow(p.n),
                 narrow(p.k), p.alpha, p.a, narrow(p.lda), p.b, narrow(p.ldb), p.beta, static_cast<float*>(p.c),
                 narrow(p.ldc));
}

bool is_fp32_product(const Problem& p) {
  return p.a_dtype == CHASSIS_DTYPE_F32 && p.b_dtype == CHASSIS_DTYPE_F32 && p.c_dtype == CHASSIS_DTYPE_F32;
}

// Computes c, which is fp32, from fp32 copies.
void run_fp32(const Problem& p, at::Tensor c) {
  const at::Tensor a = matrix(stored_a(p)).to(at::kFloat), b = matrix(stored_b(p)).to(at::kFloat);
  if (p.alpha == 1 && p.beta == 0)
    at::mm_out(c, a, b);
  else
    at::addmm_out(c, c, a, b, p.beta, p.alpha);
}

// Requires k > 0 and an fp32 c.
void multiply_into_fp32(const Problem& p, Bf16Method method) {
  if (is_bf16_product(p) && method == Bf16Method::kTiles) return multiply(product_of<uint16_t>(p));
  if (is_bf16_product(p) && method == Bf16Method::kNative) return run_native(p);
  if (is_fp32_product(p))
    if (const auto product = product_of<float>(p); multiplies_faster(product)) return multiply(product);
  run_fp32(p, matrix(stored_c(p)));
}

}  // namespace

GemmRefusal refusal_of(const Problem& p) {
  const auto invalid = [](const std::string& reason) { return GemmRefusal{CHASSIS_INVALID_ARGUMENT, reason}; };
  constexpr uint32_t kFlags = CHASSIS_GEMM_TRANSPOSE_A | CHASSIS_GEMM_TRANSPOSE_B;
  if ((p.flags & ~kFlags) != 0)
    return invalid("flags " + std::to_string(p.flags) + " are not known; this host knows " + std::to_string(kFlags));
  if (p.device_type != CHASSIS_DEVICE_CPU)
    return {CHASSIS_UNIMPLEMENTED, "matrices lie on " + Device{static_cast<Device::Type>(p.device_type), 0}.text() +
                                       ", expected the CPU; chassis.dispatch/1 has aten::addmm for devices"};
  for (const auto& [name, size] : {std::pair{"m", p.m}, {"n", p.n}, {"k", p.k}})
    if (size < 0) return invalid(std::string(name) + " = " + std::to_string(size) + " is below 0");
  const StoredMatrix a = stored_a(p), b = stored_b(p), c = stored_c(p);
  for (const StoredMatrix* x : {&a, &b, &c}) {
    const std::string name(x->name);
    if (x->dtype != CHASSIS_DTYPE_F32 && x->dtype != CHASSIS_DTYPE_BF16)
      return {CHASSIS_UNIMPLEMENTED, name + " is of dtype " + std::to_string(x->dtype) + ", expected F32 (" +
                                         std::to_string(CHASSIS_DTYPE_F32) + ") or BF16 (" +
                                         std::to_string(CHASSIS_DTYPE_BF16) + ")"};
    if (x->ld < std::max<int64_t>(1, x->columns))
      return invalid("ld" + name + " = " + std::to_string(x->ld) + " is less than the " + std::to_string(x->columns) +
                     " elements of a row of " + name);
    if (!x->bytes())
      return invalid(name + " of " + std::to_string(x->rows) + " rows, " + std::to_string(x->ld) +
                     " elements apart, has more bytes than fit in 64 bits");
  }
  if (p.m == 0 || p.n == 0) return {};
  for (const StoredMatrix* x : {&a, &b, &c})
    if (!x->data && (p.k > 0 || x == &c)) return invalid(std::string(x->name) + " is NULL");
  if (p.k == 0) return {};
  for (const StoredMatrix* x : {&a, &b})
    if (overlap(*x, c)) return invalid("c overlaps " + std::string(x->name));
  return {};
}

template <typename T>
Product<T> product_of(const Problem& p) {
  const auto factor = [&](const void* data, int64_t ld, uint32_t transposed) {
    const auto* values = static_cast<const T*>(data);
    return p.flags & transposed ? Factor<T>{values, 1, ld} : Factor<T>{values, ld, 1};
  };
  return {p.m,
          p.n,
          p.k,
          factor(p.a, p.lda, CHASSIS_GEMM_TRANSPOSE_A),
          factor(p.b, p.ldb, CHASSIS_GEMM_TRANSPOSE_B),
          static_cast<float*>(p.c),
          p.ldc,
          p.alpha,
          p.beta};
}
template Product<float> product_of(const Problem& p);
template Product<uint16_t> product_of(const Problem& p);

bool has_native_bf16() { return bf16_product() != nullptr; }

// Rationale: with AMX the native product is 7 to 9 times as fast as one of fp32 copies for 1024 × 384, 384 × 1024 and
// 8192 × 384 (k = 2048), 4 times for 16 × 768 and 768 × 16 (k = 1024), and a third as fast for 384 × 384.
Bf16Method bf16_method(const Problem& p) {
  if (is_bf16_product(p) && multiplies_faster(product_of<uint16_t>(p))) return Bf16Method::kTiles;
  constexpr int64_t kLong = 1024, kNarrow = 64;
  static const bool is_fast = has_native_bf16() && has_fast_bf16(Device{});
  const bool is_suited = std::max(p.m, p.n) >= kLong || std::min(p.m, p.n) <= kNarrow;
  return is_fast && is_suited && fits_int(p) ? Bf16Method::kNative : Bf16Method::kWidened;
}

void gemm(const Problem& p, Bf16Method method) {
  if (p.m == 0 || p.n == 0) return;
  translate_errors([&] {
    if (has_few_rows(p)) return multiply_few_rows(p);
    if (p.k > 0 && p.c_dtype == CHASSIS_DTYPE_F32) return multiply_into_fp32(p, method);
    at::Tensor c = matrix(stored_c(p));
    if (p.k == 0) {
      if (p.beta == 0)
        c.zero_();
      else
        c.mul_(p.beta);
    } else {
      const at::Tensor wide = p.beta == 0 ? at::empty({p.m, p.n}, at::kFloat) : c.to(at::kFloat).contiguous();
      Problem sums = p;
      sums.c = wide.data_ptr(), sums.ldc = p.n, sums.c_dtype = CHASSIS_DTYPE_F32;
      multiply_into_fp32(sums, bf16_method(sums));
      c.copy_(wide);
    }
  });
}

std::vector<std::vector<Problem>> divide(std::span<const Problem> problems, int num_threads) {
  constexpr int64_t kLeastRows = 64, kShares = 4;  // of a thread, so that threads end at about the same time
  const auto operations = [](const Problem& p) {
    return static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(std::max<int64_t>(1, p.k));
  };
  double sum = 0;
  for (const Problem& p : problems) sum += operations(p);
  const double share = sum / static_cast<double>(kShares * num_threads);
  std::vector<Problem> parts;
  for (const Problem& p : problems) {
    if (p.m <= 0 || p.n <= 0) continue;
    const int64_t most = (p.m + kLeastRows - 1) / kLeastRows,
                  count = std::clamp<int64_t>(std::llround(operations(p) / share), 1, most),
                  rows = (p.m + count - 1) / count;
    for (int64_t begin = 0; begin < p.m; begin += rows) parts.push_back(rows_of(p, begin, std::min(rows, p.m - begin)));
  }
  if (num_threads < 2 || parts.size() < static_cast<size_t>(num_threads)) return {};
  std::ranges::stable_sort(parts, std::greater{}, operations);
  std::vector<std::vector<Problem>> lists(static_cast<size_t>(num_threads));
  std::vector<double> loads(lists.size());
  for (const Problem& p : parts) {
    const auto least = static_cast<size_t>(std::ranges::min_element(loads) - loads.begin());
    lists[least].push_back(p);
    loads[least] += operations(p);
  }
  return lists;
}

uint64_t gemm_scratch_bytes(const Problem& p, Bf16Method method) {
  if (p.m == 0 || p.n == 0 || p.k == 0 || has_few_rows(p) || (method != Bf16Method::kWidened && is_bf16_product(p)))
    return 0;
  uint64_t elements = 0;
  for (const StoredMatrix& x : {stored_a(p), stored_b(p), stored_c(p)})
    if (x.dtype == CHASSIS_DTYPE_BF16) elements += static_cast<uint64_t>(x.rows) * static_cast<uint64_t>(x.columns);
  return elements * sizeof(float);
}

}  // namespace chassis
