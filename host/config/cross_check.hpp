// Rules about keys that depend on each other: contradictions, and keys without effect. A key without effect is a
// problem only if it differs from its default: a resolved configuration sets every key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/base/error.hpp"
#include "host/config/choices.hpp"
#include "host/config/config.hpp"
#include "host/config/value.hpp"

namespace chassis {

struct TaskSpec;

class CrossCheck {
 public:
  // Problems are added to `config`, which outlives this.
  explicit CrossCheck(Config& config) : config_(config) {}
  void run();

 private:
  // In cross_check.cpp.
  void check_version();
  void check_availability();
  void check_length();
  void check_plugins();
  void check_name();
  void check_resume();
  void check_folders();
  void check_pins();
  void check_precision();
  void check_model();
  void check_freeze();
  void check_adapter();
  void check_quant();
  void check_skipped_steps();
  void check_mesh();
  void check_batches();
  void check_recompute();
  void check_schedule();
  void check_export();
  void check_generation();
  void check_trace();
  void check_plugin_lists();
  // In data_rules.cpp.
  void check_presence_of_data();
  void check_tokenizer();
  void check_data_sets();
  void check_data_set(const std::string& key);  // "data.train.0"
  void check_documents(const std::string& key);
  void check_split_pairs(const std::string& key);
  void check_evaluation();
  void check_best();
  // In generation_rules.cpp.
  void check_generation_sets();
  void check_generation_set(const std::string& key);  // "eval.generate.0"
  void check_set_name(const std::string& key);
  // In data_task.cpp.
  void check_data_task();
  void check_formats(const TaskSpec& task);
  void check_objective(const TaskSpec& task);
  void check_classes();
  void check_other_task();
  void check_packing();

  // The sizes of the axes that divide the batch. A size that is the rest counts as 1.
  int64_t data_parallel_size() const;
  int64_t max_steps() const;  // 0: unknown
  bool has_eval_part() const;
  bool lacks_tokenizer() const;
  std::string tokenizer_advice() const;
  // True if the user sets a key of [data] to another value than its default.
  bool is_changed(const std::string& key) const;
  // How to get a tokenizer if all data is text.
  std::string text_tokenizer_advice() const;
  // True also for a path that cannot be examined, which is reported as a problem here.
  bool exists(const std::string& key);

  bool has(std::string_view key) const { return config_.has(key); }
  bool is_invalid(std::string_view key) const { return config_.invalid_.contains(key); }
  // True for a key that is set and has no problem.
  bool valid(std::string_view key) const { return has(key) && !is_invalid(key); }
  bool both(std::string_view a, std::string_view b) const { return valid(a) && valid(b); }
  bool is(std::string_view key, std::string_view text) const { return valid(key) && get_string(key) == text; }
  template <ChoiceType T>
  bool is(std::string_view key, T choice) const {
    return is(key, to_text(choice));
  }
  bool is_true(std::string_view key) const { return valid(key) && find(key)->boolean; }
  bool set_by_user(std::string_view key) const { return config_.set_by_user(key); }
  int64_t get_int(std::string_view key) const { return config_.get_int(key); }
  double get_double(std::string_view key) const { return config_.get_double(key); }
  const std::string& get_string(std::string_view key) const { return config_.get_string(key); }
  std::vector<std::string> get_list(std::string_view key) const { return config_.get_list(key); }
  size_t count(std::string_view key) const { return config_.count(key); }
  const TomlValue* find(std::string_view key) const { return static_cast<const Config&>(config_).find(key); }
  // "train.seq_len = 512".
  std::string shown(std::string_view key) const;
  void add_problem(std::string_view key, std::string text) { config_.add_problem(key, std::move(text)); }
  void add_problem(std::string_view key, const Error& error) { config_.add_problem(key, error); }

  Config& config_;
};

}  // namespace chassis
