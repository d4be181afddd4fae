// Whether a model plugin keeps the promises of its header: what it records, how files hold it, its config,
// and that the recorded program has the gradients of its loss.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "host/plugin/instance.hpp"
#include "host/program/resolve.hpp"

namespace chassis {

// A config.json of a few small layers, with the keys that most families of decoders share.
std::string sample_model_config(const std::vector<std::string>& architectures);

// Why the model takes no such config, in its words; empty if it does. Configures the instance.
std::string configure_refusal(Instance& model, const std::string& config_json);

// [step] Everything that is wrong, with names and numbers; empty if nothing is. `model` makes active instances,
// `oracles` compute the ops. On the CPU, in fp32.
//   - recorded twice, the program is the same; every parameter has positive sizes and a name of its own
//   - its disk mapping is exact: every element of every parameter is in one tensor of the files, no name is used twice
//   - config() is a JSON object that another instance takes, records the same program from, and gives back
//   - text that is no JSON object is refused
//   - the gradient of every parameter is that of the loss, by differences; every op must have an oracle
std::vector<std::string> model_failures(const std::function<std::unique_ptr<Instance>()>& model,
                                        const std::string& config_json, std::span<const OpsProvider> oracles);

}  // namespace chassis
