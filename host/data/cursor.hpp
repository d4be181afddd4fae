// The position of training in its data: a few numbers per set, however large the corpus is.
#pragma once

#include <string>
#include <vector>

#include "host/base/json.hpp"
#include "host/data/packing.hpp"

namespace chassis {

struct DataCursor {
  std::vector<SetCursor> sets;
  bool operator==(const DataCursor&) const = default;
};

Json to_json(const DataCursor& cursor);
// Throws a storage error if anything is missing or not a count; `where` names the source in messages.
DataCursor data_cursor_from_json(const Json& json, const std::string& where);

}  // namespace chassis
