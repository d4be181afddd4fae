// Which tables and keys the host understands. A table may also be the slot of a plugin, whose own options stand beside
// the host's keys and are checked once the plugin is loaded.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "host/config/option.hpp"

namespace chassis {

// How the members of a kind are chosen in a table.
enum class SlotForm {
  kNone,  // not a slot
  kOne,   // plugin = "name", options beside it
  kList,  // a list of names in `list_key`; the options of NAME stand in [table.NAME]
};

struct TableSpec {
  std::string name;          // "" is the top level; "data.train" is inside "data"
  bool is_array = false;     // [[name]]
  bool is_optional = false;  // absent unless the user writes it: no defaults are filled in
  SlotForm slot = SlotForm::kNone;
  std::string kind = {};                   // of plugin
  std::string list_key = {};               // kList
  std::string doc = {};
  std::vector<OptionSpec> keys = {};

  const OptionSpec* find(std::string_view key) const;
};

struct Schema {
  std::vector<TableSpec> tables;
  const TableSpec* find(std::string_view table) const;
};

// What a configuration is read for: training, evaluation, generation, or weights that go from one directory to another.
enum class ConfigUse { kTraining, kEvaluation, kGeneration, kWeights };

// False if `use` does without a key or list of tables that the host otherwise insists on. What is written down is
// checked all the same.
bool is_needed(std::string_view key, ConfigUse use);

// What is agreed on and not built yet: refused where it is written, and offered nowhere.
struct Unavailable {
  std::string_view key;      // "train.task"; a table: "quant"
  std::string_view value;    // of a choice; empty: the whole key or table
  std::string_view instead;  // what there is
};
std::span<const Unavailable> unavailable();
// The whole of a key or table is unavailable.
bool is_unavailable(std::string_view key);

// The choices of a key that are available.
std::vector<std::string> offered_choices(std::string_view key, const OptionSpec& spec);

// The keys of a table that are available.
std::vector<std::string> offered_keys(const std::string& table, const std::vector<OptionSpec>& specs);

// "TABLE.KEY"; KEY alone at the top level, whose name is empty.
std::string joined_key(const std::string& table, const std::string& key);
// "data.train.0.path" as "data.train.path": what a table or key is called in a schema.
std::string without_indexes(const std::string& key);
// The dotted name of a key that is called `key`, in whatever table; empty if there is none or several.
std::string key_elsewhere(const Schema& schema, const std::string& key);

// Everything that the host understands.
const Schema& host_schema();

// The only version of the schema so far.
constexpr int kSchemaVersion = 1;

}  // namespace chassis
