// Fills Settings from the tree. Each key is written here once.
#include "host/config/settings.hpp"

#include <type_traits>

namespace chassis {

Error config_error(const ConfigEntry& entry, std::string message) {
  return {ExitCode::kConfig, entry.where(), std::move(message)};
}

Error error_at(const ConfigEntry& entry, const Error& cause) {
  return Error(cause.code(), entry.where(), cause.message()).hint(cause.hint_text());
}

SourcePosition SettingEntry::where_of(std::string_view item) const {
  const auto found = items_.find(item);
  return found == items_.end() ? where() : found->second;
}

void SettingEntry::throw_not_set() const {
  if (findings_) throw Error(*findings_);
  throw internal_error("the configuration has no '" + key() + "'");
}

namespace {

template <class T>
constexpr OptionType option_type_of() {
  if constexpr (std::is_same_v<T, bool>)
    return OptionType::kBool;
  else if constexpr (std::is_same_v<T, int64_t>)
    return OptionType::kInt;
  else if constexpr (std::is_same_v<T, double>)
    return OptionType::kFloat;
  else if constexpr (std::is_same_v<T, std::string>)
    return OptionType::kString;
  else if constexpr (std::is_same_v<T, std::vector<std::string>>)
    return OptionType::kStringList;
  else if constexpr (std::is_same_v<T, std::vector<int64_t>>)
    return OptionType::kIntList;
  else
    return OptionType::kTable;
}

// Fills `out`, and returns whether `value` has its type.
bool convert(const Value& value, bool& out) {
  out = value.boolean;
  return value.type == ValueType::kBool;
}
bool convert(const Value& value, int64_t& out) {
  out = value.integer;
  return value.type == ValueType::kInt;
}
bool convert(const Value& value, double& out) {
  out = value.type == ValueType::kInt ? static_cast<double>(value.integer) : value.number;
  return value.type == ValueType::kFloat || value.type == ValueType::kInt;
}
bool convert(const Value& value, std::string& out) {
  out = value.string;
  return value.type == ValueType::kString;
}
bool convert(const Value& value, std::vector<std::string>& out) {
  for (const Value& item : value.children) out.push_back(item.string);
  return value.is_array();
}
bool convert(const Value& value, std::vector<int64_t>& out) {
  for (const Value& item : value.children) out.push_back(item.integer);
  return value.is_array();
}
bool convert(const Value& value, Value& out) {
  out = value;
  return value.is_table();
}

}  // namespace

// Reads the keys of one table of the tree.
class SettingsReader {
 public:
  struct Source {
    const Value& root;
    const std::string& file;
    std::shared_ptr<const Error> findings;
    std::vector<ReadKey>* read;
  };
  explicit SettingsReader(const Source& source) : source_(source) {}

  SettingsReader table(ConfigEntry& table, std::string_view name) const {
    SettingsReader inside(source_);
    inside.prefix_ = locate(table, name).key() + ".";
    return inside;
  }

  // Calls `fill` with the reader and the struct of each table.
  template <class Table, class Fill>
  void tables(SettingTables<Table>& tables, std::string_view name, const Fill& fill) const {
    const SettingsReader inside = table(tables, name);
    const Value* array = find_value(source_.root, tables.key());
    tables.tables_.resize(array != nullptr && array->is_array() ? array->children.size() : 0);
    for (size_t i = 0; i < tables.size(); ++i)
      fill(inside.table(tables.tables_[i], std::to_string(i)), tables.tables_[i]);
  }

  template <class T>
  void read(Setting<T>& setting, std::string_view name) const {
    locate(setting, name);
    setting.findings_ = source_.findings;
    if (source_.read) source_.read->push_back({setting.key(), option_type_of<T>(), &setting});
    const Value* value = find_value(source_.root, setting.key());
    setting.is_set_ = value != nullptr && convert(*value, setting.value_);
    if (setting.is_set_) locate_items(*value, setting, "");
  }

 private:
  ConfigEntry& locate(ConfigEntry& entry, std::string_view name) const {
    entry.key_ = prefix_ + std::string(name);
    entry.where_ = position_of(source_.root, entry.key_, source_.file);
    const Value* value = find_value(source_.root, entry.key_);
    entry.by_user_ = value != nullptr && value->origin.by_user();
    return entry;
  }

  void locate_items(const Value& value, SettingEntry& setting, const std::string& prefix) const {
    for (size_t i = 0; i < value.children.size(); ++i) {
      const Value& child = value.children[i];
      const std::string item = prefix + (value.is_array() ? std::to_string(i) : child.name);
      setting.items_[item] = position_of(source_.root, setting.key_of(item), source_.file);
      locate_items(child, setting, item + ".");
    }
  }

  const Source& source_;
  std::string prefix_;
};

namespace {

using Reader = SettingsReader;

void read_run(const Reader& in, Settings::Run& run) {
  in.read(run.name, "name");
  in.read(run.output_dir, "output_dir");
  in.read(run.seed, "seed");
  in.read(run.max_steps, "max_steps");
  in.read(run.epochs, "epochs");
  in.read(run.resume, "resume");
  in.read(run.strict, "strict");
  in.read(run.device, "device");
  in.read(run.memory_check, "memory_check");
  in.read(run.threads, "threads");
  in.read(run.replica_check_steps, "replica_check_steps");
}

void read_plugins(const Reader& in, Settings::Plugins& plugins) {
  in.read(plugins.path, "path");
  in.read(plugins.trust, "trust");
  in.read(plugins.locked, "locked");
  in.read(plugins.pin, "pin");
}

void read_model(const Reader& in, Settings::Model& model) {
  in.read(model.path, "path");
  in.read(model.plugin, "plugin");
  in.read(model.config, "config");
  in.read(model.init, "init");
}

void read_freeze(const Reader& in, Settings::Freeze& freeze) {
  in.read(freeze.patterns, "patterns");
  in.read(freeze.groups, "groups");
  in.read(freeze.train_only, "train_only");
}

void read_plugin(const Reader& in, PluginTable& table) { in.read(table.plugin, "plugin"); }

void read_tokenizer(const Reader& in, Settings::Tokenizer& tokenizer) {
  read_plugin(in, tokenizer);
  in.read(tokenizer.path, "path");
  in.read(tokenizer.force, "force");
}

void read_data_set(const Reader& in, Settings::DataSet& set) {
  in.read(set.path, "path");
  in.read(set.format, "format");
  in.read(set.documents, "documents");
  in.read(set.columns, "columns");
  in.read(set.tags, "tags");
}

void read_data(const Reader& in, Settings::Data& data) {
  in.read(data.packing, "packing");
  in.read(data.pad_to_seq_len, "pad_to_seq_len");
  in.read(data.shuffle, "shuffle");
  in.read(data.overflow, "overflow");
  in.read(data.cache_dir, "cache_dir");
  in.read(data.prefetch, "prefetch");
  in.read(data.eval_fraction, "eval_fraction");
  in.read(data.max_drop_ratio, "max_drop_ratio");
  in.read(data.on_refused, "on_refused");
  in.read(data.template_name, "template");
  in.read(data.template_variables, "template_variables");
  in.read(data.template_date, "template_date");
  in.read(data.default_system, "default_system");
  in.read(data.roles_to_train, "roles_to_train");
  in.read(data.train_on_prompt, "train_on_prompt");
  in.read(data.last_turn_only, "last_turn_only");
  in.read(data.reasoning, "reasoning");
  in.tables(data.train, "train", [](const Reader& inside, Settings::TrainSet& set) {
    read_data_set(inside, set);
    inside.read(set.weight, "weight");
  });
  in.tables(data.eval, "eval", [](const Reader& inside, Settings::EvalSet& set) {
    read_data_set(inside, set);
    inside.read(set.name, "name");
  });
}

void read_train(const Reader& in, Settings::Train& train) {
  in.read(train.task, "task");
  in.read(train.seq_len, "seq_len");
  in.read(train.micro_batch_size, "micro_batch_size");
  in.read(train.global_batch_size, "global_batch_size");
  in.read(train.nonfinite, "nonfinite");
  in.read(train.max_skipped_steps, "max_skipped_steps");
}

void read_eval(const Reader& in, Settings::Eval& eval) {
  in.read(eval.every_steps, "every_steps");
  in.read(eval.max_batches, "max_batches");
  in.read(eval.keep_best, "keep_best");
  in.read(eval.patience, "patience");
}

void read_precision(const Reader& in, Settings::Precision& precision) {
  in.read(precision.compute, "compute");
  in.read(precision.reduce, "reduce");
}

void read_recompute(const Reader& in, Settings::Recompute& recompute) {
  in.read(recompute.mode, "mode");
  in.read(recompute.blocks, "blocks");
}

void read_optimizer(const Reader& in, Settings::Optimizer& optimizer) {
  read_plugin(in, optimizer);
  in.read(optimizer.lr, "lr");
  in.read(optimizer.weight_decay, "weight_decay");
  in.read(optimizer.max_grad_norm, "max_grad_norm");
}

void read_schedule(const Reader& in, Settings::Schedule& schedule) {
  in.read(schedule.name, "name");
  in.read(schedule.warmup_steps, "warmup_steps");
  in.read(schedule.min_lr_ratio, "min_lr_ratio");
  in.read(schedule.decay_steps, "decay_steps");
}

void read_mesh(const Reader& in, Settings::Mesh& mesh) {
  for (size_t i = 0; i < kMeshAxes.size(); ++i) in.read(mesh.sizes[i], kMeshAxes[i].name);
}

void read_comm(const Reader& in, Settings::Comm& comm) {
  read_plugin(in, comm);
  in.read(comm.timeout_s, "timeout_s");
  in.read(comm.init_timeout_s, "init_timeout_s");
}

void read_kernels(const Reader& in, Settings::Kernels& kernels) { in.read(kernels.plugins, "plugins"); }

void read_adapter(const Reader& in, Settings::Adapter& adapter) {
  read_plugin(in, adapter);
  in.read(adapter.path, "path");
}

void read_checkpoint(const Reader& in, Settings::Checkpoint& checkpoint) {
  read_plugin(in, checkpoint);
  in.read(checkpoint.every_steps, "every_steps");
  in.read(checkpoint.every_minutes, "every_minutes");
  in.read(checkpoint.keep_last, "keep_last");
  in.read(checkpoint.keep_every, "keep_every");
  in.read(checkpoint.contents, "contents");
  in.read(checkpoint.async, "async");
  in.read(checkpoint.on_error, "on_error");
  in.read(checkpoint.bucket_mib, "bucket_mib");
  in.read(checkpoint.self_test, "self_test");
}

void read_export(const Reader& in, Settings::Export& exports) {
  read_plugin(in, exports);
  in.read(exports.when, "when");
  in.read(exports.dtype, "dtype");
  in.read(exports.merge, "merge");
}

void read_generate(const Reader& in, Settings::Generate& generate) {
  in.read(generate.max_new_tokens, "max_new_tokens");
  in.read(generate.temperature, "temperature");
  in.read(generate.top_p, "top_p");
  in.read(generate.top_k, "top_k");
  in.read(generate.min_p, "min_p");
  in.read(generate.repetition_penalty, "repetition_penalty");
  in.read(generate.stop, "stop");
}

void read_sample(const Reader& in, Settings::Sample& sample) {
  in.read(sample.prompts, "prompts");
  in.read(sample.every_steps, "every_steps");
  in.read(sample.max_new_tokens, "max_new_tokens");
}

void read_log(const Reader& in, Settings::Log& log) {
  in.read(log.every_steps, "every_steps");
  in.read(log.sinks, "sinks");
  in.read(log.trace, "trace");
}

}  // namespace

std::unique_ptr<const Settings> read_settings(const Value& root, const std::string& file,
                                              std::shared_ptr<const Error> findings, std::vector<ReadKey>* read) {
  auto settings = std::make_unique<Settings>();
  Settings& s = *settings;
  const Reader::Source source{root, file, std::move(findings), read};
  const Reader in(source);
  in.read(s.schema_version, "schema_version");
  in.read(s.extends, "extends");
  read_run(in.table(s.run, "run"), s.run);
  read_plugins(in.table(s.plugins, "plugins"), s.plugins);
  read_model(in.table(s.model, "model"), s.model);
  read_freeze(in.table(s.freeze, "freeze"), s.freeze);
  read_tokenizer(in.table(s.tokenizer, "tokenizer"), s.tokenizer);
  read_data(in.table(s.data, "data"), s.data);
  read_train(in.table(s.train, "train"), s.train);
  read_eval(in.table(s.eval, "eval"), s.eval);
  read_precision(in.table(s.precision, "precision"), s.precision);
  read_recompute(in.table(s.recompute, "recompute"), s.recompute);
  read_optimizer(in.table(s.optimizer, "optimizer"), s.optimizer);
  read_schedule(in.table(s.schedule, "schedule"), s.schedule);
  read_mesh(in.table(s.mesh, "mesh"), s.mesh);
  in.tables(s.parallel, "parallel", read_plugin);
  read_comm(in.table(s.comm, "comm"), s.comm);
  read_plugin(in.table(s.attention, "attention"), s.attention);
  read_kernels(in.table(s.kernels, "kernels"), s.kernels);
  read_plugin(in.table(s.quant, "quant"), s.quant);
  read_adapter(in.table(s.adapter, "adapter"), s.adapter);
  read_checkpoint(in.table(s.checkpoint, "checkpoint"), s.checkpoint);
  read_export(in.table(s.exports, "export"), s.exports);
  read_generate(in.table(s.generate, "generate"), s.generate);
  read_sample(in.table(s.sample, "sample"), s.sample);
  read_log(in.table(s.log, "log"), s.log);
  return settings;
}

}  // namespace chassis
