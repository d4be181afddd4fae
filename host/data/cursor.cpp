// Converts a cursor to and from JSON.
#include "host/data/cursor.hpp"

#include <fmt/format.h>

namespace chassis {
namespace {

uint64_t count_at(const Json& json, std::string_view key, const std::string& where) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number_integer() || *found < 0) {
    throw storage_error(fmt::format("{}: \"{}\" is missing or not a count", where, key));
  }
  return found->get<uint64_t>();
}

}  // namespace

Json to_json(const DataCursor& cursor) {
  Json sets = Json::array();
  for (const SetCursor& set : cursor.sets) {
    Json json;
    json["epoch"] = set.epoch;
    json["document"] = set.document;
    json["offset"] = set.offset;
    json["num_rows"] = set.num_rows;
    sets.push_back(std::move(json));
  }
  return sets;
}

DataCursor data_cursor_from_json(const Json& json, const std::string& where) {
  if (!json.is_array()) throw storage_error(where + ": the data cursor is not a list");
  DataCursor cursor;
  for (const Json& set : json) {
    if (!set.is_object()) throw storage_error(where + ": an entry of the data cursor is not an object");
    cursor.sets.push_back({count_at(set, "epoch", where), count_at(set, "document", where),
                           count_at(set, "offset", where), count_at(set, "num_rows", where)});
  }
  return cursor;
}

}  // namespace chassis
