// Statuses: creation, validation of pointers that plugins return, conversion to and from Error, and the host table.
#include "host/plugin/status.hpp"

#include <fmt/core.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <unordered_set>
#include <utility>
#include <vector>

#include "host/base/log.hpp"
#include "host/plugin/call.hpp"
#include "host/plugin/services.hpp"

// Plugins see only its address.
struct chassis_status {
  int32_t code = CHASSIS_UNKNOWN;
  std::string message;
  std::vector<std::pair<std::string, std::string>> facts;
  std::unique_ptr<chassis_status> cause;
  std::optional<chassis::ExitCode> exit_code;  // exit code of the Error that it was made from
  bool is_from_another_rank = false;           // as is that Error
  std::deque<std::string> lent;                // texts returned by status_message, valid until the release
};

namespace chassis {
namespace {

// Returned when there is no memory for a status; never freed.
chassis_status& out_of_memory_status() {
  static chassis_status status{CHASSIS_RESOURCE_EXHAUSTED, "no memory for an error message", {}, nullptr, {}, {}, {}};
  return status;
}

// The statuses that plugins hold, to recognize pointers that are not statuses of the host. Process-wide, since a
// pointer does not show which plugin it belongs to; never destroyed, so that static destructors may use it.
class LiveStatuses {
 public:
  void add(const chassis_status* status) {
    const std::lock_guard lock(mutex_);
    statuses_.insert(status);
  }
  bool has(const chassis_status* status) const {
    const std::lock_guard lock(mutex_);
    return status == &out_of_memory_status() || statuses_.contains(status);
  }
  // NULL if it is not a live status.
  std::unique_ptr<chassis_status> take(chassis_status* status) noexcept {
    const std::lock_guard lock(mutex_);
    return std::unique_ptr<chassis_status>(statuses_.erase(status) != 0 ? status : nullptr);
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_set<const chassis_status*> statuses_;
};

LiveStatuses& live_statuses() {
  static LiveStatuses& statuses = *new LiveStatuses;
  return statuses;
}

std::string foreign_text(const chassis_status* status) {
  return fmt::format(
      "returned {} as its status, which the host did not make or has already released; a status must be "
      "NULL or made with status_new",
      static_cast<const void*>(status));
}

std::string message_of(const chassis_status& status) {
  return status.message.empty() ? fmt::format("no message, status {}", status_code_text(status.code)) : status.message;
}

std::string own_text(const chassis_status& status) {
  std::string text = message_of(status);
  for (size_t i = 0; i < status.facts.size(); ++i) {
    text += fmt::format("{}{}={}", i == 0 ? " (" : ", ", status.facts[i].first, status.facts[i].second);
  }
  if (!status.facts.empty()) text += ')';
  return text;
}

int32_t code_of(ExitCode code) {
  switch (code) {
    case ExitCode::kConfig:
      return CHASSIS_INVALID_ARGUMENT;
    case ExitCode::kPlugin:
      return CHASSIS_FAILED_PRECONDITION;
    case ExitCode::kOutOfMemory:
      return CHASSIS_RESOURCE_EXHAUSTED;
    case ExitCode::kCommunication:
      return CHASSIS_ABORTED;
    case ExitCode::kStorage:
      return CHASSIS_DATA_LOSS;
    case ExitCode::kStopped:
      return CHASSIS_CANCELLED;
    default:
      return CHASSIS_INTERNAL;
  }
}

ExitCode exit_code_of(const chassis_status& status) {
  for (const chassis_status* s = &status; s != nullptr; s = s->cause.get()) {
    if (s->exit_code) return *s->exit_code;
  }
  switch (status.code) {
    case CHASSIS_INVALID_ARGUMENT:
      return ExitCode::kConfig;
    case CHASSIS_RESOURCE_EXHAUSTED:
      return ExitCode::kOutOfMemory;
    case CHASSIS_ABORTED:
    case CHASSIS_UNAVAILABLE:
      return ExitCode::kCommunication;
    case CHASSIS_DATA_LOSS:
      return ExitCode::kStorage;
    default:
      return ExitCode::kPlugin;
  }
}

bool is_from_another_rank(const chassis_status& status) {
  for (const chassis_status* s = &status; s != nullptr; s = s->cause.get())
    if (s->is_from_another_rank) return true;
  return false;
}

std::string text_with_causes(const chassis_status& status) {
  std::string text = own_text(status);
  for (const chassis_status* cause = status.cause.get(); cause != nullptr; cause = cause->cause.get())
    text += "\ncaused by: " + own_text(*cause);
  return text;
}

// The functions of chassis_host_t. None throws an exception.

const void* get_service(const chassis_host_t* host, chassis_str_t id) {
  auto* services = static_cast<InstanceServices*>(host->impl);
  if (services == nullptr) return nullptr;
  try {
    return services->get(view_of(id));
  } catch (const std::exception& error) {
    try {
      log::error("service {}: {}", view_of(id), error.what());
    } catch (...) {
    }
    return nullptr;
  } catch (...) {
    return nullptr;
  }
}

chassis_status_t* status_new(const chassis_host_t*, int32_t code, chassis_str_t message, chassis_status_t* cause) {
  std::unique_ptr<chassis_status> owned_cause = live_statuses().take(cause);
  chassis_status_t* status = make_status(code, view_of(message));
  if (status != &out_of_memory_status()) status->cause = std::move(owned_cause);
  return status;
}

void status_add(chassis_status_t* status, chassis_str_t key, chassis_str_t value) {
  if (status == nullptr || status == &out_of_memory_status() || !live_statuses().has(status)) return;
  try {
    status->facts.emplace_back(view_of(key), view_of(value));
  } catch (...) {  // no memory: the fact is dropped
  }
}

chassis_str_t status_message(const chassis_status_t* status) {
  if (status == nullptr) return {nullptr, 0};
  if (status == &out_of_memory_status()) return str_of(status->message);
  if (!live_statuses().has(status)) return str_of("not a status of the host");
  try {
    auto& lent = const_cast<chassis_status_t*>(status)->lent;
    if (std::string text = status_text(status); lent.empty() || lent.back() != text) lent.push_back(std::move(text));
    return str_of(lent.back());
  } catch (...) {
    return str_of(status->message);
  }
}

}  // namespace

std::string_view status_code_text(int32_t code) {
  constexpr std::string_view kNames[] = {
      "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
      "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
      "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
      "DATA_LOSS"};
  return code >= 0 && code <= CHASSIS_DATA_LOSS ? kNames[code] : "UNKNOWN";
}

chassis_status_t* make_status(int32_t code, std::string_view message) noexcept {
  try {
    auto status = std::make_unique<chassis_status>();
    // A status always reports a failure, so OK and unknown codes become UNKNOWN.
    status->code = code > CHASSIS_OK && code <= CHASSIS_DATA_LOSS ? code : CHASSIS_UNKNOWN;
    status->message = message;
    if (status->code != code)
      status->facts.emplace_back("its status code",
                                 fmt::format("{}, which {}", code, code == CHASSIS_OK ? "means OK" : "is unknown"));
    live_statuses().add(status.get());
    return status.release();
  } catch (...) {
    return &out_of_memory_status();
  }
}

chassis_status_t* status_of_current_exception() noexcept {
  const auto made = [](int32_t code, std::string_view text, std::optional<ExitCode> exit_code,
                       bool is_from_another_rank = false) {
    chassis_status_t* status = make_status(code, text);
    if (status == &out_of_memory_status()) return status;
    status->exit_code = exit_code;
    status->is_from_another_rank = is_from_another_rank;
    return status;
  };
  try {
    throw;
  } catch (const Error& error) {
    return made(code_of(error.code()), error.what(), error.code(), error.is_from_another_rank());
  } catch (const std::bad_alloc&) {
    return made(CHASSIS_RESOURCE_EXHAUSTED, "out of memory", ExitCode::kOutOfMemory);
  } catch (const std::exception& error) {
    return made(CHASSIS_INTERNAL, error.what(), std::nullopt);
  } catch (...) {
    return made(CHASSIS_INTERNAL, "an exception of unknown type", std::nullopt);
  }
}

chassis_status_t* status_of_escaped_exception() noexcept {
  constexpr const char* kWhat = "threw an exception across the boundary of the ABI, which no exception may cross";
  const auto made = [kWhat](const char* more, const char* text) noexcept {
    try {
      return make_status(CHASSIS_INTERNAL, fmt::format("{}{}{}", kWhat, more, text));
    } catch (...) {  // no memory for the text
      return make_status(CHASSIS_INTERNAL, kWhat);
    }
  };
  try {
    throw;
  } catch (const std::exception& error) {
    return made(": ", error.what());
  } catch (...) {  // includes an exception of another C++ library
    return made("; ", "it is of unknown type");
  }
}

void count_escaped() noexcept {
  chassis_status_t* const status = status_of_escaped_exception();
  try {
    counted_warning("exceptions that left functions of plugins",
                    fmt::format("{}: {}", call_in_progress(), status_text(status)));
  } catch (...) {  // no memory for the warning
  }
  status_release(status);
}

void count_unreported(std::string_view what) noexcept {
  try {
    counted_warning("failures of host functions without a status",
                    fmt::format("{}: a function of the host failed: {}", call_in_progress(), what));
  } catch (...) {  // no memory for the warning
  }
}

int32_t status_code(const chassis_status_t* status) noexcept {
  if (status == nullptr) return CHASSIS_OK;
  return live_statuses().has(status) ? status->code : CHASSIS_UNKNOWN;
}

std::string status_text(const chassis_status_t* status) {
  if (status == nullptr) return "OK";
  if (!live_statuses().has(status)) return foreign_text(status);
  return text_with_causes(*status);
}

void status_release(chassis_status_t* status) noexcept {
  // A loop, since a long chain of causes would overflow the stack by recursion.
  std::unique_ptr<chassis_status> next = live_statuses().take(status);
  while (next) next = std::move(next->cause);
}

void throw_if_failed(chassis_status_t* status, std::string_view label) {
  if (status == nullptr) return;
  if (!live_statuses().has(status))
    throw plugin_error(fmt::format("{}{} {}", label, own_call_phase(), foreign_text(status)));
  const std::unique_ptr<chassis_status, void (*)(chassis_status*)> owned(status, status_release);
  const ExitCode exit_code = exit_code_of(*status);
  // Outside a step, a mistake of the user does not depend on the call in which it is found.
  const bool names_call = exit_code == ExitCode::kConfig ? own_call_is_in_step() : exit_code != ExitCode::kStopped;
  Error error(exit_code, fmt::format("{}{}: {}", label, names_call ? own_call_phase() : "", message_of(*status)));
  for (const auto& [key, value] : status->facts) error.with(key, value);
  if (status->code == CHASSIS_CANCELLED && exit_code == ExitCode::kPlugin)
    error.with("status", "CANCELLED, although the host did not ask it to stop");
  if (status->cause) error.caused_by(std::runtime_error(text_with_causes(*status->cause)));
  if (is_from_another_rank(*status)) error.from_another_rank();
  throw error;
}

HostTable::HostTable(AbiVersion negotiated, InstanceServices* services) : table_{} {
  table_.struct_size = sizeof(table_);
  table_.abi_major = static_cast<uint16_t>(negotiated.major);
  table_.abi_minor = static_cast<uint16_t>(negotiated.minor);
  table_.impl = services;
  table_.get_service = get_service;
  table_.status_new = status_new;
  table_.status_add = status_add;
  table_.status_code = [](const chassis_status_t* status) { return status_code(status); };
  table_.status_message = status_message;
  table_.status_release = [](chassis_status_t* status) { status_release(status); };
}

}  // namespace chassis
