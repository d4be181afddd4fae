// The configuration of a run: files with `extends`, overrides and defaults, merged. Unknown keys are errors, and every
// key knows its origin.
//
// Three phases: load_config() reads, merges and checks the host's keys; check_plugin_options() checks the options of
// each of plugin_slots() when its plugin is loaded; finish() checks keys against each other and throws all problems as
// one Error. Paths in `extends` are relative to the file that contains them, all other paths to the current directory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "host/base/error.hpp"
#include "host/base/json_fwd.hpp"
#include "host/config/keys.hpp"
#include "host/config/option.hpp"
#include "host/config/read.hpp"
#include "host/config/schema.hpp"
#include "host/config/settings.hpp"
#include "host/config/value.hpp"

namespace chassis {

// A plugin that the configuration asks for.
struct PluginSlot {
  std::string key;     // the table that holds its options: "optimizer", "parallel.0", "kernels.fused"
  std::string table;   // that table in the schema: "optimizer", "parallel", "kernels"
  std::string kind;    // "optimizer", "parallel", "ops"
  std::string plugin;  // "adamw"; "" if the host has to find it (a model by its architecture)
  SourcePosition where;
};

class Config {
 public:
  // The host's keys as load_config() left them; nothing changes them later. Copies of a Config share them.
  const Settings& settings() const { return *settings_; }

  // Every key, those of plugins included.
  Json json() const;

  // In the order of the schema.
  std::vector<PluginSlot> plugin_slots() const;
  // Checks the plugin's options in the table of `slot_key` and fills in their defaults. Keeps problems for finish().
  // Throws a plugin error if an option has the name of a key of the host.
  void check_plugin_options(const std::string& slot_key, const std::string& plugin,
                            const std::vector<OptionSpec>& options);
  // The plugin's own options, defaults included.
  Json plugin_options(const std::string& slot_key) const;
  Origin plugin_option_origin(const std::string& slot_key, const std::string& option) const;
  // The tables that are now inside `table`: for "kernels", the NAME of every [kernels.NAME].
  std::vector<std::string> option_tables(std::string_view table) const;

  // Keeps a problem with `key` for finish().
  void add_problem(std::string_view key, std::string text);
  void add_problem_at(SourcePosition where, std::string text);
  // Keeps an error from elsewhere; if it has no position, it gets that of the key.
  void add_problem(std::string_view key, const Error& error);
  size_t num_problems() const { return problems_.size(); }
  void throw_if_problems() const;
  // Refuses options in slots that check_plugin_options() was not called for, checks keys against each other, and throws
  // all problems, sorted by position, followed by each hint once. A single problem keeps its exit code; several are a
  // config error if one of them is.
  void finish();

  // Removes the keys of a table that the user has not set, because other values are in force.
  void drop_defaults(std::string_view table);

  // The keys that the user has set, with changes in the form of overrides ("attention.plugin=sdpa"), as a configuration
  // that load_config() has read anew. Where a change names another plugin, options of the one before are left out
  // unless a change sets them; their keys are appended to `left_out`. Throws like apply_override().
  Config with(const std::vector<std::string>& changes, std::vector<std::string>& left_out) const;

  // The overrides that load_config() got.
  const std::vector<std::string>& overrides() const { return overrides_; }

  ConfigUse use() const { return use_; }
  // The file given to load_config.
  const std::string& file() const { return file_; }
  // Origins are not compared.
  bool same_values(const Config& other) const { return same_value(root_, other.root_); }
  // TOML with every key and its origin as a comment; parses back to the same values.
  std::string resolved_toml() const;

  // The values of `options` in "name=value" words, as a run takes them for a plugin: "betas=0.9,0.95". Words with other
  // names are ignored. Throws all problems as a config error.
  static Json read_options(const std::vector<OptionSpec>& options, const std::vector<std::string>& assignments);

 private:
  friend class CrossCheck;
  friend Config load_config(const ConfigSource& source, const std::vector<std::string>& overrides, ConfigUse use,
                            const Schema& schema);
  friend Config make_config(TomlValue root, std::string file, ConfigUse use, const Schema& schema);
  // Access to the tree by dotted keys, in which numbers index arrays: "data.train.0.path". Asking for a key that is
  // unset or of another type is a broken invariant, unless problems are pending: then it throws them.
  bool has(std::string_view key) const;
  int64_t get_int(std::string_view key) const;
  double get_double(std::string_view key) const;
  const std::string& get_string(std::string_view key) const;
  std::vector<std::string> get_list(std::string_view key) const;
  // Number of items of an array, such as "data.train"; 0 if it is absent.
  size_t count(std::string_view key) const;
  // The position of the key, or of the nearest enclosing table that is written down.
  SourcePosition position(std::string_view key) const;
  bool set_by_user(std::string_view key) const;
  const TomlValue* find(std::string_view key) const;
  TomlValue* find(std::string_view key);
  const TomlValue& at(std::string_view key, ValueType type) const;
  void check_table(TomlValue& table, const TableSpec& spec, const std::string& key);
  void check_child(TomlValue& child, TomlValue& table, const TableSpec& spec, const std::string& key, size_t& index);
  bool check_value(TomlValue& value, const OptionSpec& spec, const std::string& key);
  void fill_defaults(TomlValue& table, const TableSpec& spec, const std::string& key);
  void unknown_key(const TomlValue& child, const std::string& key, const std::vector<std::string>& known);
  void derive_defaults();
  void cross_check();
  // All problems as one error.
  std::optional<Error> all_problems() const;

  const Schema* schema_ = nullptr;
  ConfigUse use_ = ConfigUse::kTraining;
  std::string file_;
  std::vector<std::string> overrides_;
  TomlValue root_;
  std::shared_ptr<const Settings> settings_;
  struct Problem {
    SourcePosition where;
    std::string text;
    ExitCode code = ExitCode::kConfig;
    std::string hint = {};
  };
  std::vector<Problem> problems_;
  std::set<std::string, std::less<>> invalid_;                  // keys with a problem, for cross_check
  std::map<std::string, std::set<std::string>> checked_slots_;  // slot key → names of the plugin's options
};

// Overrides are "key=value". Throws at once if a file cannot be read or parsed, or an override is malformed.
Config load_config(const std::string& path, const std::vector<std::string>& overrides,
                   ConfigUse use = ConfigUse::kTraining, const Schema& schema = host_schema());
Config load_config(const ConfigSource& source, const std::vector<std::string>& overrides,
                   ConfigUse use = ConfigUse::kTraining, const Schema& schema = host_schema());
// The same for a text. Messages give `name` as the file, and `extends` is relative to its folder.
Config load_config_text(std::string_view text, const std::string& name, const std::vector<std::string>& overrides,
                        ConfigUse use = ConfigUse::kTraining, const Schema& schema = host_schema());
// The same for a tree without `extends`. `file` stands for the file in messages.
Config make_config(TomlValue root, std::string file, ConfigUse use, const Schema& schema);

// The division of a global batch.
struct BatchSizes {
  int64_t micro_batch_size = 0;   // sequences in one forward pass of one rank
  int64_t global_batch_size = 0;  // sequences in one optimizer step of all ranks
  int64_t num_microbatches = 0;   // for one rank in one step: the number of gradient accumulation steps
};
// Throws a config error with the numbers and the nearest valid ones if the global batch is not divisible.
BatchSizes batch_sizes(const Settings& settings, int64_t data_parallel_size);

}  // namespace chassis
