// Compares the cases of a test with the op table.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "host/graph/op_table.hpp"

namespace chassis::test {

// The ops of the table that are not in `covered`, and the attributes of the others that are not, as "rope.factor".
inline std::vector<std::string> missing_from(const std::set<std::string>& covered) {
  std::vector<std::string> missing;
  for (const chassis::OpSpec& spec : op_table()) {
    const std::string id(spec.id);
    if (!covered.contains(id)) missing.push_back(id);
    for (const AttrSpec& attr : spec.attrs)
      if (covered.contains(id) && !covered.contains(id + "." + std::string(attr.name)))
        missing.push_back(id + "." + std::string(attr.name));
  }
  return missing;
}

}  // namespace chassis::test
