// Messages about values of rows.
#include "host/data/json_row.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "host/base/printable.hpp"
#include "host/data/line_reader.hpp"
#include "host/data/wide_integers.hpp"

namespace chassis {
namespace {

using JsonType = simdjson::dom::element_type;

std::string_view type_text(JsonType type) {
  switch (type) {
    case JsonType::ARRAY:
      return "a list";
    case JsonType::OBJECT:
      return "an object";
    case JsonType::STRING:
      return "a string";
    case JsonType::BOOL:
      return "true or false";
    case JsonType::NULL_VALUE:
      return "null";
    default:
      return "a number";
  }
}

// "messages[2].content[0]." → "messages[].content[]."
std::string without_indices(std::string_view path) {
  std::string text;
  bool inside = false;
  for (const char c : path) {
    if (c == ']') inside = false;
    if (!inside) text += c;
    if (c == '[') inside = true;
  }
  return text;
}

std::string below(std::string name, const std::string& path) {
  return name + (path.starts_with('[') ? "" : ".") + path;
}

// Null, or an empty text as in a .csv file.
bool is_nothing(JsonElement value) {
  std::string_view text;
  return value.is_null() || (!value.get(text) && text.empty());
}

std::string_view repeated(std::vector<std::string_view> keys) {
  std::sort(keys.begin(), keys.end());
  const auto found = std::adjacent_find(keys.begin(), keys.end());
  return found == keys.end() ? std::string_view() : *found;
}

}  // namespace

std::string key_that_occurs_twice(JsonElement value) {
  JsonArray list;
  if (!value.get(list)) {
    size_t index = 0;
    for (const JsonElement item : list) {
      if (item.is_array() || item.is_object())
        if (const std::string path = key_that_occurs_twice(item); !path.empty())
          return below(fmt::format("[{}]", index), path);
      ++index;
    }
    return "";
  }
  JsonObject object;
  if (value.get(object)) return "";
  std::vector<std::string_view> keys;
  for (const auto [key, member] : object) {
    keys.push_back(key);
    if (const std::string path = key_that_occurs_twice(member); !path.empty()) return below(std::string(key), path);
  }
  if (keys.size() < 2) return "";
  const std::string_view key = repeated(std::move(keys));
  return key.data() == nullptr ? "" : key.empty() ? "(empty)" : std::string(key);
}

simdjson::error_code parse_with_wide_integers(simdjson::dom::parser& parser, std::string_view text,
                                              const RowPlace& place, JsonElement& value) {
  const auto code = parser.parse(text.data(), text.size()).get(value);
  if (code != simdjson::NUMBER_ERROR) return code;
  bool found = false;
  const std::string marked = mark_wide_integers(text, found);
  if (!found) return code;
  place.set_has_wide_integers();
  return parser.parse(marked.data(), marked.size()).get(value);
}

std::string json_line_of(JsonElement value, bool has_wide_integers) {
  std::string text = simdjson::minify(value);
  return has_wide_integers ? unmark_wide_integers(std::move(text)) : text;
}

std::string_view kind_text(JsonElement value) { return type_text(value.type()); }

SourcePosition RowPlace::position() const { return line_position(*file_, line_); }

Error RowPlace::error(std::string message) const { return Error(ExitCode::kConfig, position(), std::move(message)); }

Error RowPlace::type_error(std::string_view name, JsonElement value, std::string_view wanted) const {
  const bool is_long = value.is_array() || value.is_object() || value.is_null();
  const std::string shown =
      is_long ? std::string(kind_text(value)) : printable(json_line_of(value, has_wide_integers_), 60);
  return error(fmt::format("\"{}\" is {}, not {}", printable(name), shown, wanted));
}

bool RowPlace::is_wide_integer(JsonElement value) const {
  std::string_view text;
  return has_wide_integers_ && !value.get(text) && !wide_integer_of(text).empty();
}

void RowPlace::note_null(std::string_view name) const {
  constexpr size_t kMaxNames = 8;
  constexpr std::string_view kWhat =
      "nulls inside tools and tool calls are left out, since columns give each row the keys of all the others: ";
  std::string what = std::string(kWhat) + printable(without_indices(name));
  if (!notes_->changes.contains(what)) {
    const auto is_null_note = [&](const auto& change) { return change.first.starts_with(kWhat); };
    if (static_cast<size_t>(std::ranges::count_if(notes_->changes, is_null_note)) >= kMaxNames)
      what = std::string(kWhat) + "(others)";
  }
  ++notes_->changes[what];
}

void RowPlace::note_unused(std::string_view key) const {
  constexpr size_t kMaxNames = 32;
  const std::string name = printable(key);
  const auto found = notes_->unused_columns.find(name);
  if (found != notes_->unused_columns.end()) {
    ++found->second;
  } else if (notes_->unused_columns.size() < kMaxNames) {
    notes_->unused_columns.emplace(name, 1);
  } else {
    ++notes_->unused_columns["(others)"];
  }
}

std::string_view RowPlace::string(std::string_view name, JsonElement value) const {
  std::string_view text;
  if (value.get(text) || is_wide_integer(value)) throw type_error(name, value, "a string");
  // Escapes can spell halves of surrogate pairs.
  if (!simdjson::validate_utf8(text.data(), text.size()))
    throw error(fmt::format("\"{}\" has an escape such as \\ud800 that is not a character", printable(name)));
  if (text.find('\0') != text.npos)
    ++notes_
          ->changes[fmt::format("texts of \"{}\" have NUL characters, which are kept: was the data written completely?",
                                printable(without_indices(name)))];
  return text;
}

JsonArray RowPlace::list(std::string_view name, JsonElement value) const {
  JsonArray list;
  if (value.get(list)) throw type_error(name, value, "a list");
  return list;
}

JsonObject RowPlace::object(std::string_view name, JsonElement value) const {
  JsonObject object;
  if (value.get(object)) throw type_error(name, value, "an object");
  return object;
}

bool RowPlace::boolean(std::string_view name, JsonElement value) const {
  bool boolean = false;
  if (value.get(boolean)) throw type_error(name, value, "true or false");
  return boolean;
}

double RowPlace::number(std::string_view name, JsonElement value) const {
  double number = 0;
  if (is_wide_integer(value)) return std::strtod(json_line_of(value, true).c_str(), nullptr);
  if (value.get(number)) throw type_error(name, value, "a number");
  return number;
}

RowFields::RowFields(const RowPlace& place, JsonObject object, const KeyNames& names, std::string prefix)
    : place_(&place), object_(object), names_(&names), prefix_(std::move(prefix)), values_(names.size()) {
  for (const auto [key, value] : object) {
    const std::string_view wanted = key;  // a lambda cannot capture a binding
    const auto is_wanted = [wanted](const auto& name) { return name.second == wanted; };
    const auto found = std::find_if(names.begin(), names.end(), is_wanted);
    if (found == names.end()) {
      if (place.is_table() && value.is_null() && !prefix_.empty()) continue;
      place.note_unused(without_indices(prefix_) + std::string(key));
      continue;
    }
    std::optional<JsonElement>& kept = values_[static_cast<size_t>(found - names.begin())];
    if (kept) throw place.error(fmt::format("key \"{}{}\" occurs twice", prefix_, printable(key)));
    kept = value;
  }
}

size_t RowFields::index_of(std::string_view name) const {
  size_t first = names_->size(), found = names_->size();
  for (size_t i = 0; i < names_->size(); ++i) {
    if ((*names_)[i].first != name) continue;
    first = std::min(first, i);
    if (!values_[i] || is_nothing(*values_[i])) continue;
    if (found < names_->size()) {
      Error error = place_->error(fmt::format("\"{0}{1}\" and \"{0}{2}\" are both there, and mean the same", prefix_,
                                              printable((*names_)[found].second), printable((*names_)[i].second)));
      if (prefix_.empty()) error.hint(fmt::format("choose one by columns = {{ {} = \"…\" }}", name));
      throw error;
    }
    found = i;
  }
  if (found < names_->size()) return found;
  for (size_t i = first; i < names_->size(); ++i)  // an empty text
    if ((*names_)[i].first == name && values_[i] && !values_[i]->is_null()) return i;
  return first;
}

std::optional<JsonElement> RowFields::find(std::string_view name) const {
  const size_t i = index_of(name);
  return i < values_.size() && values_[i] && !values_[i]->is_null() ? values_[i] : std::nullopt;
}

bool RowFields::is_null(std::string_view name) const {
  const size_t i = index_of(name);
  return i < values_.size() && values_[i] && values_[i]->is_null();
}

std::string_view RowFields::string_or_empty(std::string_view name) const {
  const std::optional<JsonElement> value = find(name);
  return value ? place_->string(path(name), *value) : std::string_view();
}

std::string RowFields::path(std::string_view name) const {
  const size_t i = index_of(name);
  return prefix_ + (i < names_->size() ? (*names_)[i].second : std::string(name));
}

}  // namespace chassis
