// Exceptions on this side, statuses on the other: Failure holds what a status holds, guard() turns any exception into a
// status, check() turns a status into a Failure.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "chassis/host.h"
#include "chassis/str.hpp"

CHASSIS_SDK_BEGIN

class Failure : public std::exception {
 public:
  // throw Failure(CHASSIS_INVALID_ARGUMENT, "rope type '", type, "' is not supported");
  template <typename... Parts>
  explicit Failure(int32_t code, const Parts&... parts) : code_(code), message_(join(parts...)) {}

  // From a status that a host function returned; keeps its causes and facts. Takes over `status`.
  Failure(const chassis_host_t* host, CHASSIS_STOLEN chassis_status_t* status)
      : code_(host->status_code(status)),
        message_(text_of(host->status_message(status))),
        received_(std::make_shared<Received>(host, status)) {}

  // Attaches a fact, such as ("tensor", "lm_head.weight").
  Failure& with(std::string key, std::string value) {
    facts_.emplace_back(std::move(key), std::move(value));
    return *this;
  }

  int32_t code() const noexcept { return code_; }
  const char* what() const noexcept override { return message_.c_str(); }

  // Converts this to a status; a status that came from the host is returned unchanged, with the facts added since.
  CHASSIS_OWNED chassis_status_t* to_status(const chassis_host_t* host) const noexcept {
    chassis_status_t* status = received_ ? std::exchange(received_->status, nullptr) : nullptr;
    if (status == nullptr) status = host->status_new(host, code_, str(message_), nullptr);
    for (const auto& [key, value] : facts_) host->status_add(status, str(key), str(value));
    return status;
  }

 private:
  struct Received {
    Received(const chassis_host_t* host, chassis_status_t* status) : host(host), status(status) {}
    Received(const Received&) = delete;
    Received& operator=(const Received&) = delete;
    ~Received() {
      if (status != nullptr) host->status_release(status);
    }
    const chassis_host_t* host;
    chassis_status_t* status;
  };

  int32_t code_;
  std::string message_;
  std::vector<std::pair<std::string, std::string>> facts_;
  std::shared_ptr<Received> received_;
};

// The user's configuration or data is wrong.
template <typename... Parts>
[[noreturn]] void fail_invalid(const Parts&... parts) {
  throw Failure(CHASSIS_INVALID_ARGUMENT, parts...);
}

// For claim(): leaves the node to the next provider and gives the reason.
template <typename... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  throw Failure(CHASSIS_UNIMPLEMENTED, parts...);
}

// Throws the status unless it is NULL.
inline void check(const chassis_host_t* host, CHASSIS_STOLEN chassis_status_t* status) {
  if (status != nullptr) throw Failure(host, status);
}

// Runs body and returns any exception as a status.
template <typename Body>
chassis_status_t* guard(const chassis_host_t* host, Body&& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const Failure& failure) {
    return failure.to_status(host);
  } catch (const std::bad_alloc&) {
    return host->status_new(host, CHASSIS_RESOURCE_EXHAUSTED, str("out of memory"), nullptr);
  } catch (const std::exception& error) {
    return host->status_new(host, CHASSIS_INTERNAL, str(error.what()), nullptr);
  } catch (...) {
    return host->status_new(host, CHASSIS_INTERNAL, str("an exception of unknown type"), nullptr);
  }
}

CHASSIS_SDK_END
