// The host's implementation of chassis_status_t and chassis_host_t, and conversion between a status and an Error.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "chassis/host.h"
#include "chassis/status.h"
#include "host/base/error.hpp"
#include "host/plugin/manifest.hpp"

namespace chassis {

class InstanceServices;

inline std::string_view view_of(chassis_str_t text) {
  return text.len == 0 ? std::string_view() : std::string_view(text.ptr, text.len);
}
inline chassis_str_t str_of(std::string_view text) { return {text.data(), text.size()}; }

// "INVALID_ARGUMENT".
std::string_view status_code_text(int32_t code);

// For the host's services. Returns a status that reports resource exhaustion if there is no memory.
chassis_status_t* make_status(int32_t code, std::string_view message) noexcept;
// Must be called in a catch block. The status keeps the exit code of an Error, and whether it is from another rank,
// even as the cause of another status.
chassis_status_t* status_of_current_exception() noexcept;

// Runs `body` and returns what it throws as a status. Used in the functions of the host's tables.
template <class F>
chassis_status_t* guarded(F&& body) noexcept {
  try {
    std::forward<F>(body)();
    return nullptr;
  } catch (...) {
    return status_of_current_exception();
  }
}

// Must be called in a catch block around a call of a plugin's function: the ABI does not allow exceptions to leave one.
// The status names the exception; the code that reports it names plugin, call and step.
chassis_status_t* status_of_escaped_exception() noexcept;
// Calls a function of a plugin's table that returns a status.
template <class F>
chassis_status_t* call_plugin(F&& function) {
  try {
    return std::forward<F>(function)();
  } catch (...) {
    return status_of_escaped_exception();
  }
}

// Must be called in a catch block. Counts a warning that names the call in progress and the exception that left it.
void count_escaped() noexcept;
// Calls a function of a plugin's table that returns no status and must not fail, such as close. An exception that
// leaves it is a counted warning that names the call in progress: call Instance::get() before this, not inside the
// body.
template <class F>
void guarded_end(F&& body) noexcept {
  try {
    std::forward<F>(body)();
  } catch (...) {
    count_escaped();
  }
}

// Counts a warning that names the call in progress.
void count_unreported(std::string_view what) noexcept;
// Like guarded(), for functions that return no status: an exception is a counted warning.
template <class F>
void guarded_void(F&& body) noexcept {
  try {
    std::forward<F>(body)();
  } catch (const std::exception& error) {
    count_unreported(error.what());
  } catch (...) {
    count_unreported("an exception of unknown type");
  }
}

int32_t status_code(const chassis_status_t* status) noexcept;
// Message with facts, then the causes, one per line.
std::string status_text(const chassis_status_t* status);
void status_release(chassis_status_t* status) noexcept;

// Takes ownership of the status. If it is not NULL, throws an Error "<label>: <message>" with its facts and causes.
// Exit codes: config for INVALID_ARGUMENT, out of memory for RESOURCE_EXHAUSTED, communication for ABORTED and
// UNAVAILABLE, storage for DATA_LOSS, plugin for all others. An Error of a host service keeps its own exit code, which
// is the only way to get that of a stopped run, and stays an error from another rank.
void throw_if_failed(chassis_status_t* status, std::string_view label);

// Calls a function of a plugin's table that returns no status; an exception that leaves it is thrown as an Error.
template <class F>
auto value_of_plugin(std::string_view label, F&& function) {
  chassis_status_t* escaped = nullptr;
  try {
    return std::forward<F>(function)();
  } catch (...) {
    escaped = status_of_escaped_exception();
  }
  throw_if_failed(escaped, label);
  std::abort();  // it has thrown
}

// The table that a plugin receives. get_service asks `services`, which may be NULL and must outlive the table.
class HostTable {
 public:
  HostTable(AbiVersion negotiated, InstanceServices* services);
  HostTable(const HostTable&) = delete;
  HostTable& operator=(const HostTable&) = delete;

  const chassis_host_t* get() const { return &table_; }

 private:
  chassis_host_t table_;
};

}  // namespace chassis
