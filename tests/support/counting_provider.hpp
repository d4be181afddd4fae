// An ops provider that forwards every call to another one, and counts the forward runs of each node.
#pragma once

#include <map>
#include <string>

#include "chassis/plugin.h"
#include "host/compile/resolve.hpp"
#include "host/plugin/status.hpp"

namespace chassis::test {

class CountingProvider {
 public:
  explicit CountingProvider(const OpsProvider& inner) : inner_(inner), table_(*inner.table) {
    instance_.struct_size = sizeof(instance_);
    instance_.impl = this;
    table_.claim = [](chassis_instance* self, const chassis_node_t* node, double* cost) {
      const OpsProvider& inner = of(self).inner_;
      return inner.table->claim(inner.self, node, cost);
    };
    table_.infer = [](chassis_instance* self, const chassis_node_t* node, chassis_infer_t* out) {
      const OpsProvider& inner = of(self).inner_;
      return inner.table->infer(inner.self, node, out);
    };
    table_.create_kernel = [](chassis_instance* self, const chassis_node_t* node, void** kernel) {
      const OpsProvider& inner = of(self).inner_;
      void* made = nullptr;
      chassis_status_t* status = inner.table->create_kernel(inner.self, node, &made);
      if (!status) *kernel = new Kernel{std::string(view_of(node->name)), made};
      return status;
    };
    table_.destroy_kernel = [](chassis_instance* self, void* kernel) {
      const OpsProvider& inner = of(self).inner_;
      auto* counted = static_cast<Kernel*>(kernel);
      if (inner.table->destroy_kernel) inner.table->destroy_kernel(inner.self, counted->made);
      delete counted;
    };
    table_.forward = [](chassis_instance* self, void* kernel, chassis_call_t* call) {
      ++of(self).runs[static_cast<Kernel*>(kernel)->name];
      return forward_call<&chassis_ops_t::forward>(self, kernel, call);
    };
    if (table_.forward_backward)
      table_.forward_backward = [](chassis_instance* self, void* kernel, chassis_call_t* call) {
        ++of(self).runs[static_cast<Kernel*>(kernel)->name];
        return forward_call<&chassis_ops_t::forward_backward>(self, kernel, call);
      };
    if (table_.backward_inputs) table_.backward_inputs = forward_call<&chassis_ops_t::backward_inputs>;
    if (table_.backward_params) table_.backward_params = forward_call<&chassis_ops_t::backward_params>;
  }
  CountingProvider(const CountingProvider&) = delete;
  CountingProvider& operator=(const CountingProvider&) = delete;

  OpsProvider provider() {
    OpsProvider own = inner_;
    own.self = &instance_;
    own.table = &table_;
    return own;
  }

  std::map<std::string, int> runs;  // by name of the node, "layer.gelu"

 private:
  struct Kernel {
    std::string name;
    void* made;
  };
  static CountingProvider& of(chassis_instance* self) { return *static_cast<CountingProvider*>(self->impl); }
  template <auto kFunction>
  static chassis_status_t* forward_call(chassis_instance* self, void* kernel, chassis_call_t* call) {
    const OpsProvider& inner = of(self).inner_;
    return (inner.table->*kFunction)(inner.self, static_cast<Kernel*>(kernel)->made, call);
  }

  const OpsProvider inner_;
  chassis_ops_t table_;
  chassis_instance instance_{};
};

}  // namespace chassis::test
