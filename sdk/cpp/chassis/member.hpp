// The base of every member class: one instance, its host, its life cycle.
#pragma once

#include <string_view>
#include <type_traits>

#include "chassis/host.hpp"
#include "chassis/options.hpp"
#include "chassis/plugin.h"

CHASSIS_SDK_BEGIN

// Each member has a class that derives from a kind (Ops, Model, …), has a constructor from const Host&, and defines
//   static constexpr std::string_view kId = "sdpa";     what the user writes; the library's id if left out
//   static constexpr std::string_view kDoc = "…";       one line
//   static const Options& options();                    if it has any; return a function-local static
// Everything may throw; an exception reaches the host as a status.
class Member {
 public:
  explicit Member(const Host& host) : host_(&host) {}
  virtual ~Member() = default;
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  const Host& host() const noexcept { return *host_; }

  // [control] Check and reserve; nothing permanent.
  virtual void prepare() {}
  // [control] From now on the interface is called.
  virtual void activate() {}
  // [control] On return no thread, task or callback of the instance runs.
  virtual void quiesce(uint64_t /*deadline_ns*/) {}
  // [control] From now on the interface is not called.
  virtual void deactivate() {}

 private:
  const Host* host_;
};

// True if the derived class, or a class between the two, overrides the member function of the base.
template <auto Base, auto Derived>
inline constexpr bool kOverridden = !std::is_same_v<decltype(Base), decltype(Derived)>;

template <typename Kind>
Kind& member_of(struct chassis_instance* self) noexcept {
  return static_cast<Kind&>(*static_cast<Member*>(self->impl));
}

CHASSIS_SDK_END
