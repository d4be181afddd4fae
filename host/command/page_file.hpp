// The file of --html, which replaces only a page of the same verb.
#pragma once

#include <string>
#include <string_view>

namespace chassis {

// Throws a storage error if the file exists and does not begin with `head`, which every page of the verb begins with.
// An empty path or file is accepted. `what` names the pages: "plan".
void refuse_other_page(const std::string& path, std::string_view head, std::string_view what);

}  // namespace chassis
