// Opens the data sets that a configuration names, and checks the folders that a run writes to.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "host/compile/layout_pass.hpp"
#include "host/config/settings.hpp"
#include "host/data/eval_data.hpp"
#include "host/data/train_data.hpp"
#include "host/graph/program.hpp"
#include "host/session/data_needs.hpp"
#include "host/text/plugin_tokenizer.hpp"

namespace chassis {

// The options of [data] with the training sets, and the evaluation sets: those of [[data.eval]], then the parts of
// [[data.train]] that data.eval_fraction takes. Reads no data except the chat template.
DataConfig data_config(const DataNeeds& needs);
// The id of an op of a plugin that may mix positions, so that padding may change its results; empty if there is none.
// If there is one, no padding is left out.
std::string op_that_may_read_padding(const Program& program);
// Multiples of this are lengths that the axes divide without padding, and kernels divide into whole vectors. NULL: no
// axis divides anything.
int64_t multiple_of_axes(const ProgramLayout* layout);
// DataConfig::length_multiple for the axes of `needs`.
int64_t length_multiple(const DataNeeds& needs);
std::vector<DataSetConfig> eval_set_configs(const DataNeeds& needs);

// Prepares the data and shows progress. `poll` is called regularly meanwhile and may throw.
std::unique_ptr<TrainData> open_train_data(const DataNeeds& needs, const std::function<void()>& poll = {});
std::unique_ptr<TrainData> open_train_data(const DataNeeds& needs, const DataConfig& data,
                                           const std::function<void()>& poll = {});
std::vector<std::unique_ptr<EvalData>> open_eval_data(const DataNeeds& needs, const std::function<void()>& poll = {});
// Throws a config error if a data set has no file, or a file that cannot be opened; reads nothing.
void find_data(const DataNeeds& needs);
// Tokenizes the first row of each set. Throws if the row does not fit the format or the chat template. Plain text
// always fits, so its row is only read.
void try_first_rows(const DataNeeds& needs);

// The name in metrics of set number `index` of open_eval_data().
std::string eval_name(const Settings::Data& data, size_t index);
// Throws a storage error if run.output_dir or data.cache_dir cannot be created or written to; writes nothing.
void check_folders(const Settings& settings);

// The files of all data sets.
std::vector<std::string> data_source_files(const DataNeeds& needs);

}  // namespace chassis
