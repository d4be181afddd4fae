// The evaluation sets of a configuration: those of [[data.eval]], the parts that data.eval_fraction takes from training
// sets, and those of [[eval.generate]].
#pragma once

#include <string>
#include <vector>

#include "host/config/settings.hpp"

namespace chassis {

// The names in metrics, in the order of evaluation: first [[data.eval]], then the parts of [[data.train]]. A single set
// is "eval"; others are named after their files, and names of parts of training sets begin with "eval_".
std::vector<std::string> eval_set_names(const Settings::Data& data);

// The names of [[eval.generate]], whose sets are evaluated after all others.
std::vector<std::string> generation_set_names(const Settings::Eval& eval);

}  // namespace chassis
