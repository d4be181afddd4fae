// Which settings a resumed run may change.
#pragma once

#include <string_view>

namespace chassis {

// True for a dotted key that changes no number of the training, or that is meant to be changed.
bool may_change_on_resume(std::string_view key);

}  // namespace chassis
