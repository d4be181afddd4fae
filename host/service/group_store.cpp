// The store's functions as C functions.
#include "host/service/group_store.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "host/plugin/status.hpp"

namespace chassis {

using Clock = std::chrono::steady_clock;

GroupStore::GroupStore(World& world, std::string prefix) : world_(world), prefix_(std::move(prefix)) {
  CHASSIS_CHECK(world_.store(), "one process has no store");
  table_.struct_size = sizeof table_;
  table_.impl = this;
  table_.set = [](const chassis_store_t* s, chassis_str_t name, chassis_str_t value) {
    return guarded([&] { self(s).world_.store()->set(self(s).key(name), std::string(view_of(value))); });
  };
  table_.get = [](const chassis_store_t* s, chassis_str_t name, uint64_t timeout_ns, void (*take)(void*, chassis_str_t),
                  void* context) {
    chassis_status_t* late = nullptr;
    chassis_status_t* status = guarded([&] { late = self(s).get(self(s).key(name), timeout_ns, take, context); });
    return status ? status : late;
  };
  table_.add = [](const chassis_store_t* s, chassis_str_t name, int64_t amount, int64_t* out) {
    return guarded([&] { *out = self(s).world_.store()->add(self(s).key(name), amount); });
  };
}

std::string GroupStore::key(chassis_str_t name) const { return prefix_ + std::string(view_of(name)); }

chassis_status_t* GroupStore::get(const std::string& key, uint64_t timeout_ns, void (*take)(void*, chassis_str_t),
                                  void* context) {
  const Clock::time_point start = Clock::now();
  Clock::time_point asked = start;
  for (auto pause = std::chrono::microseconds(100);; pause = std::min(2 * pause, std::chrono::microseconds(10000))) {
    if (const std::optional<std::string> value = world_.store()->find(key)) {
      take(context, str_of(*value));
      return nullptr;
    }
    const Clock::time_point now = Clock::now();
    if (static_cast<uint64_t>(std::chrono::nanoseconds(now - start).count()) >= timeout_ns) {
      world_.throw_if_another_failed();  // a backend may wait in short slices
      const double seconds = std::chrono::duration<double>(now - start).count();
      return make_status(CHASSIS_DEADLINE_EXCEEDED, fmt::format("no rank wrote '{}' within {:.1f} s", key, seconds));
    }
    if (now - asked >= std::chrono::milliseconds(100)) {
      world_.throw_if_another_failed();
      asked = now;
    }
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace chassis
