// ATen operators by name, called like functions: Operator mm(host, "aten::mm"); Tensor c = mm(a, b);
// The manifest lists every operator in a line op=<schema>.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "chassis/tensor.hpp"

CHASSIS_SDK_BEGIN

// Marks a dtype argument: to(x, DtypeArg{CHASSIS_DTYPE_F32}).
struct DtypeArg {
  uint32_t dtype;
};

// One argument, and memory that must live as long as the call.
class Boxed {
 public:
  Boxed(std::nullopt_t) {}
  Boxed(chassis_tensor_t tensor) { set(tensor); }
  Boxed(const BorrowedTensor& tensor) { set(tensor.handle()); }
  Boxed(bool value) : boxed_{CHASSIS_BOXED_BOOL, 0, {.i = value}} {}
  Boxed(int value) : boxed_{CHASSIS_BOXED_INT, 0, {.i = value}} {}
  Boxed(int64_t value) : boxed_{CHASSIS_BOXED_INT, 0, {.i = value}} {}
  Boxed(double value) : boxed_{CHASSIS_BOXED_FLOAT, 0, {.f = value}} {}
  Boxed(float value) : Boxed(static_cast<double>(value)) {}
  Boxed(DtypeArg value) : boxed_{CHASSIS_BOXED_DTYPE, 0, {.i = value.dtype}} {}
  Boxed(const char* value) : Boxed(std::string_view(value)) {}
  Boxed(std::string_view value) { set(CHASSIS_BOXED_STRING, value.data(), value.size()); }
  Boxed(std::span<const int64_t> values) { set(CHASSIS_BOXED_INT_LIST, values.data(), values.size()); }
  Boxed(const std::vector<int64_t>& values) : Boxed(std::span<const int64_t>(values)) {}
  template <size_t N>
  Boxed(const std::array<int64_t, N>& values) : Boxed(std::span<const int64_t>(values)) {}
  Boxed(std::span<const double> values) { set(CHASSIS_BOXED_FLOAT_LIST, values.data(), values.size()); }
  Boxed(const std::vector<double>& values) : Boxed(std::span<const double>(values)) {}
  template <size_t N>
  Boxed(const std::array<bool, N>& values) {
    set(CHASSIS_BOXED_BOOL_LIST, values.data(), N);
  }
  Boxed(std::span<const chassis_tensor_t> tensors) { set(CHASSIS_BOXED_TENSOR_LIST, tensors.data(), tensors.size()); }
  Boxed(const std::vector<chassis_tensor_t>& tensors) : Boxed(std::span<const chassis_tensor_t>(tensors)) {}
  template <typename T>
  requires std::is_base_of_v<BorrowedTensor, T> Boxed(const std::vector<T>& tensors) {
    for (const T& tensor : tensors) handles_.push_back(tensor.handle());
    set(CHASSIS_BOXED_TENSOR_LIST, handles_.data(), handles_.size());
  }
  template <typename T>
  Boxed(const std::optional<T>& value) {
    if (!value) return;
    Boxed inner(*value);
    boxed_ = inner.boxed_;
    handles_ = std::move(inner.handles_);
  }
  Boxed(const void*) = delete;  // a pointer must not convert to bool
  Boxed(const Boxed&) = delete;
  Boxed& operator=(const Boxed&) = delete;

  const chassis_boxed_t& raw() const noexcept { return boxed_; }

 private:
  void set(chassis_tensor_t tensor) {
    if (tensor != nullptr) boxed_ = {CHASSIS_BOXED_TENSOR, 0, {.tensor = tensor}};
  }
  void set(uint32_t tag, const void* ptr, size_t len) { boxed_ = {tag, 0, {.list = {ptr, len}}}; }

  chassis_boxed_t boxed_{};
  std::vector<chassis_tensor_t> handles_;
};

// One result: a tensor, or a number.
struct Result {
  Tensor tensor;
  uint32_t tag = CHASSIS_BOXED_NONE;
  int64_t i = 0;
  double f = 0;
};

// Looked up once, called often. Arguments may be tensors (absent ones are None, or undefined where the operator needs a
// tensor), numbers, bools, strings, std::nullopt, DtypeArg, and lists; trailing ones with defaults may be left out.
class Operator {
 public:
  Operator() = default;
  // [control] Throws NOT_FOUND or FAILED_PRECONDITION with both schemas.
  Operator(const Host& host, std::string_view name) : host_(&host), dispatch_(&host.service<chassis_dispatch_t>()) {
    host.check(dispatch_->find(dispatch_, str(name), &op_));
  }

  explicit operator bool() const noexcept { return op_ != nullptr; }

  // [step] For operators whose result is one tensor; also for in-place and out variants, whose result can be ignored.
  template <typename... Args>
  Tensor operator()(const Args&... args) const {
    return std::move(tensors<1>(args...)[0]);
  }

  // [step] For operators without a result.
  template <typename... Args>
  void run(const Args&... args) const {
    call(nullptr, 0, args...);
  }

  // [step] auto [output, mean, rstd] = native_layer_norm.tensors<3>(…); undefined ones are absent.
  template <size_t N, typename... Args>
  std::array<Tensor, N> tensors(const Args&... args) const {
    std::array<Result, N> mixed = results<N>(args...);
    std::array<Tensor, N> out;
    for (size_t i = 0; i < N; ++i) out[i] = std::move(mixed[i].tensor);
    return out;
  }

  // [step] For results that are not all tensors.
  template <size_t N, typename... Args>
  std::array<Result, N> results(const Args&... args) const {
    chassis_boxed_t raw[N] = {};
    call(raw, N, args...);
    std::array<Result, N> out;
    for (size_t i = 0; i < N; ++i) {
      out[i].tag = raw[i].tag;
      switch (raw[i].tag) {
        case CHASSIS_BOXED_TENSOR:
          out[i].tensor = Tensor(*host_, raw[i].value.tensor);
          break;
        case CHASSIS_BOXED_FLOAT:
          out[i].f = raw[i].value.f;
          break;
        case CHASSIS_BOXED_INT:
        case CHASSIS_BOXED_BOOL:
          out[i].i = raw[i].value.i;
          break;
        case CHASSIS_BOXED_TENSOR_LIST: {
          const auto& service = host_->service<chassis_tensor_service_t>();
          auto handles = static_cast<const chassis_tensor_t*>(raw[i].value.list.ptr);
          for (uint64_t j = 0; j < raw[i].value.list.len; ++j) service.release(&service, handles[j]);
          [[fallthrough]];
        }
        default:
          if (raw[i].tag != CHASSIS_BOXED_NONE) dispatch_->free_list(dispatch_, &raw[i]);
      }
    }
    return out;
  }

  // [step] For operators whose only result is a list of tensors.
  template <typename... Args>
  std::vector<Tensor> tensor_list(const Args&... args) const {
    chassis_boxed_t raw{};
    call(&raw, 1, args...);
    std::vector<Tensor> out;
    if (raw.tag != CHASSIS_BOXED_TENSOR_LIST)
      throw Failure(CHASSIS_INTERNAL, "the operator's result is not a list of tensors");
    auto handles = static_cast<const chassis_tensor_t*>(raw.value.list.ptr);
    for (uint64_t j = 0; j < raw.value.list.len; ++j) out.emplace_back(*host_, handles[j]);
    dispatch_->free_list(dispatch_, &raw);
    return out;
  }

 private:
  template <typename... Args>
  void call(chassis_boxed_t* results, uint32_t num_results, const Args&... args) const {
    constexpr size_t kCount = sizeof...(Args);
    if (op_ == nullptr)
      throw Failure(CHASSIS_FAILED_PRECONDITION, "the plugin called an operator that it did not look up");
    const std::array<Boxed, kCount> boxes{Boxed(args)...};
    std::array<chassis_boxed_t, kCount> raw;
    for (size_t i = 0; i < kCount; ++i) raw[i] = boxes[i].raw();
    host_->check(dispatch_->call(dispatch_, op_, raw.data(), kCount, results, num_results));
  }

  const Host* host_ = nullptr;
  const chassis_dispatch_t* dispatch_ = nullptr;
  const chassis_operator_t* op_ = nullptr;
};

CHASSIS_SDK_END
