// The plugins of kind "rows" that read data files, chosen by the names of the files. Checks everything that they
// return, so that errors name the plugin, or the file and the row.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chassis/kind/rows.h"
#include "host/data/row_files.hpp"
#include "host/plugin/registry.hpp"

namespace chassis {

class PluginRows final : public RowFiles {
 public:
  // `registry` outlives this, and this the readers. Loads no library. A plugin that lies outside the program's own
  // folder reads files only if the user names it, by a pin.
  explicit PluginRows(PluginRegistry& registry);

  bool reads(std::string_view path) const override { return !member_of(path).empty(); }
  std::vector<std::string> endings() const override;
  std::string prepare(const std::string& path) override;
  std::unique_ptr<RowReader> open(const std::string& path) const override;

 private:
  // Empty if there is none.
  std::string member_of(std::string_view path) const;

  PluginRegistry& registry_;
  std::vector<std::pair<std::string, std::string>> patterns_;  // "*.parquet" and the member
  std::map<std::string, std::unique_ptr<Instance>> instances_;
};

// Rows of one file, read in blocks of a bounded size. `instance` is active, and outlives the reader.
std::unique_ptr<RowReader> open_plugin_rows(const Instance& instance, const std::string& path);

}  // namespace chassis
