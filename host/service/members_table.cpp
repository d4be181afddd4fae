// chassis.members/1: members that a plugin opens inside itself.
#include "chassis/service/members.h"

#include <map>
#include <memory>
#include <mutex>

#include "host/base/error.hpp"
#include "host/plugin/instance.hpp"
#include "host/plugin/registry.hpp"
#include "host/plugin/status.hpp"
#include "host/plugin/thread_role.hpp"
#include "host/service/tables.hpp"

namespace chassis {
namespace {

class MembersTable final : public Table {
 public:
  explicit MembersTable(const TableContext& context) : context_(context.instance), registry_(context.registry) {
    table_.struct_size = sizeof table_;
    table_.impl = this;
    table_.open = [](const chassis_members_t* t, chassis_str_t kind, chassis_str_t id, chassis_str_t options,
                     chassis_instance_t** out) {
      assert_thread_role(ThreadRole::kStep, "chassis.members/1 open");
      return guarded([&] { *out = self(t).open(view_of(kind), view_of(id), view_of(options)); });
    };
    table_.close = [](const chassis_members_t* t, chassis_instance_t* instance) {
      assert_thread_role(ThreadRole::kStep, "chassis.members/1 close");
      std::lock_guard lock(self(t).mutex_);
      self(t).open_.erase(instance);
    };
  }
  const void* get() const override { return &table_; }

 private:
  static MembersTable& self(const chassis_members_t* t) { return *static_cast<MembersTable*>(t->impl); }

  chassis_instance_t* open(std::string_view kind, std::string_view id, std::string_view options) {
    CHASSIS_CHECK(registry_ && *registry_, "no registry to open members from");
    std::vector<std::string> opened_by = context_.opened_by;
    opened_by.push_back(context_.kind + "/" + context_.member_id);
    auto instance = (*registry_)->open_inner(kind, id, options, std::move(opened_by));
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
