// Services that do nothing but count tensors, without LibTorch.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "chassis/service/log.h"
#include "chassis/service/options.h"
#include "chassis/service/tensor.h"
#include "host/base/error.hpp"
#include "host/base/json.hpp"
#include "host/plugin/manifest.hpp"
#include "host/plugin/services.hpp"
#include "host/plugin/status.hpp"

namespace chassis {

class FakeInstanceServices : public InstanceServices {
 public:
  explicit FakeInstanceServices(const std::set<std::string>& offered) : offered_(offered) {
    log_ = {sizeof(chassis_log_t),
            0,
            this,
            [](const chassis_log_t*, uint32_t) { return 0u; },
            [](const chassis_log_t*, uint32_t, chassis_str_t) {},
            [](const chassis_log_t*, chassis_str_t, chassis_str_t) {}};
    options_.struct_size = sizeof(options_);
    tensor_.struct_size = sizeof(tensor_);
    tensor_.impl = this;
    tensor_.create = [](const chassis_tensor_service* s, uint32_t, uint32_t, int32_t, uint32_t, const int64_t*,
                        chassis_tensor_t* out) -> chassis_status_t* {
      ++static_cast<FakeInstanceServices*>(s->impl)->live_;
      *out = reinterpret_cast<chassis_tensor_t>(s->impl);
      return nullptr;
    };
    tensor_.release = [](const chassis_tensor_service* s, chassis_tensor_t) {
      --static_cast<FakeInstanceServices*>(s->impl)->live_;
    };
  }

  const void* get(std::string_view id) override {
    if (id == "chassis.broken/1") throw internal_error("this service cannot be created");
    if (!offered_.contains(std::string(id))) return nullptr;
    if (id == CHASSIS_LOG_ID) return &log_;
    if (id == CHASSIS_OPTIONS_ID) return &options_;
    if (id == CHASSIS_TENSOR_ID) return &tensor_;
    return nullptr;
  }
  int64_t live_tensors() const override { return live_; }

 private:
  const std::set<std::string>& offered_;
  chassis_log_t log_{};
  chassis_options_t options_{};
  chassis_tensor_service_t tensor_{};
  int64_t live_ = 0;
};

class FakeServices : public ServiceProvider {
 public:
  std::set<std::string> offered = {CHASSIS_LOG_ID, CHASSIS_OPTIONS_ID, CHASSIS_TENSOR_ID};
  std::string torch = "2.11.0";
  std::map<std::string, std::string> operators = {{"aten::mm", "aten::mm(Tensor self, Tensor mat2) -> Tensor"}};
  Json last_options;

  bool offers(std::string_view id) const override { return offered.contains(std::string(id)); }
  std::string torch_version() const override { return torch; }
  void check_operators(const Manifest& manifest) const override {
    for (const std::string& schema : manifest.operators) {
      const auto found = operators.find(schema.substr(0, schema.find('(')));
      if (found == operators.end() || found->second != schema) {
        throw plugin_error(manifest.label() + " calls " + schema + ", this host has " +
                           (found == operators.end() ? "no such operator" : found->second));
      }
    }
  }
  std::unique_ptr<InstanceServices> attach(const InstanceContext& context) override {
    last_options = context.options;
    return std::make_unique<FakeInstanceServices>(offered);
  }
};

}  // namespace chassis
