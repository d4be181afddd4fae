// The parts of a run that opening its data sets needs.
#pragma once

#include <optional>

#include "host/compile/layout_pass.hpp"
#include "host/config/settings.hpp"
#include "host/data/row_files.hpp"
#include "host/data/sequences.hpp"
#include "host/graph/program.hpp"
#include "host/text/plugin_tokenizer.hpp"

namespace chassis {

// The objects with which data sets are opened; they outlive the data sets.
struct DataNeeds {
  const Settings& settings;
  const Program& program;                      // its fields and vocabulary
  const PluginTokenizer* tokenizer = nullptr;  // NULL: none; a data set of text is an error
  bool first_on_machine = true;                // prepares the files that other ranks of the machine read
  RowFiles* row_files = nullptr;               // the plugins that read data files; NULL: none
  const ProgramLayout* layout = nullptr;       // how axes divide positions; NULL: none does
  std::optional<SequenceNeeds> sequences = {};  // of the run's objective
};

}  // namespace chassis
