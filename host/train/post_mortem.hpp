// The report of a rank that runs out of memory or loses other ranks: RUN/post-mortem/rank-N.json, and some lines at the
// end of the error. It works when memory has run out, and never throws: a failure is a counted warning.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "host/base/error.hpp"
#include "host/base/json_fwd.hpp"
#include "host/config/settings.hpp"
#include "host/launch/world.hpp"
#include "host/plan/memory_fit.hpp"
#include "host/service/memory.hpp"
#include "host/session/run_state.hpp"

namespace chassis {

class PostMortem {
 public:
  // All must outlive the object.
  PostMortem(RunState& state, World& world, const Settings& settings, const MemoryFit& fit);

  // Drops the tensors of the step. Adds the file's path to the error, so that it also reaches the other ranks.
  void add_out_of_memory(Error& error, const std::string& run_directory) noexcept;
  // The same for a communication error, also of another rank. Leaves other errors alone.
  void add_communication_failure(Error& error, const std::string& run_directory) noexcept;

 private:
  struct Report;
  // `failure` is NULL if the host's memory did not run out; the report then has the memory as it is now.
  Report report_memory(const std::string& error, const MemoryFailure* failure);
  void report_place(Report& report, const MemoryFailure& failure) const;
  void report_hang(Report& report);
  void compare_with_plan(Report& report);
  void advise(Report& report);
  void finish(Report& report, Error& error, const std::string& run_directory);

  RunState& state_;
  World& world_;
  const Settings& settings_;
  const MemoryFit& fit_;
  std::unique_ptr<char[]> reserve_;  // freed first, so that the report has some memory
  bool is_done_ = false;
};

}  // namespace chassis
