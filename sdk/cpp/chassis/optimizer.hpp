// The base of optimizers: a state schema, and a step over many tensors at once.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "chassis/kind/optimizer.h"
#include "chassis/member.hpp"
#include "chassis/sized.hpp"
#include "chassis/task.hpp"
#include "chassis/tensor.hpp"

CHASSIS_SDK_BEGIN

// An fp32 state of the parameter's shape that may be cut anywhere; its role names it on disk.
constexpr chassis_state_desc_t element_state(std::string_view role) {
  return {sizeof(chassis_state_desc_t), CHASSIS_DTYPE_F32,           str(role),
          CHASSIS_STATE_LIKE_PARAMETER, CHASSIS_GRANULARITY_ELEMENT, 1};
}

// The same, cut only between blocks of `block` elements; of any dtype, such as 8-bit codes.
constexpr chassis_state_desc_t block_state(std::string_view role, int64_t block, uint32_t dtype = CHASSIS_DTYPE_F32) {
  return {sizeof(chassis_state_desc_t), dtype, str(role), CHASSIS_STATE_LIKE_PARAMETER,
          CHASSIS_GRANULARITY_BLOCK,    block};
}
// One fp32 value for each block, such as its largest magnitude.
constexpr chassis_state_desc_t per_block_state(std::string_view role, int64_t block) {
  return {sizeof(chassis_state_desc_t), CHASSIS_DTYPE_F32,         str(role),
          CHASSIS_STATE_PER_BLOCK,      CHASSIS_GRANULARITY_BLOCK, block};
}
// An fp32 state of the parameter's shape, never cut: the step sees whole matrices.
constexpr chassis_state_desc_t matrix_state(std::string_view role) {
  return {sizeof(chassis_state_desc_t), CHASSIS_DTYPE_F32,          str(role),
          CHASSIS_STATE_LIKE_PARAMETER, CHASSIS_GRANULARITY_MATRIX, 1};
}

class OptimizerStep {
 public:
  OptimizerStep(const Host& host, const chassis_optimizer_step_t* raw, size_t num_states)
      : host_(host), raw_(read_sized(raw)), num_states_(num_states) {}

  uint32_t num_tensors() const noexcept { return raw_.num_tensors; }
  // 1 for the first.
  int64_t step() const noexcept { return raw_.step; }
  double grad_scale() const noexcept { return raw_.grad_scale; }
  // The CUDA stream to queue on; NULL on the CPU.
  void* stream() const noexcept { return raw_.stream; }
  // The scratch memory that workspace_bytes() asked for.
  void* workspace() const noexcept { return raw_.workspace; }
  double lr(uint32_t i) const noexcept { return raw_.lr * (raw_.lr_scale ? raw_.lr_scale[i] : 1.0); }
  double weight_decay(uint32_t i) const noexcept { return raw_.weight_decay[i]; }
  BorrowedTensor param(uint32_t i) const { return {host_, raw_.params[i]}; }
  BorrowedTensor grad(uint32_t i) const { return {host_, raw_.grads[i]}; }
  BorrowedTensor state(uint32_t i, size_t j) const { return {host_, raw_.states[i * num_states_ + j]}; }

  // Calls body(i, begin, end) over element ranges that cover all tensors, on the host's threads.
  template <typename Body>
  void for_each_range(Body&& body) const {
    constexpr int64_t kGrain = 16384;
    std::vector<int64_t> ends;
    int64_t total = 0;
    for (uint32_t i = 0; i < num_tensors(); ++i) ends.push_back(total += param(i).num_elements());
    parallel_for(host_, total, kGrain, [&](int64_t begin, int64_t end) {
      auto i = static_cast<uint32_t>(std::upper_bound(ends.begin(), ends.end(), begin) - ends.begin());
      for (; begin < end; begin = ends[i], ++i) {
        const int64_t start = i == 0 ? 0 : ends[i - 1];
        if (begin < ends[i]) body(i, begin - start, std::min(end, ends[i]) - start);
      }
    });
  }

 private:
  const Host& host_;
  const chassis_optimizer_step_t raw_;
  size_t num_states_;
};

class Optimizer : public Member {
 public:
  static constexpr std::string_view kKind = "optimizer";
  using Member::Member;

  // [control] Each parameter has one of each, zero at the start. The same for the life of the instance.
  virtual std::span<const chassis_state_desc_t> states() const = 0;
  // [step] Same inputs give the same bits with any number of threads.
  virtual void step(const OptimizerStep& step) = 0;
  // [control] Bytes of scratch for a step over tensors of these numbers of elements.
  virtual uint64_t workspace_bytes(std::span<const int64_t> /*num_elements*/) const noexcept { return 0; }

  template <typename T>
  static const void* interface(std::string_view id) noexcept {
    static constexpr chassis_optimizer_t kTable = {
        sizeof(chassis_optimizer_t), 0, &num_states_entry, &state_entry, &step_entry, &workspace_bytes_entry};
    return id == CHASSIS_OPTIMIZER_ID ? &kTable : nullptr;
  }

 private:
  static uint32_t num_states_entry(chassis_instance* self) noexcept {
    return static_cast<uint32_t>(member_of<Optimizer>(self).states().size());
  }
  static const chassis_state_desc_t* state_entry(chassis_instance* self, uint32_t i) noexcept {
    return &member_of<Optimizer>(self).states()[i];
  }
  static uint64_t workspace_bytes_entry(chassis_instance* self, const int64_t* num_elements,
                                        uint32_t num_tensors) noexcept {
    return member_of<Optimizer>(self).workspace_bytes({num_elements, num_tensors});
  }
  static chassis_status_t* step_entry(chassis_instance* self, const chassis_optimizer_step_t* raw) noexcept {
    Optimizer& optimizer = member_of<Optimizer>(self);
    return guard(optimizer.host().table(),
                 [&] { optimizer.step(OptimizerStep(optimizer.host(), raw, optimizer.states().size())); });
  }
};

CHASSIS_SDK_END
