// Finds out what the labels of classification rows are, before a configuration exists.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "host/data/data_config.hpp"

namespace chassis {

struct LabelScan {
  std::string kind = "single";       // of objective "classify": "single", "multi" or "regression"
  uint64_t num_labels = 0;           // classes, labels or values of a row
  std::vector<std::string> classes;  // their names, sorted; empty: labels are indices
  bool has_texts = false;            // rows are plain texts, not conversations
  bool is_part = false;              // there are more rows
};

// Reads the first rows. Throws a config error at a row whose labels do not fit those before it.
LabelScan scan_labels(const std::string& path, const std::map<std::string, std::string>& columns, RowFiles* row_files);

}  // namespace chassis
