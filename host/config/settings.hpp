// The configuration as typed values: one struct for each table of the schema, one member for each of its keys. keys.cpp
// has the row of each member: its key, range, default and documentation. Options of plugins stay in Config.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "host/base/error.hpp"
#include "host/base/mesh_axes.hpp"
#include "host/config/choices.hpp"
#include "host/config/value.hpp"

namespace chassis {

// A key or a table of the configuration, and where it is written.
class ConfigEntry {
 public:
  // Dotted; numbers index arrays: "train.seq_len", "data.train.0.path".
  const std::string& key() const { return key_; }
  // The position of the entry, or of the nearest enclosing table that is written down; for error messages.
  const SourcePosition& where() const { return where_; }
  // True if a file or the command line sets it.
  bool by_user() const { return by_user_; }

 private:
  friend class SettingsReader;
  std::string key_;
  SourcePosition where_;
  bool by_user_ = false;
};

// A config error at the position of `entry`.
Error config_error(const ConfigEntry& entry, std::string message);
// The code, message and hint of `cause`, at the position of `entry`.
Error error_at(const ConfigEntry& entry, const Error& cause);

// The parts of a setting that do not depend on its type.
class SettingEntry : public ConfigEntry {
 public:
  // False for a key without a default that the user leaves out.
  bool is_set() const { return is_set_; }
  // The position of an item of a list, or of a dotted key in a free table.
  SourcePosition where_of(std::string_view item) const;
  // The key of that item: "freeze.patterns.0".
  std::string key_of(std::string_view item) const { return key() + "." + std::string(item); }

 protected:
  [[noreturn]] void throw_not_set() const;

 private:
  friend class SettingsReader;
  bool is_set_ = false;
  std::map<std::string, SourcePosition, std::less<>> items_;
  std::shared_ptr<const Error> findings_;  // problems that may explain why it is missing; NULL if loading found none
};

// The value of one key. Reading one that is not set is a broken invariant, unless loading found problems in the user's
// configuration, which are then thrown.
template <class T>
class Setting : public SettingEntry {
 public:
  const T& operator*() const {
    if (!is_set()) throw_not_set();
    return value_;
  }
  const T* operator->() const { return &**this; }
  operator const T&() const { return **this; }
  template <class Other>
  bool operator==(const Other& other) const {
    return **this == other;
  }

 private:
  friend class SettingsReader;
  T value_ = {};
};

using SettingList = Setting<std::vector<std::string>>;

// A table that names a plugin; the plugin's options are in the same table.
struct PluginTable : ConfigEntry {
  Setting<std::string> plugin;
};

// An array of tables.
template <class Table>
class SettingTables : public ConfigEntry {
 public:
  size_t size() const { return tables_.size(); }
  bool empty() const { return tables_.empty(); }
  const Table& operator[](size_t index) const { return tables_[index]; }
  auto begin() const { return tables_.begin(); }
  auto end() const { return tables_.end(); }

 private:
  friend class SettingsReader;
  std::vector<Table> tables_;
};

struct Settings {
  Setting<int64_t> schema_version;
  SettingList extends;

  struct Run : ConfigEntry {
    Setting<std::string> name;
    Setting<std::string> output_dir;
    Setting<int64_t> seed;
    Setting<int64_t> max_steps;
    Setting<double> epochs;
    Setting<ResumeFrom> resume;
    Setting<bool> strict;
    Setting<std::string> device;  // "auto", or the name of a device type
    Setting<MemoryCheck> memory_check;
    Setting<int64_t> threads;
    Setting<int64_t> replica_check_steps;
  } run;

  struct Plugins : ConfigEntry {
    SettingList path;
    SettingList trust;
    Setting<bool> locked;
    Setting<TomlValue> pin;
  } plugins;

  struct Model : ConfigEntry {
    Setting<std::string> path;
    Setting<std::string> plugin;
    Setting<TomlValue> config;
    Setting<ModelInit> init;
    Setting<double> router_aux_weight, router_z_weight;

    // The key that defines the model: path, or else config.
    const ConfigEntry& source() const { return path.is_set() ? static_cast<const ConfigEntry&>(path) : config; }
  } model;

  struct Freeze : ConfigEntry {
    SettingList patterns;
    SettingList groups;
    SettingList train_only;
  } freeze;

  struct Tokenizer : PluginTable {
    Setting<std::string> path;
    Setting<bool> force;
  } tokenizer;

  struct DataSet : ConfigEntry {
    Setting<std::string> path;
    Setting<DataFormat> format;
    Setting<DocumentSplit> documents;
    Setting<bool> split_pairs;
    Setting<TomlValue> columns;
    Setting<TomlValue> tags;
  };
  struct TrainSet : DataSet {
    Setting<double> weight;
  };
  struct EvalSet : DataSet {
    Setting<std::string> name;
  };
  struct Data : ConfigEntry {
    Setting<Packing> packing;
    Setting<bool> pad_to_seq_len;
    Setting<bool> shuffle;
    Setting<Overflow> overflow;
    Setting<std::string> cache_dir;
    Setting<bool> prefetch;
    Setting<double> eval_fraction;
    Setting<double> max_drop_ratio;
    Setting<OnRefused> on_refused;
    Setting<std::string> template_name;  // "template" is a keyword of C++
    Setting<TomlValue> template_variables;
    Setting<std::string> template_date;
    Setting<std::string> default_system;
    SettingList roles_to_train;
    Setting<bool> train_on_prompt;
    Setting<bool> last_turn_only;
    Setting<Reasoning> reasoning;
    SettingList classes;
    SettingTables<TrainSet> train;
    SettingTables<EvalSet> eval;
  } data;

  struct Train : ConfigEntry {
    Setting<Task> task;
    Setting<int64_t> seq_len;
    Setting<int64_t> micro_batch_size;
    Setting<int64_t> global_batch_size;
    Setting<NonFinite> nonfinite;
    Setting<int64_t> max_skipped_steps;
  } train;

  struct GenerationSet : ConfigEntry {
    Setting<std::string> name;
    Setting<std::string> path;
    Setting<AnswerScore> score;
    Setting<std::string> pattern;
    SettingList command;
    Setting<double> command_timeout_s;
    Setting<int64_t> max_new_tokens;
    Setting<int64_t> max_rows;
  };
  struct Eval : ConfigEntry {
    Setting<int64_t> every_steps;
    Setting<int64_t> max_batches;
    Setting<std::string> keep_best;
    Setting<std::string> metric;
    Setting<int64_t> patience;
    SettingTables<GenerationSet> generate;

    bool keeps_best() const { return keep_best.is_set() && !keep_best->empty(); }
  } eval;

  struct Precision : ConfigEntry {
    Setting<DtypeChoice> compute;
    Setting<ReduceDtype> reduce;
  } precision;

  struct Recompute : ConfigEntry {
    Setting<RecomputeMode> mode;
    Setting<int64_t> blocks;
  } recompute;

  struct Optimizer : PluginTable {
    Setting<double> lr;
    Setting<double> weight_decay;
    Setting<double> max_grad_norm;
  } optimizer;

  struct Schedule : ConfigEntry {
    Setting<Curve> name;
    Setting<int64_t> warmup_steps;
    Setting<double> min_lr_ratio;
    Setting<int64_t> decay_steps;
  } schedule;

  struct Mesh : ConfigEntry {
    std::array<Setting<int64_t>, kMeshAxes.size()> sizes;  // in the order of kMeshAxes
  } mesh;

  SettingTables<PluginTable> parallel;

  struct Comm : PluginTable {
    Setting<int64_t> timeout_s;
    Setting<int64_t> init_timeout_s;
  } comm;

  PluginTable objective;
  struct Reference : ConfigEntry {
    Setting<ReferenceMode> mode;
    Setting<std::string> path;
  } reference;

  PluginTable attention;

  struct Kernels : ConfigEntry {
    SettingList plugins;

    // The slot that holds the options of a provider.
    std::string slot_of(std::string_view provider) const { return key() + "." + std::string(provider); }
  } kernels;

  PluginTable quant;
  struct Adapter : PluginTable {
    Setting<std::string> path;
  } adapter;

  struct Checkpoint : PluginTable {
    Setting<int64_t> every_steps;
    Setting<double> every_minutes;
    Setting<int64_t> keep_last;
    Setting<int64_t> keep_every;
    Setting<CheckpointContents> contents;
    Setting<AsyncSave> async;
    Setting<OnSaveError> on_error;
    Setting<int64_t> bucket_mib;
    Setting<bool> self_test;
  } checkpoint;

  struct Export : PluginTable {
    Setting<ExportWhen> when;
    Setting<DtypeChoice> dtype;
    Setting<bool> merge;
  } exports;  // "export" is a keyword of C++

  struct Generate : ConfigEntry {
    Setting<int64_t> max_new_tokens;
    Setting<double> temperature;
    Setting<double> top_p;
    Setting<int64_t> top_k;
    Setting<double> min_p;
    Setting<double> repetition_penalty;
    SettingList stop;
    Setting<int64_t> batch_size;
    Setting<bool> full_cache;
  } generate;

  struct Sample : ConfigEntry {
    SettingList prompts;
    Setting<int64_t> every_steps;
    Setting<int64_t> max_new_tokens;
  } sample;

  struct Log : ConfigEntry {
    Setting<int64_t> every_steps;
    SettingList sinks;
    Setting<std::vector<int64_t>> trace;  // empty, or two steps
  } log;

  struct Swap : ConfigEntry {
    Setting<int64_t> at_step;
    Setting<TomlValue> set;
  };
  SettingTables<Swap> swap;
};

}  // namespace chassis
