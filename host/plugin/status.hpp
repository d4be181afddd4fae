// The host's side of chassis_status_t and chassis_host_t, and the way between a status and an Error.
#pragma once

#include <cstdint>
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

// For the host's services. A status made from an Error remembers its exit code, also behind other statuses.
chassis_status_t* make_status(int32_t code, std::string_view message) noexcept;
// To be called in a catch block.
chassis_status_t* status_of_current_exception() noexcept;

// Runs `body` and turns what it throws into a status: the body of the table functions that the host hands out.
template <class F>
chassis_status_t* guarded(F&& body) noexcept {
  try {
    std::forward<F>(body)();
    return nullptr;
  } catch (...) {
    return status_of_current_exception();
  }
}

// The same for functions without a status: what `body` throws is a counted warning that names the call in progress.
void count_unreported(std::string_view what) noexcept;
template <class F>
void unthrown(F&& body) noexcept {
  try {
    std::forward<F>(body)();
  } catch (const std::exception& error) {
    count_unreported(error.what());
  } catch (...) {
    count_unreported("an exception of unknown type");
  }
}

int32_t status_code(const chassis_status_t* status) noexcept;
// Message with facts, then its causes, one a line.
std::string status_text(const chassis_status_t* status);
void status_release(chassis_status_t* status) noexcept;

// Takes the status. Throws if it is not NULL: "<who>: <message>", with the facts and causes that came with it.
// INVALID_ARGUMENT is the user's (exit code config), RESOURCE_EXHAUSTED out of memory, ABORTED and UNAVAILABLE
// communication, DATA_LOSS storage, all others the plugin's. A failed host service keeps its own exit code.
void throw_if_failed(chassis_status_t* status, std::string_view who);

// The table that a plugin gets, answering get_service from `services`, which may be NULL: then there are none.
// Both must outlive it.
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
