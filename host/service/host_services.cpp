// The list of services, and their tables for one plugin instance.
#include "host/service/host_services.hpp"

#include <fmt/core.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <array>

#include "chassis/service/comm.h"
#include "chassis/service/dispatch.h"
#include "chassis/service/gemm.h"
#include "chassis/service/log.h"
#include "chassis/service/members.h"
#include "chassis/service/memory.h"
#include "chassis/service/metrics.h"
#include "chassis/service/options.h"
#include "chassis/service/rng.h"
#include "chassis/service/task.h"
#include "chassis/service/tensor.h"
#include "host/plugin/manifest.hpp"
#include "host/service/memory.hpp"
#include "host/service/operators.hpp"
#include "host/service/tables.hpp"

namespace chassis {
namespace {

struct Service {
  std::string_view id;
  std::unique_ptr<Table> (*make)(const TableContext& context);
};
constexpr std::array<Service, 11> kServices = {{
    {CHASSIS_LOG_ID, make_log_table},
    {CHASSIS_OPTIONS_ID, make_options_table},
    {CHASSIS_TENSOR_ID, make_tensor_table},
    {CHASSIS_DISPATCH_ID, make_dispatch_table},
    {CHASSIS_MEMORY_ID, make_memory_table},
    {CHASSIS_RNG_ID, make_rng_table},
    {CHASSIS_METRICS_ID, make_metrics_table},
    {CHASSIS_TASK_ID, make_task_table},
    {CHASSIS_COMM_ID, make_comm_table},
    {CHASSIS_MEMBERS_ID, make_members_table},
    {CHASSIS_GEMM_ID, make_gemm_table},
}};

class Tables final : public InstanceServices {
 public:
  explicit Tables(TableContext context) : context_(std::move(context)) {
    for (size_t i = 0; i < kServices.size(); ++i) tables_[i] = kServices[i].make(context_);
  }
  const void* get(std::string_view id) override {
    for (size_t i = 0; i < kServices.size(); ++i)
      if (kServices[i].id == id) return tables_[i]->get();
    return nullptr;
  }
  int64_t live_tensors() const override { return context_.handles->load(); }

 private:
  const TableContext context_;
  std::array<std::unique_ptr<Table>, kServices.size()> tables_;
};

}  // namespace

bool HostServices::offers(std::string_view id) const {
  for (const Service& service : kServices)
    if (service.id == id) return true;
  return false;
}

void HostServices::check_operators(const Manifest& manifest) const { check_operator_schemas(manifest); }

std::string HostServices::torch_version() const { return TORCH_VERSION; }

std::unique_ptr<InstanceServices> HostServices::attach(const InstanceContext& context) {
  const auto& required = context.manifest->required_services;
  if (!communicator_ && std::find(required.begin(), required.end(), CHASSIS_COMM_ID) != required.end())
    throw plugin_error(
        fmt::format("{} requires " CHASSIS_COMM_ID ", but no ranks are connected", context.manifest->label()));
  TableContext tables;
  tables.instance = context;
  tables.memory_owner = memory_owner(context.plugin_id);
  tables.seed = seed_;
  tables.metrics = &metrics_;
  tables.communicator = &communicator_;
  tables.registry = &registry_;
  return std::make_unique<Tables>(std::move(tables));
}

}  // namespace chassis
