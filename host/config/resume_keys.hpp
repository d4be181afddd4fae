// Which settings a resumed run may change.
#pragma once

#include <string_view>

namespace chassis {

// True for a dotted key that does not change the results of training, or that users are meant to change.
bool may_change_on_resume(std::string_view key);

}  // namespace chassis
