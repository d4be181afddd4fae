// An instance of a member: created with its own services, taken through its life cycle in order, then destroyed.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "chassis/first_sizes.hpp"
#include "chassis/plugin.h"
#include "host/plugin/call.hpp"
#include "host/plugin/library.hpp"
#include "host/plugin/services.hpp"
#include "host/plugin/status.hpp"

namespace chassis {

enum class InstanceState { kCreated, kPrepared, kActive, kQuiesced, kDeactivated, kFailed };
std::string_view instance_state_text(InstanceState state);

// The first argument of a call into a plugin. The call counts as in progress until the end of the full expression.
class CalledInstance {
 public:
  CalledInstance(const CallSite& site, const char* phase, chassis_instance_t* instance, int64_t unit = -1) noexcept
      : call_(site, phase, unit), instance_(instance) {}
  operator chassis_instance_t*() const noexcept { return instance_; }

 private:
  PluginCall call_;
  chassis_instance_t* instance_;
};

class Instance {
 public:
  // `services` must outlive the instance. Throws the error that the plugin's create returns.
  Instance(std::shared_ptr<const PluginLibrary> library, InstanceContext context, ServiceProvider& services);
  // Takes the instance through its remaining states in order, then destroys it. Counts a warning if it still holds
  // tensors.
  ~Instance();
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  // [control] Each is legal in one state only, in this order; any other order is an internal error. After a failure the
  // instance can only be destroyed.
  void prepare();
  void activate();
  void quiesce(std::chrono::nanoseconds deadline = std::chrono::seconds(10));
  void deactivate();
  InstanceState state() const { return state_; }

  // The plugin's table `id`; members that an older plugin lacks are zero. Throws a plugin error if the plugin does not
  // offer it, or if it is shorter than its first version. Valid as long as the instance.
  template <class T>
  const T& interface(std::string_view id) const {
    const T* table = interface_or_null<T>(id);
    if (table == nullptr) throw interface_missing(id);
    return *table;
  }
  template <class T>
  const T* interface_or_null(std::string_view id) const {
    return static_cast<const T*>(find_interface(id, sizeof(T), kFirstSize<T>));
  }

  // Throws a plugin error that names the first function that is missing; `functions`: name, and whether it is present.
  void require(std::string_view interface_id, std::initializer_list<std::pair<const char*, bool>> functions) const;

  // The first argument of every function of an interface. `phase` is the function's name, a literal.
  CalledInstance get(const char* phase = "a call", int64_t unit = -1) const { return {*site_, phase, instance_, unit}; }
  // Calls a function of an interface, which takes the instance as its first argument. Throws if the function reports a
  // failure or an exception leaves it. Returns its result if that is not a status.
  template <class F>
  auto call(const char* phase, F&& function, int64_t unit = -1) const {
    const PluginCall in_plugin(*site_, phase, unit);
    if constexpr (std::is_same_v<std::invoke_result_t<F, chassis_instance_t*>, chassis_status_t*>)
      check(call_plugin([&] { return function(instance_); }));
    else
      return value_of_plugin(label_, [&] { return function(instance_); });
  }
  // throw_if_failed() with label() at the beginning of the message.
  void check(chassis_status_t* status) const {
    if (status != nullptr) throw_if_failed(status, label_);
  }

  // "plugin 'sdpa' 0.1.0 (ops/sdpa)" or, if library and member have the same id, "plugin 'sdpa' 0.1.0".
  const std::string& label() const { return label_; }
  const std::string& id() const { return context_.member_id; }
  const InstanceContext& context() const { return context_; }
  const PluginLibrary& library() const { return *library_; }
  int64_t live_tensors() const;

 private:
  void expect(InstanceState state, std::string_view action) const;
  // Calls a hook, which may be NULL. The new state is `next`, or kFailed.
  void step(InstanceState next, std::string_view action, const std::function<chassis_status_t*()>& hook);
  const void* find_interface(std::string_view id, size_t host_bytes, size_t min_bytes) const;
  Error interface_missing(std::string_view id) const;

  std::shared_ptr<const PluginLibrary> library_;
  InstanceContext context_;
  std::string label_;
  const CallSite* site_ = nullptr;
  std::unique_ptr<InstanceServices> services_;
  std::unique_ptr<HostTable> host_;
  chassis_instance_t* instance_ = nullptr;
  chassis_instance_t hooks_{};  // a copy; members that an older plugin lacks are zero
  InstanceState state_ = InstanceState::kCreated;
  mutable std::map<std::string, std::vector<uint64_t>, std::less<>> interfaces_;
};

}  // namespace chassis
