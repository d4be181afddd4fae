// Reads config.json key by key, with errors that name the key. Needs nlohmann/json, so no other header includes it.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>

#include "chassis/guard.hpp"
#include "chassis/kind/model.h"

CHASSIS_SDK_BEGIN

// The values of these keys, dotted paths, are wrong. The message names them too.
template <typename... Parts>
[[noreturn]] void fail_config(std::initializer_list<std::string_view> keys, const Parts&... parts) {
  Failure failure(CHASSIS_INVALID_ARGUMENT, parts...);
  for (const std::string_view key : keys) failure.with(CHASSIS_FACT_CONFIG_KEY, std::string(key));
  throw failure;
}

class ConfigKeys {
 public:
  using Json = nlohmann::ordered_json;

  // An object, which must outlive this. `model` is the member's id, for messages. `table`: the key of the object, if it
  // is not the whole config.json.
  ConfigKeys(const Json& json, std::string_view model, const std::string& table = "")
      : json_(json), model_(model), prefix_(table.empty() ? "" : table + ".") {}

  // NULL if the key is absent or null.
  const Json* find(const std::string& key) {
    known_.insert(key);
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  // int64_t for sizes, double for other numbers.
  template <typename T>
  T positive(const std::string& key, T fallback) {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    const bool is_number = std::is_integral_v<T> ? value->is_number_integer() : value->is_number();
    if (!is_number || !(value->get<double>() > 0) || value->get<double>() > 0x1p40)
      fail_config({prefix_ + key}, prefix_, key, " is ", value->dump(), ", expected a",
                  std::is_integral_v<T> ? " whole" : "", " number above 0");
    return value->get<T>();
  }
  bool boolean(const std::string& key, bool fallback) {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean())
      fail_config({prefix_ + key}, prefix_, key, " is ", value->dump(), ", expected true or false");
    return value->get<bool>();
  }
  // Refuses every value but `only`, the one that the plugin supports.
  void require(const std::string& key, const Json& only) {
    const Json* value = find(key);
    if (value != nullptr && *value != only)
      fail_config({prefix_ + key}, prefix_, key, " ", value->dump(), " is not supported by model '", model_,
                  "' (supported: ", only.dump(), ")");
  }
  // Calls report(key) for each key that was not read.
  template <typename Report>
  void for_each_unknown(const Report& report) const {
    for (const auto& [key, value] : json_.items())
      if (!known_.contains(key)) report(key);
  }

 private:
  const Json& json_;
  std::string model_, prefix_;
  // Keys that change nothing in the program, and those that were read.
  std::set<std::string> known_ = {"bos_token_id",         "dtype",       "eos_token_id", "pad_token_id",
                                  "transformers_version", "torch_dtype", "use_cache",    "_name_or_path"};
};

CHASSIS_SDK_END
