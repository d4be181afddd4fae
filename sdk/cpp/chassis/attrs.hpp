// Attributes of a recorded op, and the memory that they point into.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "chassis/op.h"
#include "chassis/str.hpp"

CHASSIS_SDK_BEGIN

class Attrs {
 public:
  Attrs() = default;
  Attrs(const Attrs&) = delete;
  Attrs& operator=(const Attrs&) = delete;

  // Names are borrowed; use string literals.
  Attrs& set(std::string_view name, int64_t value) { return add(name, CHASSIS_ATTR_INT).value.i = value, *this; }
  Attrs& set(std::string_view name, int value) { return set(name, int64_t{value}); }
  Attrs& set(std::string_view name, bool value) { return set(name, int64_t{value}); }
  Attrs& set(std::string_view name, double value) { return add(name, CHASSIS_ATTR_FLOAT).value.f = value, *this; }
  Attrs& set(std::string_view name, std::string_view value) {
    const std::string& kept = strings_.emplace_back(value);
    return add(name, CHASSIS_ATTR_STRING).value.list = {kept.data(), kept.size()}, *this;
  }
  Attrs& set(std::string_view name, const char* value) { return set(name, std::string_view(value)); }
  Attrs& set(std::string_view name, std::vector<int64_t> values) {
    const auto& kept = ints_.emplace_back(std::move(values));
    return add(name, CHASSIS_ATTR_INT_LIST).value.list = {kept.data(), kept.size()}, *this;
  }
  Attrs& set(std::string_view name, std::vector<double> values) {
    const auto& kept = floats_.emplace_back(std::move(values));
    return add(name, CHASSIS_ATTR_FLOAT_LIST).value.list = {kept.data(), kept.size()}, *this;
  }

  const std::vector<chassis_attr_t>& raw() const noexcept { return attrs_; }

 private:
  chassis_attr_t& add(std::string_view name, uint32_t tag) {
    return attrs_.emplace_back(chassis_attr_t{str(name), tag, 0, {}});
  }

  std::vector<chassis_attr_t> attrs_;
  std::deque<std::string> strings_;
  std::deque<std::vector<int64_t>> ints_;
  std::deque<std::vector<double>> floats_;
};

CHASSIS_SDK_END
