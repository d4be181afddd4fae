// Reads slot templates: the built-in ones, and those that users write, as TOML. Unknown keys are errors with a
// position.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "host/data/slot_template.hpp"
#include "host/data/tokenizer.hpp"

namespace chassis {

// `name` is shown in messages: the path, or the name of a built-in template.
SlotTemplate parse_slot_template(std::string_view text, const std::string& name);
// NULL if there is no built-in template of that name.
std::shared_ptr<const SlotTemplate> builtin_slot_template(std::string_view name);
std::vector<std::string> builtin_template_names();

// The names of the built-in templates whose stop tokens are tokens of the tokenizer.
std::vector<std::string> fitting_template_names(const Tokenizer& tokenizer);

}  // namespace chassis
