// How files hold a model's parameters, as its plugin declares it. Verified to be exact; shared by loading and export.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chassis/kind/model.h"
#include "host/compile/parameters.hpp"
#include "host/state/stored_part.hpp"

namespace chassis {

// A constant tensor that files contain and no run trains.
struct LiteralTensor {
  Dtype dtype = Dtype::f32;
  Shape shape;
  std::vector<std::byte> bytes;
};

// Whether `name` is one of `left_out`, or begins with one and a dot.
bool is_left_out(std::span<const std::string> left_out, std::string_view name);

// A way in which files may hold a parameter: the places of its elements.
using DiskForm = std::vector<StoredPart>;

// The forms that a directory has: their indices by parameter, 0 if it is not listed.
using DiskForms = std::map<std::string, size_t>;

// Throws a plugin error unless every element of a parameter is in exactly one of the parts.
void expect_cover(const std::string& parameter, const Shape& shape, const std::vector<StoredPart>& parts);

class DiskLayout {
 public:
  // Maps a tensor's name in a file to its name here: "" if the tensor is skipped, unchanged if it is unknown.
  using Names = std::function<std::string(const std::string& in_file)>;

  // Throws a plugin error unless in every form of every parameter, every element is in exactly one tensor on disk.
  // `left_out`: the tensors that hold ParameterTable::left_out().
  DiskLayout(std::map<std::string, std::vector<DiskForm>> forms, std::map<std::string, LiteralTensor> literals,
             const ParameterTable& parameters, Names names, std::vector<std::string> left_out = {});

  // All forms of a parameter; the first is that of the family's published models.
  const std::vector<DiskForm>& forms(const std::string& parameter) const { return forms_.at(parameter); }
  // Whether a parameter has several forms.
  bool has_choice() const;
  const DiskForm& parts(const std::string& parameter) const { return forms(parameter).front(); }
  const DiskForm& parts(const std::string& parameter, const DiskForms& chosen) const;
  // The forms in files that have these names: of each parameter the first with a tensor that is there.
  DiskForms forms_in(const std::function<bool(const std::string& name)>& has) const;
  // Names of tensors by which forms_in() finds these forms.
  std::vector<std::string> names_of(const DiskForms& chosen) const;
  // By name.
  const std::map<std::string, LiteralTensor>& literals() const { return literals_; }
  std::string name_of(const std::string& in_file) const { return names_(in_file); }
  // Whether a tensor is skipped since the program does not have the parameter that it holds, or to which it belongs, as
  // "lm_head.weight.absmax" does.
  bool leaves_out(std::string_view in_file) const { return is_left_out(left_out_, in_file); }

 private:
  std::map<std::string, std::vector<DiskForm>> forms_;  // by parameter
  std::map<std::string, LiteralTensor> literals_;
  Names names_;
  std::vector<std::string> left_out_;
};

// Records what `declare` puts into the sink. Throws a plugin error that names the tensor on disk and the parameter.
DiskLayout record_disk_mapping(const ParameterTable& parameters,
                               const std::function<chassis_status_t*(const chassis_disk_sink_t*)>& declare);

}  // namespace chassis
