// Conformance tests of a model plugin: recorded program, disk mapping, config, and gradients of the loss.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "host/compile/resolve.hpp"
#include "host/plugin/instance.hpp"

namespace chassis {

// Texts of config.json for a few small layers: with the keys that most decoder families share, with those of experts,
// and with as many heads of keys as of queries besides.
std::vector<std::string> sample_model_configs(const std::vector<std::string>& architectures);

// Configures the instance. Returns the model's message if it refuses the config; empty if it accepts.
std::string configure_refusal(Instance& model, const std::string& config_json);

// [step] All failures, with names and numbers; empty if none. `model` makes active instances, `oracles` compute the
// ops. Runs on the CPU in fp32. Tests:
//   - two recordings give the same program; every parameter has positive sizes and a unique name
//   - the disk mapping is exact: every element of every parameter is in one tensor of the files; no name is used twice
//   - config() is a JSON object that another instance accepts, records the same program from, and returns,
//     with keys that the model does not know
//   - text that is not a JSON object is refused
//   - max_positions is not negative; the last block outputs a scalar loss and logits
//   - logits do not change with later tokens, nor with another document in the row; those of a document are the same
//     if it is alone in a row
//   - the gradient of every parameter agrees with finite differences of the loss; every op must have an oracle, or
//     one of `own_kernels`, which are requested if the model has ops that chassis/op.h does not know
//   - these ops mix only the dims that the model declares; see own_ops.hpp
std::vector<std::string> model_failures(const std::function<std::unique_ptr<Instance>()>& model,
                                        const std::string& config_json, std::span<const OpsProvider> oracles,
                                        const std::function<std::vector<OpsProvider>()>& own_kernels = {});

}  // namespace chassis
