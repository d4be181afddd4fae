// How files hold the parameters of a model: m.tensor("qkv.weight", {{"q.weight"}, {"k.weight"}, {"v.weight"}}). One
// declaration serves reading and writing; chassis/kind/model.h says what the host proves.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "chassis/dtype.hpp"
#include "chassis/host.hpp"
#include "chassis/kind/model.h"

CHASSIS_SDK_BEGIN

// Elements of a parameter: in dim k, sizes[k] indexes from begin[k] on, or all up to the end if sizes[k] is 0.
struct DiskPart {
  std::string parameter;  // full name
  std::vector<int64_t> begin = {}, sizes = {};
};

// All [control]. Errors name the tensor and the parameter.
class DiskMapping {
 public:
  DiskMapping(const Host& host, const chassis_disk_sink_t& raw) : host_(host), raw_(raw) {}
  DiskMapping(const DiskMapping&) = delete;
  DiskMapping& operator=(const DiskMapping&) = delete;

  // A tensor on disk: the parts joined along `join_dim`. "{i}" stands for the same number in all names. Dim k of the
  // tensor on disk is dim dims[k] of the parts; no dims: unchanged. {1, 0} transposes; {1, 2} drops a first dim of
  // size 1. Tensors that hold a parameter once more are another form of it: files have one of them.
  void tensor(std::string_view name, const std::vector<DiskPart>& parts, uint32_t join_dim = 0,
              const std::vector<uint32_t>& dims = {}) {
    std::vector<chassis_disk_part_t> raw_parts;
    for (const DiskPart& part : parts) {
      if (part.begin.size() != part.sizes.size())
        fail_invalid("'", part.parameter, "': begin has ", part.begin.size(), " entries and sizes has ",
                     part.sizes.size());
      raw_parts.push_back({sizeof(chassis_disk_part_t), static_cast<uint32_t>(part.begin.size()), str(part.parameter),
                           part.begin.data(), part.sizes.data()});
    }
    std::vector<const chassis_disk_part_t*> pointers;
    for (const chassis_disk_part_t& part : raw_parts) pointers.push_back(&part);
    const chassis_disk_rule_t rule = {sizeof rule, static_cast<uint32_t>(parts.size()), str(name),  pointers.data(),
                                      join_dim,    static_cast<uint32_t>(dims.size()),  dims.data()};
    host_.check(raw_.tensor(&raw_, &rule));
  }
  // A parameter with its dims in another order, such as linear weights that files hold as [in, out].
  void permuted(std::string_view name, std::string parameter, const std::vector<uint32_t>& dims = {1, 0}) {
    tensor(name, {{std::move(parameter)}}, 0, dims);
  }

  // A tensor that files contain and that is not trained; `values` are row-major.
  template <typename T>
  void literal(std::string_view name, uint32_t dtype, const std::vector<int64_t>& sizes, const std::vector<T>& values) {
    if (dtype_bytes(dtype) != sizeof(T))
      fail_invalid("'", name, "': values have ", sizeof(T), " bytes each, but ", dtype_name(dtype), " has ",
                   dtype_bytes(dtype));
    int64_t num_values = 1;
    for (const int64_t size : sizes) num_values *= size;
    if (num_values != static_cast<int64_t>(values.size()))
      fail_invalid("'", name, "': ", values.size(), " values, expected ", num_values);
    const chassis_literal_t raw = {sizeof raw, dtype, str(name), sizes.data(), sizes.size(), values.data()};
    host_.check(raw_.literal(&raw_, &raw));
  }

  // Tensors whose names match may be in files; they are neither read nor written. "*" stands for any text.
  void skip(std::string_view pattern) { host_.check(raw_.skip(&raw_, str(pattern))); }
  // Files may use a name that matches `pattern` instead of `name`: alias("layers.*", "model.layers.*").
  void alias(std::string_view pattern, std::string_view name) {
    host_.check(raw_.alias(&raw_, str(pattern), str(name)));
  }

 private:
  const Host& host_;
  const chassis_disk_sink_t& raw_;
};

CHASSIS_SDK_END
