// Examines a tokenizer of either version: opens what can be opened, and trains a vocabulary for one that needs files.
#pragma once

#include <string>
#include <vector>

#include "host/conformance/check.hpp"

namespace chassis {

struct TokenizerReport {
  std::vector<std::string> failures;
  std::string left_out;  // why it was not examined; empty if it was
};

// `directory`: of a tokenizer to open; may be empty.
TokenizerReport examine_tokenizer(const CheckedMember& member, const std::string& directory);

}  // namespace chassis
