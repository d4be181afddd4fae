// A tokenizer under test.
#pragma once

#include <string>
#include <vector>

#include "chassis/kind/tokenizer.h"

namespace chassis {

struct TokenizerSubject {
  const chassis_tokenizer_t* table = nullptr;
  chassis_instance* self = nullptr;
  std::string label;
  std::string options = {};             // for messages, if this is a variant: "lowercase = true"
  std::vector<std::string> texts = {};  // for a variant: further texts that may get other ids
};

}  // namespace chassis
