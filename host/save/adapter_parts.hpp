// The places that an adapter gives to its parameters in files.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "host/checkpoint/reader.hpp"
#include "host/compile/adapter_plugin.hpp"
#include "host/compile/parameters.hpp"
#include "host/state/stored_part.hpp"

namespace chassis {

// By parameter; one that the adapter does not place is absent. `model_config` is the model's config.json; `in_files`
// are the tensors of files that are read, none if files are written. Throws a plugin error unless the parts of a
// parameter cover it, and a config error if the adapter refuses the files.
std::map<std::string, std::vector<StoredPart>> adapter_parts(const AdapterPlugin& adapter,
                                                             const ParameterTable& parameters,
                                                             const std::string& model_config,
                                                             std::span<const DiskTensor> in_files = {});

}  // namespace chassis
