// Creation, life cycle and destruction of an instance, and lookup of its interfaces.
#include "host/plugin/instance.hpp"

#include <fmt/core.h>

#include <cstddef>

#include "host/base/log.hpp"
#include "host/plugin/sized.hpp"

namespace chassis {
namespace {

constexpr size_t kMaxInterfaceBytes = 1 << 16;

}  // namespace

std::string_view instance_state_text(InstanceState state) {
  switch (state) {
    case InstanceState::kCreated:
      return "created";
    case InstanceState::kPrepared:
      return "prepared";
    case InstanceState::kActive:
      return "active";
    case InstanceState::kQuiesced:
      return "quiesced";
    case InstanceState::kDeactivated:
      return "deactivated";
    case InstanceState::kFailed:
      return "failed";
  }
  return "?";
}

Instance::Instance(std::shared_ptr<const PluginLibrary> library, InstanceContext context, ServiceProvider& services)
    : library_(std::move(library)), context_(std::move(context)) {
  label_ = library_->manifest().label();
  if (context_.member_id != library_->manifest().id) {
    label_ += fmt::format(" ({}/{})", context_.kind, context_.member_id);
  }
  site_ = &call_site(label_);
  services_ = services.attach(context_);
  host_ = std::make_unique<HostTable>(library_->negotiated(), services_.get());
  {
    const PluginCall call(*site_, "create");
    check(call_plugin([&] {
      return library_->factory().create(host_->get(), str_of(context_.kind), str_of(context_.member_id), &instance_);
    }));
  }
  if (instance_ == nullptr) throw plugin_error(fmt::format("{}: create returned no instance and no error", label_));
  hooks_ = read_struct(instance_, label_ + ": the instance that create returned");
  if (hooks_.destroy == nullptr)
    throw plugin_error(fmt::format("{}: create returned an instance without destroy", label_));
}

Instance::~Instance() {
  try {
    if (state_ == InstanceState::kActive) quiesce();
    if (state_ == InstanceState::kQuiesced) deactivate();
  } catch (const std::exception& error) {
    counted_warning("plugins that did not shut down cleanly", error.what());
  }
  {
    const PluginCall call(*site_, "destroy");
    guarded_end([&] { hooks_.destroy(instance_); });
  }
  if (const int64_t live = live_tensors(); live != 0) {
    counted_warning(fmt::format("{}: tensors not released", label_),
                    fmt::format("{} still held {} tensor handles when it was destroyed, expected 0", label_, live),
                    static_cast<uint64_t>(live < 0 ? 1 : live));
  }
}

void Instance::expect(InstanceState state, std::string_view action) const {
  if (state_ == state) return;
  throw internal_error(fmt::format("{}: {} is legal when it is {}, but it is {}", label_, action,
                                   instance_state_text(state), instance_state_text(state_)));
}

void Instance::step(InstanceState next, std::string_view action, const std::function<chassis_status_t*()>& hook) {
  chassis_status_t* status = hook ? call_plugin(hook) : nullptr;
  state_ = status == nullptr ? next : InstanceState::kFailed;
  if (status != nullptr) throw_if_failed(status, fmt::format("{}: {} failed", label_, action));
}

void Instance::prepare() {
  expect(InstanceState::kCreated, "prepare");
  step(InstanceState::kPrepared, "prepare", [&] { return hooks_.prepare ? hooks_.prepare(get("prepare")) : nullptr; });
}

void Instance::activate() {
  expect(InstanceState::kPrepared, "activate");
  step(InstanceState::kActive, "activate",
       [&] { return hooks_.activate ? hooks_.activate(get("activate")) : nullptr; });
}

void Instance::quiesce(std::chrono::nanoseconds deadline) {
  expect(InstanceState::kActive, "quiesce");
  step(InstanceState::kQuiesced, "quiesce", [&] {
    return hooks_.quiesce ? hooks_.quiesce(get("quiesce"), static_cast<uint64_t>(deadline.count())) : nullptr;
  });
}

void Instance::deactivate() {
  expect(InstanceState::kQuiesced, "deactivate");
  step(InstanceState::kDeactivated, "deactivate",
       [&] { return hooks_.deactivate ? hooks_.deactivate(get("deactivate")) : nullptr; });
}

int64_t Instance::live_tensors() const { return services_->live_tensors(); }

const void* Instance::find_interface(std::string_view id, size_t host_bytes, size_t min_bytes) const {
  const auto known = interfaces_.find(id);
  if (known != interfaces_.end()) return known->second.data();
  if (hooks_.get_interface == nullptr) return nullptr;
  const void* table = call("get_interface", [&](auto* self) { return hooks_.get_interface(self, str_of(id)); });
  if (table == nullptr) return nullptr;
  uint32_t struct_size = 0;
  std::memcpy(&struct_size, table, sizeof(struct_size));
  if (struct_size < min_bytes || struct_size > kMaxInterfaceBytes) {
    throw plugin_error(fmt::format("{}: its {} has {} bytes, expected at least {} and at most {}", label_, id,
                                   struct_size, min_bytes, kMaxInterfaceBytes));
  }
  std::vector<uint64_t> copy((host_bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t));
  const auto known_bytes = static_cast<uint32_t>(std::min<size_t>(struct_size, host_bytes));
  std::memcpy(copy.data(), table, known_bytes);
  std::memcpy(copy.data(), &known_bytes, sizeof(known_bytes));
  return interfaces_.emplace(id, std::move(copy)).first->second.data();
}

void Instance::require(std::string_view interface_id,
                       std::initializer_list<std::pair<const char*, bool>> functions) const {
  for (const auto& [name, present] : functions)
    if (!present) throw plugin_error(fmt::format("{}: its {} has no function {}", label_, interface_id, name));
}

Error Instance::interface_missing(std::string_view id) const {
  return plugin_error(fmt::format("{} does not offer the interface {}", label_, id));
}

}  // namespace chassis
