// chassis.members/1.
#include "chassis/service/members.h"

#include <map>
#include <memory>
#include <mutex>

#include "host/base/error.hpp"
#include "host/plugin/instance.hpp"
#include "host/plugin/registry.hpp"
#include "host/plugin/status.hpp"
#include "host/service/tables.hpp"

namespace chassis {
namespace {

class MembersTable final : public Table {
 public:
  explicit MembersTable(const TableContext& context) : context_(context.instance), registry_(context.registry) {
    table_.struct_size = sizeof table_;
    table_.impl = this;
    table_.open = [](const chassis_members_t* t, chassis_str_t kind, chassis_str_t id, chassis_instance_t** out) {
      return guarded([&] { *out = self(t).open(std::string(view_of(kind)), std::string(view_of(id))); });
    };
    table_.close = [](const chassis_members_t* t, chassis_instance_t* instance) {
      std::lock_guard lock(self(t).mutex_);
      self(t).open_.erase(instance);
    };
  }
  const void* get() const override { return &table_; }

 private:
  static MembersTable& self(const chassis_members_t* t) { return *static_cast<MembersTable*>(t->impl); }

  chassis_instance_t* open(const std::string& kind, const std::string& id) {
    if (kind == context_.kind && id == context_.member_id)
      throw config_error("'" + id + "' can not wrap itself").hint("name another member of kind " + kind);
    CHASSIS_CHECK(registry_ && *registry_, "members are opened while a session has a registry");
    auto instance = (*registry_)->open(kind, id);
    chassis_instance_t* raw = instance->get();
    std::lock_guard lock(mutex_);
    open_[raw] = std::move(instance);
    return raw;
  }

  const InstanceContext context_;
  PluginRegistry* const* registry_;
  std::mutex mutex_;
  std::map<chassis_instance_t*, std::unique_ptr<Instance>> open_;
  chassis_members_t table_{};
};

}  // namespace

std::unique_ptr<Table> make_members_table(const TableContext& context) {
  return std::make_unique<MembersTable>(context);
}

}  // namespace chassis
