// How files hold a model's parameters, as its plugin declares it. Verified to be exact; shared by loading and export.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
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

class DiskLayout {
 public:
  // Maps a tensor's name in a file to its name here: "" if the tensor is skipped, unchanged if it is unknown.
  using Names = std::function<std::string(const std::string& in_file)>;

  // Throws a plugin error unless every element of every parameter is in exactly one tensor on disk.
  DiskLayout(std::map<std::string, std::vector<StoredPart>> parts, std::map<std::string, LiteralTensor> literals,
             const ParameterTable& parameters, Names names);

  // The places on disk where the parameter's elements are.
  const std::vector<StoredPart>& parts(const std::string& parameter) const { return parts_.at(parameter); }
  // By name.
  const std::map<std::string, LiteralTensor>& literals() const { return literals_; }
  std::string name_of(const std::string& in_file) const { return names_(in_file); }

 private:
  std::map<std::string, std::vector<StoredPart>> parts_;  // by parameter
  std::map<std::string, LiteralTensor> literals_;
  Names names_;
};

// Records what `declare` puts into the sink. Throws a plugin error that names the tensor on disk and the parameter.
DiskLayout record_disk_mapping(const ParameterTable& parameters,
                               const std::function<chassis_status_t*(const chassis_disk_sink_t*)>& declare);

}  // namespace chassis
