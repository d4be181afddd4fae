// Percent of light: the least time in which this machine could compute a step, as a share of the time that the run
// took. The least time is that of the FLOPs at the speed of the best product, or that of the bytes at the speed of the
// best copy, whichever is longer.
#pragma once

#include <functional>
#include <string>

#include "host/base/json_fwd.hpp"
#include "host/report/run_reader.hpp"
#include "host/service/machine_limits.hpp"

namespace chassis {

struct Light {
  std::string unknown;  // why there is no percentage; else empty
  double percent = 0.0;
  bool is_by_copies = false;  // the bytes take longer than the FLOPs
  MachineLimits limits;
  std::string dtype;  // of the products
  int threads = 0;
};

// `device_name` is this machine's processor; `measure` measures it with as many threads as the run had. Only runs of
// one rank on a processor of the same name are compared.
using MeasureLimits = std::function<MachineLimits(Dtype dtype, int threads)>;
Light light_of(const RunReader& run, const std::string& device_name, const MeasureLimits& measure);

// A line for the summary of the run.
std::string light_text(const Light& light);
Json light_json(const Light& light);

}  // namespace chassis
