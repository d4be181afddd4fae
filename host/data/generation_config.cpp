// Reads the keys that transformers' GenerationConfig defines.
#include "host/data/generation_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <string_view>

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/base/printable.hpp"

namespace chassis {
namespace {

// Keys with the values that change nothing. null never changes anything.
constexpr std::array<std::pair<std::string_view, std::string_view>, 24> kWithoutEffect = {{
    {"num_beams", "1"},
    {"num_beam_groups", "1"},
    {"num_return_sequences", "1"},
    {"diversity_penalty", "0.0"},
    {"length_penalty", "1.0"},
    {"early_stopping", "false"},
    {"penalty_alpha", "0.0"},
    {"typical_p", "1.0"},
    {"epsilon_cutoff", "0.0"},
    {"eta_cutoff", "0.0"},
    {"encoder_repetition_penalty", "1.0"},
    {"no_repeat_ngram_size", "0"},
    {"encoder_no_repeat_ngram_size", "0"},
    {"bad_words_ids", "[]"},
    {"force_words_ids", "[]"},
    {"sequence_bias", "{}"},
    {"suppress_tokens", "[]"},
    {"begin_suppress_tokens", "[]"},
    {"forced_bos_token_id", ""},
    {"forced_eos_token_id", ""},
    {"exponential_decay_length_penalty", ""},
    {"guidance_scale", "1.0"},
    {"min_length", "0"},
    {"min_new_tokens", "0"},
}};

bool changes_nothing(const Json& value, std::string_view neutral) {
  if (value.is_null()) return true;
  if (neutral.empty()) return false;
  const Json without = Json::parse(neutral);
  return value == without || (value.is_number() && without.is_number() && value.get<double>() == without.get<double>());
}

class Reader {
 public:
  Reader(const Json& object, const std::string& path) : object_(object), path_(path) {}

  bool has(std::string_view key) const {
    const auto it = object_.find(std::string(key));
    return it != object_.end() && !it->is_null();
  }

  std::optional<double> number(std::string_view key, const char* range, const std::function<bool(double)>& fits) const {
    if (!has(key)) return std::nullopt;
    const double value = json_number(object_, key, path_);
    if (!std::isfinite(value) || !fits(value)) refuse(key, range);
    return value;
  }

  std::optional<int64_t> integer(std::string_view key, int64_t min) const {
    if (!has(key)) return std::nullopt;
    const int64_t value = json_int(object_, key, path_);
    if (value < min) refuse(key, (std::to_string(min) + " or more").c_str());
    return value;
  }

  std::vector<int32_t> ids(std::string_view key) const {
    if (!has(key)) return {};
    const Json& value = object_[std::string(key)];
    std::vector<int32_t> out;
    for (const Json& id : value.is_array() ? value : Json::array({value})) {
      if (!id.is_number_integer() || id < 0 || id > std::numeric_limits<int32_t>::max())
        refuse(key, "an id or a list of ids");
      const auto number = id.get<int32_t>();
      if (std::find(out.begin(), out.end(), number) == out.end()) out.push_back(number);
    }
    return out;
  }

 private:
  [[noreturn]] void refuse(std::string_view key, const char* expected) const {
    throw config_error(path_ + ": '" + std::string(key) + "' is " +
                       printable(json_line(object_[std::string(key)]), 80) + ", expected " + expected);
  }

  const Json& object_;
  const std::string& path_;
};

}  // namespace

GenerationConfig read_generation_config(const std::string& directory) {
  GenerationConfig config;
  const std::string path = directory + "/generation_config.json";
  if (path_kind(path) == PathKind::kAbsent) return config;
  const Json object = parse_json(read_file(path), path);
  if (!object.is_object()) throw config_error(path + ": expected an object, found " + object.type_name());
  config.path = path;
  const Reader reader(object, path);
  config.eos_ids = reader.ids("eos_token_id");
  if (reader.has("do_sample")) config.do_sample = json_bool(object, "do_sample", path);
  config.temperature = reader.number("temperature", "0 or more", [](double x) { return x >= 0.0; });
  config.top_p = reader.number("top_p", "0 to 1", [](double x) { return x >= 0.0 && x <= 1.0; });
  config.min_p = reader.number("min_p", "0 to 1", [](double x) { return x >= 0.0 && x <= 1.0; });
  config.repetition_penalty = reader.number("repetition_penalty", "a number above 0", [](double x) { return x > 0.0; });
  config.top_k = reader.integer("top_k", 0);
  config.max_new_tokens = reader.integer("max_new_tokens", 1);
  for (const auto& [key, neutral] : kWithoutEffect) {
    const auto it = object.find(std::string(key));
    if (it != object.end() && !changes_nothing(*it, neutral)) config.unused_keys.emplace_back(key);
  }
  return config;
}

std::vector<int32_t> stop_ids_of(const GenerationConfig& config, int64_t vocab_size) {
  std::vector<int32_t> ids;
  for (const int32_t id : config.eos_ids) {
    if (id < vocab_size)
      ids.push_back(id);
    else
      counted_warning("generation_config.json: eos_token_id",
                      fmt::format("{}: eos_token_id {} ends no text, because the tokenizer has {} ids", config.path, id,
                                  vocab_size));
  }
  return ids;
}

}  // namespace chassis
