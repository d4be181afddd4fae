// Parses rows with simdjson, whose parser reuses its memory.
#include "host/data/json_reader.hpp"

#include <fmt/format.h>
#include <simdjson.h>

#include <limits>
#include <optional>
#include <utility>

#include "host/base/printable.hpp"
#include "host/data/line_reader.hpp"

namespace chassis {
namespace {

using Element = simdjson::dom::element;

std::string shown(Element value) { return printable(simdjson::minify(value)); }

class JsonRows : public DocumentReader {
 public:
  explicit JsonRows(const std::string& path) : lines_(File::open_read(path), path) {}

  bool next(Document& document) final {
    for (std::string_view line; lines_.next(line);) {
      if (is_blank(line)) continue;
      Element row;
      if (auto code = parser_.parse(line.data(), line.size()).get(row)) {
        throw error(fmt::format("not JSON: {}", simdjson::error_message(code)));
      }
      simdjson::dom::object object;
      if (row.get(object)) throw error("the line is not a JSON object");
      document.ids.clear();
      document.labels.clear();
      document.line = lines_.line_number();
      read(object, document);
      if (!document.ids.empty()) return true;
      ++notes_.num_empty_documents;
    }
    return false;
  }

  uint64_t num_bytes_read() const final { return lines_.num_bytes_read(); }

 protected:
  virtual void read(simdjson::dom::object row, Document& document) = 0;

  Error error(std::string message) const { return Error(ExitCode::kConfig, lines_.position(), std::move(message)); }

  void set_once(std::optional<Element>& place, Element value, std::string_view key) const {
    if (place) throw error(fmt::format("key \"{}\" occurs twice", key));
    place = value;
  }

  void note_unused(std::string_view raw_key) {
    constexpr size_t kMaxNames = 32;
    const std::string key = printable(raw_key);
    const auto found = notes_.unused_columns.find(key);
    if (found != notes_.unused_columns.end()) {
      ++found->second;
    } else if (notes_.unused_columns.size() < kMaxNames) {
      notes_.unused_columns.emplace(key, 1);
    } else {
      ++notes_.unused_columns["(others)"];
    }
  }

  LineReader lines_;
  simdjson::dom::parser parser_;
};

class TextRows final : public JsonRows {
 public:
  TextRows(const std::string& path, TextEncoder encoder) : JsonRows(path), encoder_(std::move(encoder)) {}

 private:
  void read(simdjson::dom::object row, Document& document) override {
    std::optional<Element> text_value;
    for (auto [key, value] : row) {
      if (key == "text") {
        set_once(text_value, value, key);
      } else {
        note_unused(key);
      }
    }
    if (!text_value) throw error("key \"text\" is missing");
    std::string_view text;
    if (text_value->get(text)) throw error("\"text\" is not a string");
    if (!text.empty()) encoder_.encode(text, lines_.position(), document);
  }

  TextEncoder encoder_;
};

class TokenRows final : public JsonRows {
 public:
  TokenRows(const std::string& path, int64_t vocab_size)
      : JsonRows(path), vocab_size_(vocab_size > 0 ? vocab_size : std::numeric_limits<int32_t>::max()) {}

 private:
  void read(simdjson::dom::object row, Document& document) override {
    std::optional<Element> ids, labels, mask;
    for (auto [key, value] : row) {
      if (key == "input_ids") {
        set_once(ids, value, key);
      } else if (key == "labels") {
        set_once(labels, value, key);
      } else if (key == "attention_mask") {
        set_once(mask, value, key);
      } else {
        note_unused(key);
      }
    }
    if (!ids) throw error("key \"input_ids\" is missing");
    read_ids(*ids, "input_ids", false, document.ids);
    if (labels && !labels->is_null()) {
      read_ids(*labels, "labels", true, document.labels);
      require_length("labels", document.labels.size(), document.ids.size());
    }
    if (mask && !mask->is_null()) require_full(*mask, document.ids.size());
  }

  simdjson::dom::array array_of(Element value, std::string_view key) const {
    simdjson::dom::array array;
    if (value.get(array)) throw error(fmt::format("\"{}\" is not an array", key));
    return array;
  }

  void require_length(std::string_view key, size_t length, size_t num_ids) const {
    if (length == num_ids) return;
    throw error(fmt::format("\"{}\" has {} entries, \"input_ids\" has {}", key, length, num_ids));
  }

  void read_ids(Element value, std::string_view key, bool may_be_masked, std::vector<int32_t>& out) const {
    for (Element item : array_of(value, key)) {
      int64_t id = 0;
      if (item.get(id)) {
        throw error(fmt::format("{}[{}] is {}, not an integer", key, out.size(), shown(item)));
      }
      const bool masked = may_be_masked && id == kIgnoreLabel;
      if (!masked && (id < 0 || id >= vocab_size_)) {
        throw error(fmt::format("{}[{}] is {}, the vocabulary has {} ids", key, out.size(), id, vocab_size_))
            .hint(may_be_masked ? "-100 masks a label" : "the ids do not belong to this model");
      }
      out.push_back(static_cast<int32_t>(id));
    }
  }

  void require_full(Element mask, size_t num_ids) const {
    size_t index = 0;
    for (Element item : array_of(mask, "attention_mask")) {
      int64_t bit = 0;
      if (item.get(bit) || bit != 1) {
        throw error(fmt::format("attention_mask[{}] is {}; only 1 can be used", index, shown(item)))
            .hint("remove the padding from input_ids; the program adds its own");
      }
      ++index;
    }
    require_length("attention_mask", index, num_ids);
  }

  int64_t vocab_size_;
};

}  // namespace

std::unique_ptr<DocumentReader> open_text_rows(const std::string& path, TextEncoder encoder) {
  return std::make_unique<TextRows>(path, std::move(encoder));
}

std::unique_ptr<DocumentReader> open_token_rows(const std::string& path, int64_t vocab_size) {
  return std::make_unique<TokenRows>(path, vocab_size);
}

}  // namespace chassis
