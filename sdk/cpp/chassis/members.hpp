// Opens members of other plugins, to wrap them. The manifest of such a plugin has "requires=" CHASSIS_MEMBERS_ID.
#pragma once

#include <string_view>

#include "chassis/guard.hpp"
#include "chassis/host.hpp"
#include "chassis/sized.hpp"

CHASSIS_SDK_BEGIN

// [control] A member with a table such as chassis_comm_backend_t; closed with this object.
template <typename Table>
class OpenedMember {
 public:
  // `options` is a JSON object of the options that differ from their defaults, or empty. Throws if there is no such
  // member, if it refuses an option, or if it does not offer the interface.
  OpenedMember(const Host& host, std::string_view kind, std::string_view id, std::string_view interface,
               std::string_view options = "")
      : members_(host.service<chassis_members_t>()) {
    host.check(members_.open(&members_, str(kind), str(id), str(options), &self_));
    const void* const table = self_->get_interface ? self_->get_interface(self_, str(interface)) : nullptr;
    if (table == nullptr || !read_sized(static_cast<const Table*>(table), table_)) {
      members_.close(&members_, self_);
      fail_invalid("'", id, "' does not offer ", interface);
    }
  }
  OpenedMember(const OpenedMember&) = delete;
  OpenedMember& operator=(const OpenedMember&) = delete;
  ~OpenedMember() { members_.close(&members_, self_); }

  // The first argument of the table's functions.
  chassis_instance_t* self() const noexcept { return self_; }
  // The table in this SDK's version; functions that the member's plugin is too old for are NULL.
  const Table& table() const noexcept { return table_; }

 private:
  const chassis_members_t& members_;
  chassis_instance_t* self_ = nullptr;
  Table table_{};
};

CHASSIS_SDK_END
