// A slot template as Jinja, as transformers and other programs read chat templates.
#pragma once

#include <string>

#include "host/data/slot_template.hpp"

namespace chassis {

// The Jinja template that renders each conversation as render_slots() does, and raises where that throws. With
// `keep_reasoning`, all answers show their reasoning.
std::string slot_template_jinja(const SlotTemplate& slots, bool keep_reasoning);

}  // namespace chassis
