// The objective that a configuration names, and what it needs from program and data.
#pragma once

#include <memory>
#include <optional>

#include "host/compile/objective_pass.hpp"
#include "host/config/config.hpp"
#include "host/objective/objective_plugin.hpp"
#include "host/session/run_plugins.hpp"

namespace chassis {

class RunObjective {
 public:
  // Throws a config error if the plugin's objective does not fit train.task or the formats of the data, or if a key of
  // [reference] or eval.metric has no effect with it.
  RunObjective(const Settings& settings, RunPlugins& plugins);
  RunObjective(const RunObjective&) = delete;
  RunObjective& operator=(const RunObjective&) = delete;

  const ObjectivePlugin& plugin() const { return plugin_; }
  const ObjectiveDesc& desc() const { return plugin_.description(); }
  ObjectiveRequest request() const;
  SequenceNeeds needs() const { return needs_of(desc()); }
  bool needs_reference() const { return desc().needs_reference(); }

 private:
  std::unique_ptr<Instance> instance_;
  ObjectivePlugin plugin_;
};

}  // namespace chassis
