// Questions to the drivers of host/base/device_types.cpp.
#include "host/launch/gpus.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include "host/base/end_process.hpp"

namespace chassis {

int num_visible_by_copy(const DeviceSpec& spec) {
  if (!spec.accelerator) return 0;
  const pid_t copy = ::fork();
  if (copy == 0) end_process(spec.accelerator->num_visible());
  int status = 0;
  return copy > 0 && ::waitpid(copy, &status, 0) == copy && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

std::optional<double> gpu_temperature(int index) {
  for (const DeviceSpec& spec : device_specs())
    if (spec.accelerator)
      if (const std::optional<double> celsius = spec.accelerator->temperature(index)) return celsius;
  return std::nullopt;
}

}  // namespace chassis
