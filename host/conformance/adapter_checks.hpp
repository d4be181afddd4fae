// Conformance tests of an adapter plugin: what it records, its config, gradients of what it adds, and merging.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "host/compile/model_plugin.hpp"
#include "host/compile/resolve.hpp"
#include "host/plugin/instance.hpp"

namespace chassis {

// A base model for the adapter.
struct AdapterBase {
  std::string name;  // "llama"
  Program program;   // as recorded
  std::string config_json;
  const ModelPlugin* model = nullptr;  // names parameters as the model's files do; NULL: as the program does
};

// Texts of config.json; a small model of each usual family accepts one of them.
std::vector<std::string> adapter_base_configs(const std::vector<std::string>& architectures);

using AdapterMaker = std::function<std::unique_ptr<Instance>()>;

struct AdapterReport {
  std::vector<std::string> failures;  // with names and numbers
  std::string left_out;               // what could not be tested, and what is unusual but allowed
  int num_bases = 0;                  // bases that the adapter accepted
};

// [step] `adapter` makes active instances, and `reader` those that read a config, which decides the options; NULL: the
// same. `oracles` compute the ops on the CPU in fp64. A base that the adapter refuses is left out. Tests:
//   - two instances give the same program, which obeys the rules of graphs
//   - it adds or trains at least one parameter, and the gradient of each agrees with finite differences of the loss
//   - a base with the adapter merged into it computes the same loss as with the adapter's ops; merging a parameter in
//     boxes gives the same bits as merging it whole
//   - config() is a JSON object from which another instance records the same program
//   - text that is not a JSON object, and the configuration of an unknown adapter, are refused
AdapterReport examine_adapter(const AdapterMaker& adapter, std::span<const AdapterBase> bases,
                              std::span<const OpsProvider> oracles, const AdapterMaker& reader = {});

}  // namespace chassis
