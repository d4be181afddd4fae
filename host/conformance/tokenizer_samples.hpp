// Texts with which tokenizers are examined.
#pragma once

#include <string>
#include <vector>

namespace chassis {

struct TextSample {
  const char* what;
  std::string text;
  bool round_trips = false;  // exactly
  bool may_refuse = false;   // with a message
};

std::vector<TextSample> tokenizer_samples();

}  // namespace chassis
