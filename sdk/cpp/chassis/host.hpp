// The host as a plugin sees it: services, looked up on first use, and the log.
#pragma once

#include <atomic>
#include <string_view>
#include <tuple>

#include "chassis/guard.hpp"
#include "chassis/service/comm.h"
#include "chassis/service/dispatch.h"
#include "chassis/service/gemm.h"
#include "chassis/service/log.h"
#include "chassis/service/members.h"
#include "chassis/service/memory.h"
#include "chassis/service/metrics.h"
#include "chassis/service/options.h"
#include "chassis/service/rng.h"
#include "chassis/service/task.h"
#include "chassis/service/tensor.h"

CHASSIS_SDK_BEGIN

template <typename Table>
inline constexpr std::string_view service_id = {};
template <>
inline constexpr std::string_view service_id<chassis_log_t> = CHASSIS_LOG_ID;
template <>
inline constexpr std::string_view service_id<chassis_options_t> = CHASSIS_OPTIONS_ID;
template <>
inline constexpr std::string_view service_id<chassis_tensor_service_t> = CHASSIS_TENSOR_ID;
template <>
inline constexpr std::string_view service_id<chassis_dispatch_t> = CHASSIS_DISPATCH_ID;
template <>
inline constexpr std::string_view service_id<chassis_memory_t> = CHASSIS_MEMORY_ID;
template <>
inline constexpr std::string_view service_id<chassis_rng_t> = CHASSIS_RNG_ID;
template <>
inline constexpr std::string_view service_id<chassis_metrics_t> = CHASSIS_METRICS_ID;
template <>
inline constexpr std::string_view service_id<chassis_task_t> = CHASSIS_TASK_ID;
template <>
inline constexpr std::string_view service_id<chassis_comm_t> = CHASSIS_COMM_ID;
template <>
inline constexpr std::string_view service_id<chassis_members_t> = CHASSIS_MEMBERS_ID;
template <>
inline constexpr std::string_view service_id<chassis_gemm_t> = CHASSIS_GEMM_ID;

// One per instance; lives as long as the instance.
class Host {
 public:
  explicit Host(const chassis_host_t* table) : table_(table) {}
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  const chassis_host_t* table() const noexcept { return table_; }

  // [any] The table of a service; throws FAILED_PRECONDITION if this host does not have it.
  template <typename Table>
  const Table& service() const {
    auto& slot = std::get<std::atomic<const Table*>>(services_);
    const Table* found = slot.load(std::memory_order_acquire);
    if (found == nullptr) {
      found = static_cast<const Table*>(find(service_id<Table>));
      if (found == nullptr) throw Failure(CHASSIS_FAILED_PRECONDITION, "this host has no service ", service_id<Table>);
      slot.store(found, std::memory_order_release);
    }
    return *found;
  }

  // [any] The table of a service that the SDK does not know; NULL if this host does not have it.
  const void* find(std::string_view id) const { return table_->get_service(table_, str(id)); }

  void check(CHASSIS_STOLEN chassis_status_t* status) const { sdk_v0::check(table_, status); }

  // [any] log(CHASSIS_LOG_INFO, "read ", n, " keys"); the text is built only if it is shown.
  template <typename... Parts>
  void log(uint32_t level, const Parts&... parts) const {
    const auto& log = service<chassis_log_t>();
    if (log.enabled(&log, level)) log.write(&log, level, str(join(parts...)));
  }

  // [any] Reports that something was ignored, changed or dropped: a counted line in the summary of the run, under
  // `key`.
  template <typename... Parts>
  void count(std::string_view key, const Parts&... parts) const {
    const auto& log = service<chassis_log_t>();
    log.count(&log, str(key), str(join(parts...)));
  }

 private:
  const chassis_host_t* table_;
  mutable std::tuple<std::atomic<const chassis_log_t*>, std::atomic<const chassis_options_t*>,
                     std::atomic<const chassis_tensor_service_t*>, std::atomic<const chassis_dispatch_t*>,
                     std::atomic<const chassis_memory_t*>, std::atomic<const chassis_rng_t*>,
                     std::atomic<const chassis_metrics_t*>, std::atomic<const chassis_task_t*>,
                     std::atomic<const chassis_comm_t*>, std::atomic<const chassis_members_t*>,
                     std::atomic<const chassis_gemm_t*>>
      services_{};
};

CHASSIS_SDK_END
