// A run with [adapter] on a small Llama, planned: nothing is computed.
#pragma once

#include <string>
#include <vector>

#include "tests/regress/planned_rank.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/process.hpp"

namespace chassis::test {

// 3 layers, 48 wide, biases in attention; k_proj and v_proj are [16, 48]. Line 32 is the first of `options`.
inline std::string with_lora(const std::string& options) {
  return divisible_llama("[checkpoint]\ncontents = \"full\"\n[adapter]\nplugin = \"lora\"\n" + options);
}

// The names of the parameters that are trained with these options, one a line, or the refusal.
inline std::string adapted(const std::string& options, const std::vector<std::string>& overrides = {}) {
  std::vector<std::string> all = {"export.plugin=safetensors", "export.when=never"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  try {
    PlannedRank rank(with_lora(options), 1, 0, all);
    std::string text;
    for (const auto& p : rank.parameters().all())
      if (p->trainable) text += p->name + "\n";
    return text;
  } catch (const Error& error) {
    return error.what();
  }
}

inline size_t num_lines(const std::string& text) {
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace chassis::test
