// The data that a configuration names: sets, options, and the folders that a run writes to.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "host/config/settings.hpp"
#include "host/data/eval_data.hpp"
#include "host/data/train_data.hpp"
#include "host/program/program.hpp"
#include "host/session/plugin_tokenizer.hpp"

namespace chassis {

// What data sets are read by. All of it outlives them.
struct DataNeeds {
  const Settings& settings;
  const Program& program;                      // its fields and vocabulary
  const PluginTokenizer* tokenizer = nullptr;  // NULL: none, and texts are refused
  bool first_on_machine = true;                // prepares what other ranks of the machine read
};

// Prepares the data; shows progress. `poll` is called now and then and may throw.
std::unique_ptr<TrainData> open_train_data(const DataNeeds& needs, const std::function<void()>& poll = {});
std::vector<std::unique_ptr<EvalData>> open_eval_data(const DataNeeds& needs, const std::function<void()>& poll = {});
// Throws a config error if a data set has no file, or one that cannot be opened; reads nothing.
void find_data(const DataNeeds& needs);

// Of [[data.eval]] number `index`, for metrics.
std::string eval_name(const Settings::Data& data, size_t index);
// Throws a storage error if run.output_dir or data.cache_dir cannot be made or written into; writes nothing.
void check_folders(const Settings& settings);

}  // namespace chassis
