// The base of optimizers: the states of each parameter, and a step over many tensors at once.
#pragma once

#include <algorithm>
#include <exception>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "chassis/kind/model.h"
#include "chassis/kind/optimizer.h"
#include "chassis/member.hpp"
#include "chassis/sized.hpp"
#include "chassis/task.hpp"
#include "chassis/tensor.hpp"

CHASSIS_SDK_BEGIN

// An fp32 state of the parameter's shape that may be cut anywhere; its role names it on disk.
constexpr chassis_state_desc_t element_state(std::string_view role) {
  return {sizeof(chassis_state_desc_t),
          CHASSIS_DTYPE_F32,
          str(role),
          CHASSIS_STATE_LIKE_PARAMETER,
          CHASSIS_GRANULARITY_ELEMENT,
          1,
          0.0};
}

// As element_state, but cut only between blocks of `block` elements; any dtype, such as that of 8-bit codes.
constexpr chassis_state_desc_t block_state(std::string_view role, int64_t block, uint32_t dtype = CHASSIS_DTYPE_F32,
                                           double initial = 0.0) {
  return {sizeof(chassis_state_desc_t), dtype, str(role), CHASSIS_STATE_LIKE_PARAMETER,
          CHASSIS_GRANULARITY_BLOCK,    block, initial};
}
// One fp32 value for each block, such as its largest magnitude.
constexpr chassis_state_desc_t per_block_state(std::string_view role, int64_t block) {
  return {sizeof(chassis_state_desc_t),
          CHASSIS_DTYPE_F32,
          str(role),
          CHASSIS_STATE_PER_BLOCK,
          CHASSIS_GRANULARITY_BLOCK,
          block,
          0.0};
}
// An fp32 state of the parameter's shape, never cut: the step sees whole matrices.
constexpr chassis_state_desc_t matrix_state(std::string_view role) {
  return {sizeof(chassis_state_desc_t),
          CHASSIS_DTYPE_F32,
          str(role),
          CHASSIS_STATE_LIKE_PARAMETER,
          CHASSIS_GRANULARITY_MATRIX,
          1,
          0.0};
}

// A parameter that is trained. Valid during the call that passes it.
class OptimizerParameter {
 public:
  explicit OptimizerParameter(const chassis_optimizer_parameter_t* raw) : raw_(read_sized(raw)) {}

  const chassis_optimizer_parameter_t& raw() const noexcept { return raw_; }
  std::string_view name() const noexcept { return text_of(raw_.name); }
  uint32_t role() const noexcept { return raw_.role; }  // CHASSIS_ROLE_…
  // The shape of the whole parameter, the same on all ranks.
  std::span<const int64_t> global_shape() const noexcept { return {raw_.global_shape, raw_.num_dims}; }
  int64_t num_elements() const noexcept {
    int64_t count = 1;
    for (const int64_t size : global_shape()) count *= size;
    return count;
  }
  // A weight of two dims that is neither an embedding nor the projection to the vocabulary.
  bool is_hidden_matrix() const noexcept {
    return raw_.num_dims == 2 && raw_.role != CHASSIS_ROLE_EMBEDDING && raw_.role != CHASSIS_ROLE_HEAD;
  }
  // The number of hidden matrices that follow one another in the parameter: 1 for a hidden matrix, that of the experts
  // for weights [experts, rows, columns], 0 for all others. The last two dims are those of each matrix.
  int64_t num_hidden_matrices() const noexcept {
    const bool is_hidden = raw_.role != CHASSIS_ROLE_EMBEDDING && raw_.role != CHASSIS_ROLE_HEAD;
    return !is_hidden ? 0 : raw_.num_dims == 2 ? 1 : raw_.num_dims == 3 ? raw_.global_shape[0] : 0;
  }
  // The boxes that this rank steps; none in states(). Box i begins at box_begin(i) and ends before box_end(i).
  uint32_t num_boxes() const noexcept { return raw_.num_boxes; }
  std::span<const int64_t> box_begin(uint32_t i) const noexcept {
    return {raw_.boxes + 2 * i * raw_.num_dims, raw_.num_dims};
  }
  std::span<const int64_t> box_end(uint32_t i) const noexcept {
    return {raw_.boxes + (2 * i + 1) * raw_.num_dims, raw_.num_dims};
  }
  int64_t num_local_elements() const noexcept {
    int64_t count = 0;
    for (uint32_t i = 0; i < num_boxes(); ++i) {
      int64_t box = 1;
      for (uint32_t d = 0; d < raw_.num_dims; ++d) box *= box_end(i)[d] - box_begin(i)[d];
      count += box;
    }
    return count;
  }

 private:
  chassis_optimizer_parameter_t raw_;
};

class OptimizerStep {
 public:
  OptimizerStep(const Host& host, const chassis_optimizer_step_t* raw) : host_(host), raw_(read_sized(raw)) {
    for (uint32_t i = 0, first = 0; i < num_tensors(); first += raw_.num_states[i++]) first_states_.push_back(first);
    grad_scale_ = raw_.grad_scale;
    if (const BorrowedTensor scale = device_grad_scale(); scale && scale.is_cpu()) grad_scale_ *= *scale.data<float>();
  }

  const chassis_optimizer_step_t& raw() const noexcept { return raw_; }
  uint32_t num_tensors() const noexcept { return raw_.num_tensors; }
  // 1 for the first.
  int64_t step() const noexcept { return raw_.step; }
  // Multiply gradients by this first.
  double grad_scale() const noexcept { return grad_scale_; }
  // A further factor, one fp32 value, if it is not on the CPU; else it is part of grad_scale(). May be absent.
  BorrowedTensor device_grad_scale() const { return {host_, raw_.device_grad_scale}; }
  // The CUDA stream to queue on; NULL on the CPU.
  void* stream() const noexcept { return raw_.stream; }
  // The scratch memory that workspace_bytes() asked for.
  void* workspace() const noexcept { return raw_.workspace; }
  uint64_t workspace_bytes() const noexcept { return raw_.workspace_bytes; }
  double lr(uint32_t i) const noexcept { return raw_.lr * (raw_.lr_scale ? raw_.lr_scale[i] : 1.0); }
  double weight_decay(uint32_t i) const noexcept { return raw_.weight_decay[i]; }
  BorrowedTensor param(uint32_t i) const { return {host_, raw_.params[i]}; }
  BorrowedTensor grad(uint32_t i) const { return {host_, raw_.grads[i]}; }
  uint32_t num_states(uint32_t i) const noexcept { return raw_.num_states[i]; }
  BorrowedTensor state(uint32_t i, size_t j) const {
    if (j >= num_states(i)) throw Failure(CHASSIS_INTERNAL, "state ", j, " of a tensor with ", num_states(i));
    return {host_, raw_.states[first_states_[i] + j]};
  }
  OptimizerParameter parameter(uint32_t i) const { return OptimizerParameter(raw_.parameters[i]); }

  // [all-ranks] Sums over all parameters of all ranks, each element counted once: `values` has num_sums values for each
  // tensor, computed from the elements of that tensor. Needs kSums; see chassis_optimizer_step_t.
  std::vector<double> sum_over_parameters(std::span<const double> values, uint32_t num_sums) const {
    if (raw_.sum_over_parameters == nullptr)
      throw Failure(CHASSIS_FAILED_PRECONDITION, "sum_over_parameters needs kSums = true in the optimizer");
    if (values.size() != size_t{num_tensors()} * num_sums)
      throw Failure(CHASSIS_INVALID_ARGUMENT, "sum_over_parameters got ", values.size(), " values for ", num_tensors(),
                    " tensors of ", num_sums);
    std::vector<double> sums(num_sums);
    host_.check(raw_.sum_over_parameters(&raw_, values.data(), num_sums, sums.data()));
    return sums;
  }

  // Calls body(i, begin, end) over element ranges that cover all tensors, on the host's threads. Ranges begin at
  // multiples of `unit` elements of their tensor.
  template <typename Body>
  void for_each_range(Body&& body, int64_t unit = 1) const {
    constexpr int64_t kGrain = 16384;
    std::vector<int64_t> counts, ends;  // of elements; of units of all tensors so far
    int64_t total = 0;
    for (uint32_t i = 0; i < num_tensors(); ++i) {
      counts.push_back(param(i).num_elements());
      ends.push_back(total += (counts.back() + unit - 1) / unit);
    }
    parallel_for(host_, total, std::max<int64_t>(1, kGrain / unit), [&](int64_t begin, int64_t end) {
      auto i = static_cast<uint32_t>(std::upper_bound(ends.begin(), ends.end(), begin) - ends.begin());
      for (; begin < end; begin = ends[i], ++i) {
        const int64_t start = i == 0 ? 0 : ends[i - 1];
        if (begin < ends[i])
          body(i, (begin - start) * unit, std::min((std::min(end, ends[i]) - start) * unit, counts[i]));
      }
    });
  }

 private:
  const Host& host_;
  const chassis_optimizer_step_t raw_;
  std::vector<uint32_t> first_states_;  // of each tensor
  double grad_scale_ = 1.0;
};

class Optimizer : public Member {
 public:
  static constexpr std::string_view kKind = "optimizer";
  static constexpr bool kSums = false;  // a member that calls sum_over_parameters defines it as true
  using Member::Member;

  // [control] The states of a parameter, valid as long as the instance. They may depend on role, name and global shape.
  virtual std::span<const chassis_state_desc_t> states(const OptimizerParameter& parameter) const = 0;
  // [step] Same inputs give the same bits with any number of threads.
  virtual void step(const OptimizerStep& step) = 0;
  // [control] Bytes of scratch for a step over these parameters.
  virtual uint64_t workspace_bytes(std::span<const OptimizerParameter> /*parameters*/) const { return 0; }
  // [control] Throws Failure(CHASSIS_UNIMPLEMENTED, …) if step() cannot update tensors of a device.
  virtual void supports(uint32_t /*device_type*/, int32_t /*device_index*/) const {}

  template <typename T>
  static const void* interface(std::string_view id) noexcept {
    static constexpr chassis_optimizer_t kTable = {sizeof(chassis_optimizer_t),
                                                   0,
                                                   &states_entry,
                                                   &step_entry,
                                                   &workspace_bytes_entry,
                                                   T::kSums ? CHASSIS_OPTIMIZER_SUMS : 0u,
                                                   0,
                                                   &supports_entry};
    return id == CHASSIS_OPTIMIZER_ID ? &kTable : nullptr;
  }

 private:
  static chassis_status_t* states_entry(chassis_instance* self, const chassis_optimizer_parameter_t* parameter,
                                        const chassis_state_desc_t** states, uint32_t* num_states) noexcept {
    Optimizer& optimizer = member_of<Optimizer>(self);
    return guard(optimizer.host().table(), [&] {
      const std::span<const chassis_state_desc_t> found = optimizer.states(OptimizerParameter(parameter));
      *states = found.data();
      *num_states = static_cast<uint32_t>(found.size());
    });
  }
  static uint64_t workspace_bytes_entry(chassis_instance* self, const chassis_optimizer_parameter_t* const* parameters,
                                        uint32_t num_parameters) noexcept {
    Optimizer& optimizer = member_of<Optimizer>(self);
    try {
      std::vector<OptimizerParameter> list;
      for (uint32_t i = 0; i < num_parameters; ++i) list.emplace_back(parameters[i]);
      return optimizer.workspace_bytes(list);
    } catch (...) {  // this call cannot return a status; the next step returns it
      optimizer.workspace_error_ = std::current_exception();
      return 0;
    }
  }
  static chassis_status_t* step_entry(chassis_instance* self, const chassis_optimizer_step_t* raw) noexcept {
    Optimizer& optimizer = member_of<Optimizer>(self);
    return guard(optimizer.host().table(), [&] {
      if (optimizer.workspace_error_) std::rethrow_exception(std::exchange(optimizer.workspace_error_, nullptr));
      optimizer.step(OptimizerStep(optimizer.host(), raw));
    });
  }

  static chassis_status_t* supports_entry(chassis_instance* self, uint32_t device_type, int32_t device_index) noexcept {
    const Optimizer& optimizer = member_of<Optimizer>(self);
    return guard(optimizer.host().table(), [&] { optimizer.supports(device_type, device_index); });
  }

  std::exception_ptr workspace_error_;
};

CHASSIS_SDK_END
