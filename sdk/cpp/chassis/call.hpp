// The arguments of one kernel call.
#pragma once

#include <vector>

#include "chassis/kind/ops.h"
#include "chassis/sized.hpp"
#include "chassis/tensor.hpp"

CHASSIS_SDK_BEGIN

// The number of operands in each array of a kernel's node.
struct CallCounts {
  uint32_t inputs = 0, params = 0, outputs = 0, saved = 0;
};

// On success the host takes the tensors that were put into the call; if the kernel throws, they are released.
class Call {
 public:
  Call(const Host& host, const chassis_call_t* raw, const CallCounts& counts)
      : host_(host), raw_(read_sized(raw)), counts_(counts) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() {
    for (chassis_tensor_t* slot : made_) Tensor(host_, std::exchange(*slot, nullptr));
  }

  const Host& host() const noexcept { return host_; }
  const chassis_call_t& raw() const noexcept { return raw_; }

  // True if a backward will read what save() stores.
  bool training() const noexcept { return (raw_.flags & CHASSIS_CALL_TRAINING) != 0; }
  int64_t query_offset() const noexcept { return raw_.query_offset; }
  // For attention with key_part.
  int64_t key_offset() const noexcept { return raw_.key_offset; }
  int64_t num_positions() const noexcept { return raw_.num_positions; }
  // The CUDA stream to queue on; NULL on the CPU.
  void* stream() const noexcept { return raw_.stream; }
  // The scratch memory that infer() asked for with CHASSIS_KERNEL_HOST_WORKSPACE.
  void* workspace() const noexcept { return raw_.workspace; }
  uint64_t workspace_bytes() const noexcept { return raw_.workspace_bytes; }

  // Absent if optional and left out; in a backward, also if infer() did not keep them.
  BorrowedTensor input(uint32_t i) const { return at(raw_.inputs, i, counts_.inputs); }
  BorrowedTensor param(uint32_t i) const { return at(raw_.params, i, counts_.params); }
  // Component k of quantized parameter i, which must have it.
  BorrowedTensor component(uint32_t i, uint32_t k) const {
    if (raw_.components == nullptr || i >= counts_.params || raw_.components[i] == nullptr)
      throw Failure(CHASSIS_INTERNAL, "parameter ", i, " of a call is not quantized");
    return BorrowedTensor(host_, raw_.components[i][k]);
  }
  BorrowedTensor output(uint32_t i) const { return at(raw_.outputs, i, counts_.outputs); }

  // Forward: the tensor that the host allocated, else a new one, which the host takes.
  BorrowedTensor make_output(uint32_t i, uint32_t dtype, std::span<const int64_t> sizes) {
    if (BorrowedTensor made = output(i)) return made;
    const BorrowedTensor like = input(0) ? input(0) : param(0);
    set_output(i, Tensor::create(host_, dtype, sizes, like ? like.device_type() : CHASSIS_DEVICE_CPU,
                                 like ? like.view().device_index : 0));
    return output(i);
  }
  // Forward, for outputs that the host did not allocate.
  void set_output(uint32_t i, Tensor tensor) { put(raw_.outputs, i, counts_.outputs, std::move(tensor)); }

  // Keeps a tensor from forward for backward; dropped unless training().
  void save(uint32_t i, Tensor tensor) {
    if (training()) put(raw_.saved, i, counts_.saved, std::move(tensor));
  }
  BorrowedTensor saved(uint32_t i) const { return at(raw_.saved, i, counts_.saved); }

  // Backward. An absent gradient is zero.
  BorrowedTensor grad_output(uint32_t i) const { return at(raw_.grad_outputs, i, counts_.outputs); }
  bool wants_grad_input(uint32_t i) const {
    return i < counts_.inputs && (raw_.needs_grad_inputs == nullptr || raw_.needs_grad_inputs[i] != 0);
  }
  // Present only if the kernel must add to it (ADDS_GRAD_INPUTS).
  BorrowedTensor grad_input(uint32_t i) const { return at(raw_.grad_inputs, i, counts_.inputs); }
  void set_grad_input(uint32_t i, Tensor tensor) { put(raw_.grad_inputs, i, counts_.inputs, std::move(tensor)); }

  // The fp32 buffer of a parameter's gradient; absent if it is not wanted. Beta 0: overwrite, 1: add.
  BorrowedTensor grad_param(uint32_t i) const { return at(raw_.grad_params, i, counts_.params); }
  float grad_param_beta(uint32_t i) const {
    return raw_.grad_params_beta != nullptr && i < counts_.params ? raw_.grad_params_beta[i] : 0.0f;
  }

  // For the SDK's entry functions: gives the host every tensor that was put into the call.
  void commit() noexcept { made_.clear(); }

 private:
  BorrowedTensor at(const chassis_tensor_t* array, uint32_t i, uint32_t count) const {
    return array == nullptr || i >= count ? BorrowedTensor() : BorrowedTensor(host_, array[i]);
  }
  void put(chassis_tensor_t* array, uint32_t i, uint32_t count, Tensor tensor) {
    if (array == nullptr || i >= count)
      throw Failure(CHASSIS_INTERNAL, "index ", i, " of a returned tensor, expected less than ", array ? count : 0);
    if (array[i] != nullptr) throw Failure(CHASSIS_INTERNAL, "index ", i, " already holds a tensor");
    made_.push_back(&array[i]);
    array[i] = tensor.release();
  }

  const Host& host_;
  const chassis_call_t raw_;
  const CallCounts counts_;
  std::vector<chassis_tensor_t*> made_;
};

CHASSIS_SDK_END
