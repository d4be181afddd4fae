// The C tables of chassis/service/, one class each. HostServices makes them for every plugin instance.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "host/plugin/services.hpp"
#include "host/service/ledger.hpp"
#include "host/service/metrics.hpp"

namespace chassis {

class Communicator;
class PluginRegistry;

// The state that the tables of one instance share.
struct TableContext {
  InstanceContext instance;
  ledger::Account handles = std::make_shared<std::atomic<int64_t>>(0);
  uint16_t memory_owner = 0;
  uint64_t seed = 0;
  MetricsStore* metrics = nullptr;
  Communicator* const* communicator = nullptr;  // points to NULL while the run has none
  PluginRegistry* const* registry = nullptr;    // likewise
};

class Table {
 public:
  virtual ~Table() = default;
  // Valid as long as the instance; NULL while the run does not offer the service.
  virtual const void* get() const = 0;
};

std::unique_ptr<Table> make_log_table(const TableContext& context);
std::unique_ptr<Table> make_options_table(const TableContext& context);
std::unique_ptr<Table> make_tensor_table(const TableContext& context);
std::unique_ptr<Table> make_dispatch_table(const TableContext& context);
std::unique_ptr<Table> make_memory_table(const TableContext& context);
std::unique_ptr<Table> make_rng_table(const TableContext& context);
std::unique_ptr<Table> make_metrics_table(const TableContext& context);
std::unique_ptr<Table> make_task_table(const TableContext& context);
std::unique_ptr<Table> make_comm_table(const TableContext& context);
std::unique_ptr<Table> make_gemm_table(const TableContext& context);
std::unique_ptr<Table> make_members_table(const TableContext& context);

}  // namespace chassis
