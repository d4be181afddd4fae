// How programs name a head of scores in the files of a model. The shape of the weight is [labels, hidden] for all.
#pragma once

#include <array>
#include <string_view>

#include "host/compile/objective_pass.hpp"

namespace chassis {

struct HeadNames {
  std::string_view weight, bias;
};

// transformers and OpenRLHF; trl and LLaMA-Factory; ColossalAI and older versions of OpenRLHF.
inline constexpr std::array<HeadNames, 3> kHeadNames = {{{kScoreWeight, "score.bias"},
                                                         {"v_head.summary.weight", "v_head.summary.bias"},
                                                         {"value_head.weight", "value_head.bias"}}};

}  // namespace chassis
