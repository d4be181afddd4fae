// One JSON row with its place in the file: access to values whose errors name the line, the key and what was found.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/base/error.hpp"
#include "host/data/document.hpp"
#include "host/data/row_names.hpp"

namespace chassis {

using JsonElement = simdjson::dom::element;
using JsonObject = simdjson::dom::object;
using JsonArray = simdjson::dom::array;

// "a string", "a list", …
std::string_view kind_text(JsonElement value);

// The value as JSON on one line.
std::string json_line_of(JsonElement value, bool has_wide_integers);

// The path of a key that occurs twice in one object, anywhere inside `value`; empty if there is none.
std::string key_that_occurs_twice(JsonElement value);

class RowPlace;
// Like parser.parse(), but integers may have any number of digits; tells `place` if there are such integers.
simdjson::error_code parse_with_wide_integers(simdjson::dom::parser& parser, std::string_view text,
                                              const RowPlace& place, JsonElement& value);

// The position of a row, and the notes in which its unused keys are counted. Lives during one parse().
class RowPlace {
 public:
  // `is_table`: as RawRow::is_table.
  RowPlace(const std::string& file, uint64_t line, ReadNotes& notes, bool is_table = false)
      : file_(&file), line_(line), notes_(&notes), is_table_(is_table) {}

  SourcePosition position() const;
  Error error(std::string message) const;
  // `name` is the value's path in the row: messages[2].content.
  Error type_error(std::string_view name, JsonElement value, std::string_view wanted) const;
  void note_unused(std::string_view key) const;

  // If true, members that are null say nothing: the columns of a table give each row the keys of all the others.
  bool is_table() const { return is_table_; }
  // The place for JSON inside a string, which has no columns.
  RowPlace inside_text() const {
    RowPlace copy = *this;
    copy.is_table_ = false;
    return copy;
  }
  // Notes that such a member was left out of what templates get.
  void note_null(std::string_view name) const;

  // From here on, marked strings of the row are integers (wide_integers.hpp).
  void set_has_wide_integers() const { has_wide_integers_ = true; }
  bool has_wide_integers() const { return has_wide_integers_; }
  bool is_wide_integer(JsonElement value) const;

  // Each throws a type_error if the value is of another type. Strings are UTF-8.
  std::string_view string(std::string_view name, JsonElement value) const;
  JsonArray list(std::string_view name, JsonElement value) const;
  JsonObject object(std::string_view name, JsonElement value) const;
  bool boolean(std::string_view name, JsonElement value) const;
  double number(std::string_view name, JsonElement value) const;

 private:
  const std::string* file_;
  uint64_t line_;
  ReadNotes* notes_;
  bool is_table_;
  mutable bool has_wide_integers_ = false;
};

// The values of an object. A wanted key that occurs twice is an error, as are two keys for one name with values; other
// keys are counted as unused.
class RowFields {
 public:
  // `prefix` stands before keys in messages: "messages[2].". `names` must outlive the object.
  RowFields(const RowPlace& place, JsonObject object, const KeyNames& names, std::string prefix = "");

  // Finds a value by the program's name of its key. nullopt if the key is absent or null.
  std::optional<JsonElement> find(std::string_view name) const;
  // True if the key is there with null, and no other key of that name has a value.
  bool is_null(std::string_view name) const;
  // "" if it is absent or null.
  std::string_view string_or_empty(std::string_view name) const;
  // The key as it is in the file, with the prefix. If a name has several, the one with the value.
  std::string path(std::string_view name) const;
  const RowPlace& place() const { return *place_; }
  JsonObject object() const { return object_; }

 private:
  // The index of the key with the value, or of the first key; the number of keys if there is no such name.
  size_t index_of(std::string_view name) const;

  const RowPlace* place_;
  JsonObject object_;
  const KeyNames* names_;
  std::string prefix_;
  std::vector<std::optional<JsonElement>> values_;  // one per name
};

}  // namespace chassis
