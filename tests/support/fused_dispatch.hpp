// A fake chassis.dispatch/1 for the code path of optimizers on other devices: tensors claim to be on a GPU, and ATen's
// CPU kernels compute on their memory.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/from_blob.h>

#include <deque>

#include "chassis/service/dispatch.h"
#include "tests/support/optimizer_run.hpp"

namespace fake {

inline at::Tensor aten(chassis_tensor_t t) {
  return at::from_blob(OptimizerRun::data(t), tensor(t)->sizes, at::kFloat);
}

class FusedDispatch {
 public:
  explicit FusedDispatch(Host& host) : host_(host) {
    table_ = {sizeof table_,
              0,
              this,
              [](const chassis_dispatch_t* d, chassis_str_t name, const chassis_operator_t** out) {
                auto& names = static_cast<FusedDispatch*>(d->impl)->names_;
                *out = reinterpret_cast<const chassis_operator_t*>(&names.emplace_back(text_of(name)));
                return static_cast<chassis_status_t*>(nullptr);
              },
              [](const chassis_dispatch_t* d, const chassis_operator_t* op, const chassis_boxed_t* arguments, uint32_t,
                 chassis_boxed_t* results, uint32_t) {
                static_cast<FusedDispatch*>(d->impl)->call(*reinterpret_cast<const std::string*>(op), arguments,
                                                           results);
                return static_cast<chassis_status_t*>(nullptr);
              },
              [](const chassis_dispatch_t*, chassis_boxed_t*) {}};
    host_.more_services[CHASSIS_DISPATCH_ID] = &table_;
  }
  ~FusedDispatch() { host_.more_services.erase(CHASSIS_DISPATCH_ID); }

  int num_calls = 0;  // calls of fused kernels

 private:
  static std::vector<at::Tensor> list(const chassis_boxed_t& box) {
    std::vector<at::Tensor> out;
    const auto* handles = static_cast<const chassis_tensor_t*>(box.value.list.ptr);
    for (uint64_t i = 0; i < box.value.list.len; ++i) out.push_back(aten(handles[i]));
    return out;
  }
  static std::optional<at::Tensor> optional(const chassis_boxed_t& box) {
    if (box.tag == CHASSIS_BOXED_NONE) return std::nullopt;
    return aten(box.value.tensor);
  }

  void call(const std::string& op, const chassis_boxed_t* a, chassis_boxed_t* results) {
    if (op == "aten::fill_.Scalar") {
      *OptimizerRun::data(a[0].value.tensor) = static_cast<float>(a[1].value.f);
      ++tensor(a[0].value.tensor)->references;
      results[0] = a[0];
      return;
    }
    const std::vector<at::Tensor> first = list(a[0]);
    if (op == "aten::_foreach_mul_.Scalar") {
      at::_foreach_mul_(first, a[1].value.f);
      return;
    }
    ++num_calls;
    if (op == "aten::_fused_adamw_") {
      at::_fused_adamw_(first, list(a[1]), list(a[2]), list(a[3]), list(a[4]), list(a[5]), a[6].value.f, a[7].value.f,
                        a[8].value.f, a[9].value.f, a[10].value.f, a[11].value.i, a[12].value.i, optional(a[13]));
    } else {
      at::_fused_sgd_(first, list(a[1]), list(a[2]), a[3].value.f, a[4].value.f, a[5].value.f, a[6].value.f,
                      a[7].value.i, a[8].value.i, a[9].value.i);
    }
  }

  Host& host_;
  chassis_dispatch_t table_;
  std::deque<std::string> names_;
};

// Runs the same steps in the plugin and through ATen; returns the largest difference of a parameter.
inline float largest_difference(Host& host, const Plugin& plugin, const char* id,
                                const std::map<std::string, std::string>& options) {
  FusedDispatch dispatch(host);
  Instance instance(host, plugin, "optimizer", id, options);
  OptimizerRun here(host, instance), there(host, instance);
  for (auto* tensors : {&there.params, &there.grads, &there.states}) {
    for (chassis_tensor_t t : *tensors) tensor(t)->view.device_type = CHASSIS_DEVICE_CUDA;
  }
  for (int64_t step = 1; step <= 10; ++step) {
    for (OptimizerRun* run : {&here, &there}) {
      run->fill_grads(step);
      run->step(step, 1e-2, step < 5 ? 1.0 : 0.37);
    }
  }
  float largest = dispatch.num_calls == 20 ? 0.0f : 1.0f;  // one for each weight decay
  for (size_t i = 0; i < here.params.size(); ++i) {
    largest = std::max(largest, (aten(here.params[i]) - aten(there.params[i])).abs().max().item<float>());
  }
  return largest;
}

}  // namespace fake
