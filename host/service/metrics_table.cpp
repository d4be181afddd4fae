// chassis.metrics/1: metrics of plugins, named "<member>/<metric>".
#include "chassis/service/metrics.h"

#include "host/plugin/status.hpp"
#include "host/plugin/thread_role.hpp"
#include "host/service/tables.hpp"

namespace chassis {
namespace {

class MetricsTable final : public Table {
 public:
  explicit MetricsTable(const TableContext& context)
      : prefix_(context.instance.member_id + "/"), store_(*context.metrics) {
    table_.struct_size = sizeof table_;
    table_.impl = this;
    table_.set = [](const chassis_metrics_t* t, chassis_str_t name, double value) {
      assert_thread_role(ThreadRole::kStep, "chassis.metrics/1 set");
      guarded_void([&] { self(t).store_.set(self(t).prefix_ + std::string(view_of(name)), value); });
    };
    table_.add = [](const chassis_metrics_t* t, chassis_str_t name, double value) {
      assert_thread_role(ThreadRole::kStep, "chassis.metrics/1 add");
      guarded_void([&] { self(t).store_.add(self(t).prefix_ + std::string(view_of(name)), value); });
    };
  }
  const void* get() const override { return &table_; }

 private:
  static const MetricsTable& self(const chassis_metrics_t* t) { return *static_cast<const MetricsTable*>(t->impl); }
  std::string prefix_;
  MetricsStore& store_;
  chassis_metrics_t table_{};
};

}  // namespace

std::unique_ptr<Table> make_metrics_table(const TableContext& context) {
  return std::make_unique<MetricsTable>(context);
}

}  // namespace chassis
