// Reads a JSON object of config.json key by key, and remembers the keys, so that the others can be reported.
#pragma once

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chassis/config_keys.hpp"

namespace decoder {

using Json = nlohmann::ordered_json;

class Reader {
 public:
  // `family` and `where`, a prefix of keys, are for messages.
  Reader(const Json& object, std::string_view family, std::string where = {})
      : object_(object), family_(family), where_(std::move(where)) {}

  std::string_view family() const { return family_; }

  // NULL if the key is absent or null.
  const Json* find(std::string_view key) {
    read_.emplace_back(key);
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  // True also for null.
  bool contains(std::string_view key) const { return object_.contains(key); }
  // These keys are known, and change nothing.
  void ignore(std::initializer_list<std::string_view> keys) {
    for (const std::string_view key : keys) read_.emplace_back(key);
  }

  int64_t size(std::string_view key, int64_t fallback, int64_t max = int64_t{1} << 40) {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number_integer()) fail(key, " is ", value->dump(), ", expected a whole number");
    const auto number = value->get<int64_t>();
    if (number < 1 || number > max) fail(key, " is ", number, ", expected 1 to ", max);
    return number;
  }
  // A size that has two names.
  int64_t same_size(std::string_view key, std::string_view other, int64_t fallback, int64_t max = int64_t{1} << 40) {
    const int64_t number = size(key, size(other, fallback, max), max);
    if (find(other) != nullptr && size(other, fallback, max) != number)
      chassis::fail_config({key, other}, key, " ", number, " contradicts ", other, " ", size(other, fallback, max),
                           "; remove one of them");
    return number;
  }
  // A number from 0 on; the key must be present.
  int64_t count(std::string_view key) {
    const Json* value = find(key);
    if (!value->is_number_integer() || value->get<int64_t>() < 0)
      fail(key, " is ", value->dump(), ", expected 0 or more");
    return value->get<int64_t>();
  }
  double number(std::string_view key, double fallback) {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number()) fail(key, " is ", value->dump(), ", expected a number");
    return value->get<double>();
  }
  double positive(std::string_view key, double fallback) {
    const double value = number(key, fallback);
    if (find(key) != nullptr && !(value > 0)) fail(key, " is ", value, ", expected above 0");
    return value;
  }
  bool boolean(std::string_view key, bool fallback) {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) fail(key, " is ", value->dump(), ", expected true or false");
    return value->get<bool>();
  }
  std::string text(std::string_view key, std::string_view fallback) {
    const Json* value = find(key);
    if (value == nullptr) return std::string(fallback);
    if (!value->is_string()) fail(key, " is ", value->dump(), ", expected a string");
    return value->get<std::string>();
  }
  std::vector<double> numbers(std::string_view key) {
    const Json* value = find(key);
    if (value == nullptr) return {};
    const bool good = value->is_array() && std::all_of(value->begin(), value->end(), [](const Json& x) {
                        return x.is_number() && x.get<double>() > 0;
                      });
    if (!good) fail(key, " is not a list of numbers above 0");
    return value->get<std::vector<double>>();
  }
  // A key of an unsupported feature: it must be absent, null or `neutral`.
  void require_neutral(std::string_view key, const Json& neutral) {
    const Json* value = find(key);
    if (value != nullptr && *value != neutral) {
      fail(key, " ", value->dump(), " is not supported by model '", family_, "'");
    }
  }
  template <typename... Parts>
  [[noreturn]] void fail(std::string_view key, const Parts&... parts) const {
    chassis::fail_config({where_ + std::string(key)}, where_, key, parts...);
  }

  // Keys that were not read, except those that have no effect in any family.
  std::vector<std::string> unknown_keys() const;

 private:
  const Json& object_;
  std::string_view family_;
  std::string where_;
  std::vector<std::string> read_;
};

template <typename Names>
std::string list_of(const Names& names) {
  std::string out;
  for (const auto& name : names) out += (out.empty() ? "" : ", ") + std::string(name);
  return out;
}

}  // namespace decoder
