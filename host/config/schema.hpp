// The form of the tables and keys that the host understands; keys.hpp has them all. A table may also be the slot of a
// plugin. It then holds the plugin's options too, which are checked when the plugin is loaded.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "host/config/option.hpp"

namespace chassis {

// The ways in which a table chooses the members of a kind.
enum class SlotForm {
  kNone,  // not a slot
  kOne,   // plugin = "name", options in the same table
  kList,  // a list of names in `list_key`; the options of NAME are in [table.NAME]
};

struct TableSpec {
  std::string name;          // "" is the top level; "data.train" is inside "data"
  bool is_array = false;     // [[name]]
  bool is_optional = false;  // absent unless the user writes it: no defaults are filled in
  SlotForm slot = SlotForm::kNone;
  std::string kind = {};                   // the plugin's kind
  std::string list_key = {};               // kList
  std::vector<std::string> built_in = {};  // kList: names in the list that are not plugins but parts of the host
  Change change = Change::kRestart;        // of the keys that say nothing else, and of the options of plugins
  std::string doc = {};
  std::vector<OptionSpec> keys = {};

  const OptionSpec* find(std::string_view key) const;
};

struct Schema {
  std::vector<TableSpec> tables;
  const TableSpec* find(std::string_view table) const;
};

// The purpose for which a configuration is read: training, looking at its data, evaluation, generation, copying weights
// to another directory, or scoring rows of another file.
enum class ConfigUse { kTraining, kData, kEvaluation, kGeneration, kWeights, kScoring };

// False if `use` does not need a key or list of tables that is required otherwise. If it is written down, it is checked
// anyway.
bool is_needed(std::string_view key, ConfigUse use);

// A key or choice that is planned but not implemented: refused if it is written down, and never suggested.
struct Unavailable {
  std::string_view key;      // "train.task"; a table: "quant"
  std::string_view value;    // the choice; empty: the whole key or table
  std::string_view instead;  // the available alternative
};
std::span<const Unavailable> unavailable();
// True if the whole key or table is unavailable.
bool is_unavailable(std::string_view key);

// The choices of a key that are available.
std::vector<std::string> offered_choices(std::string_view key, const OptionSpec& spec);

// The keys of a table that are available.
std::vector<std::string> offered_keys(const std::string& table, const std::vector<OptionSpec>& specs);

// How a run that is training takes another value of this key, or of this option of a plugin.
Change change_of(const Schema& schema, const std::string& key);

// "TABLE.KEY"; KEY alone at the top level, whose name is empty.
std::string joined_key(const std::string& table, const std::string& key);
// "data.train.0.path" as "data.train.path": the name of a table or key in a schema.
std::string without_indexes(const std::string& key);
// The dotted name of the key called `key`, in any table; empty if there is none, or more than one.
std::string key_elsewhere(const Schema& schema, const std::string& key);

// The only version of the schema so far.
constexpr int kSchemaVersion = 1;

}  // namespace chassis
