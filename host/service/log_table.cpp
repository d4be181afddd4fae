// chassis.log/1: the host's log for plugins.
#include "chassis/service/log.h"

#include "host/base/log.hpp"
#include "host/plugin/status.hpp"
#include "host/service/tables.hpp"

namespace chassis {
namespace {

log::Level level_of(uint32_t level) {
  switch (level) {
    case CHASSIS_LOG_DEBUG: return log::Level::kDebug;
    case CHASSIS_LOG_WARN: return log::Level::kWarn;
    case CHASSIS_LOG_ERROR: return log::Level::kError;
    default: return log::Level::kInfo;
  }
}

class LogTable final : public Table {
 public:
  explicit LogTable(const TableContext& context) : name_(context.instance.member_id) {
    table_.struct_size = sizeof table_;
    table_.impl = this;
    table_.enabled = [](const chassis_log_t*, uint32_t level) -> uint32_t { return log::enabled(level_of(level)); };
    table_.write = [](const chassis_log_t* t, uint32_t level, chassis_str_t message) {
      try {
        log::write(level_of(level), self(t).name_ + ": " + std::string(view_of(message)));
      } catch (...) {  // a plugin does not fail for a lost line
      }
    };
    table_.count = [](const chassis_log_t* t, chassis_str_t key, chassis_str_t message) {
      try {
        const std::string& name = self(t).name_;
        counted_warning(name + "/" + std::string(view_of(key)), name + ": " + std::string(view_of(message)));
      } catch (...) {
      }
    };
  }
  const void* get() const override { return &table_; }

 private:
  static const LogTable& self(const chassis_log_t* t) { return *static_cast<const LogTable*>(t->impl); }
  std::string name_;
  chassis_log_t table_{};
};

}  // namespace

std::unique_ptr<Table> make_log_table(const TableContext& context) { return std::make_unique<LogTable>(context); }

}  // namespace chassis
