// Values that follow from other keys: defaults, and the division of a global batch.
#include <fmt/core.h>

#include <filesystem>
#include <string>
#include <utility>

#include "host/config/config.hpp"
#include "host/config/task_table.hpp"

namespace chassis {
namespace {

TomlValue default_string(std::string text) {
  TomlValue value;
  value.type = ValueType::kString;
  value.string = std::move(text);
  return value;
}
template <ChoiceType T>
TomlValue default_string(T choice) {
  return default_string(std::string(to_text(choice)));
}

// Multiples of `unit` around `number`: "8", "8 or 16".
std::string multiples_near(int64_t number, int64_t unit) {
  const int64_t below = number / unit * unit;
  return below == 0 ? std::to_string(unit) : fmt::format("{} or {}", below, below + unit);
}

}  // namespace

BatchSizes batch_sizes(const Settings& settings, int64_t data_parallel_size) {
  CHASSIS_CHECK(data_parallel_size > 0, "there is at least one data-parallel rank");
  BatchSizes sizes;
  sizes.micro_batch_size = settings.train.micro_batch_size;
  const int64_t per_pass = sizes.micro_batch_size * data_parallel_size;
  const Setting<int64_t>& global_batch_size = settings.train.global_batch_size;
  sizes.global_batch_size = global_batch_size.is_set() ? *global_batch_size : per_pass;
  if (sizes.global_batch_size % per_pass != 0) {
    const std::string product = data_parallel_size == 1
                                    ? fmt::format("train.micro_batch_size = {}", sizes.micro_batch_size)
                                    : fmt::format("train.micro_batch_size × data-parallel ranks = {} × {} = {}",
                                                  sizes.micro_batch_size, data_parallel_size, per_pass);
    throw config_error(global_batch_size, fmt::format("train.global_batch_size = {} is not a multiple of {} (try {})",
                                                      sizes.global_batch_size, product,
                                                      multiples_near(sizes.global_batch_size, per_pass)));
  }
  sizes.num_microbatches = sizes.global_batch_size / per_pass;
  return sizes;
}

void Config::derive_defaults() {
  if (TomlValue* run = find("run"); run != nullptr && !has("run.output_dir") && has("run.name")) {
    run->set("output_dir", default_string("out/" + get_string("run.name")));
  }
  if (TomlValue* model = find("model"); model != nullptr && !has("model.init")) {
    if (has("model.path") || has("model.config")) {
      model->set("init", default_string(has("model.path") ? ModelInit::kPretrained : ModelInit::kRandom));
    }
  }
  if (!has("objective.plugin") && has("train.task")) {
    const auto task = choice_from<Task>(get_string("train.task"));
    if (task && !spec_of(*task).objective.empty())
      find("objective")->set("plugin", default_string(std::string(spec_of(*task).objective)));
  }
  if (has("adapter.plugin")) {
    const bool merges = find("export.merge") != nullptr && find("export.merge")->boolean;
    const bool has_base = has("model.init") && get_string("model.init") == to_text(ModelInit::kPretrained);
    if (!set_by_user("checkpoint.contents") && has_base)
      find("checkpoint")->set("contents", default_string(CheckpointContents::kTrained));
    if (!set_by_user("export.plugin") && !merges) find("export")->set("plugin", default_string("peft"));
  }
  for (size_t i = 0; i < count("data.eval"); ++i) {
    const std::string key = fmt::format("data.eval.{}", i);
    if (has(key + ".name") || !has(key + ".path")) continue;
    const std::string stem = std::filesystem::path(get_string(key + ".path")).stem().string();
    find(key)->set("name", default_string(count("data.eval") == 1 ? "eval" : stem));
  }
  for (size_t i = 0; i < count("eval.generate"); ++i) {
    const std::string key = fmt::format("eval.generate.{}", i);
    if (has(key + ".name") || !has(key + ".path")) continue;
    find(key)->set("name", default_string(std::filesystem::path(get_string(key + ".path")).stem().string()));
  }
}

}  // namespace chassis
