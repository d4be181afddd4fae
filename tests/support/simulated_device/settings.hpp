// Settings of the simulated devices, from the environment.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>
#include <string_view>

namespace simulated_device {

inline int64_t number_from(const char* variable, int64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text != nullptr && *text != '\0' ? std::strtoll(text, nullptr, 10) : otherwise;
}

inline int num_devices() { return static_cast<int>(number_from("SIMULATED_DEVICES", 2)); }

struct Settings {
  uint64_t memory_bytes = static_cast<uint64_t>(number_from("SIMULATED_DEVICE_MIB", 2048)) << 20;  // of each device
  // A task of a stream begins after a random delay of at most so long; 0: at once.
  int64_t max_delay_us = number_from("SIMULATED_DEVICE_DELAY_US", 300);
  int64_t seed = number_from("SIMULATED_DEVICE_SEED", 1);
};

inline const Settings& settings() {
  static const Settings settings;
  return settings;
}

// SIMULATED_DEVICE_FAULT="NAME N". The names are:
//   allocation: allocation number N, counted from 1, is out of memory.
//   host_wait: from number N on, the host does not wait for what it reads from the device.
class Fault {
 public:
  Fault() {
    if (const char* const text = std::getenv("SIMULATED_DEVICE_FAULT")) std::istringstream(text) >> name_ >> number_;
  }
  bool is_exactly(std::string_view name) { return name == name_ && ++num_calls_ == number_; }
  bool has_begun(std::string_view name) { return name == name_ && ++num_calls_ >= number_; }

 private:
  std::string name_;
  int64_t number_ = 0;
  std::atomic<int64_t> num_calls_ = 0;
};

inline Fault& fault() {
  static Fault fault;
  return fault;
}

}  // namespace simulated_device
