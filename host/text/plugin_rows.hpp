// The plugins of kind "rows" that read data files, chosen by the names of the files. Checks everything that they
// return, so that errors name the plugin, or the file and the row.
#pragma once

#include <cstdint>
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

// A reader may count a line end that the last line of a file lacks.
inline constexpr uint64_t kMaxLineEndBytes = 2;

class PluginRows final : public RowFiles {
 public:
  // `registry` must outlive this object, and this object the readers. Loads no library. A plugin that lies outside the
  // program's own folder reads files only if the user names it, by a pin.
  explicit PluginRows(PluginRegistry& registry);

  bool reads(std::string_view path) const override { return !member_of(path).empty(); }
  std::vector<std::string> endings() const override;
  std::string prepare(const std::string& path, const UsedColumns& columns) override;
  std::unique_ptr<RowReader> open(const std::string& path, const UsedColumns& columns) const override;
  std::string hint_of_unused(std::string_view path) const override;

 private:
  struct Pattern {
    std::string text;    // "*.parquet"
    std::string member;  // id
    std::string file, library;
  };
  // The first that matches the name of the file; NULL if there is none.
  static const Pattern* find(const std::vector<Pattern>& patterns, std::string_view path);
  // Empty if there is none.
  std::string member_of(std::string_view path) const;

  PluginRegistry& registry_;
  std::vector<Pattern> patterns_;
  std::vector<Pattern> unused_;  // patterns of plugins that the user has not pinned
  // The columns' names, one per line; empty: all columns.
  static std::string lines_of(const UsedColumns& columns);
  std::unique_ptr<Instance> instance_of(const std::string& member, const std::string& columns);
  std::map<std::string, std::unique_ptr<Instance>> instances_;  // by member and columns
};

// Rows of one file, read in blocks of a bounded size. `instance` is active, and outlives the reader.
std::unique_ptr<RowReader> open_plugin_rows(const Instance& instance, const std::string& path);

}  // namespace chassis
