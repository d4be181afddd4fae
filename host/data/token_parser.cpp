// Rows of token ids, from JSON or from a binary file.
#include <fmt/format.h>

#include <cstring>
#include <limits>

#include "host/base/printable.hpp"
#include "host/data/row_parsers.hpp"
#include "host/data/token_bytes.hpp"

namespace chassis {
namespace {

// Ids and masks in JSON.
class TokenFields {
 public:
  explicit TokenFields(int64_t vocab_size)
      : vocab_size_(vocab_size > 0 ? vocab_size : std::numeric_limits<int32_t>::max()) {}

  TokensRecord record(const RowFields& row, JsonElement input_ids) const {
    TokensRecord record;
    read_ids(row, "input_ids", input_ids, false, record.ids);
    if (const auto labels = row.find("labels")) {
      read_ids(row, "labels", *labels, true, record.labels);
      require_length(row, "labels", record.labels.size(), record.ids.size());
    }
    if (const auto mask = row.find("attention_mask")) require_full(row, *mask, record.ids.size());
    return record;
  }

  TokensRecord record(const RawRow& row, const RowPlace& place) const {
    TokensRecord record;
    record.ids.resize(row.bytes.size() / sizeof(int32_t));
    if (!record.ids.empty()) std::memcpy(record.ids.data(), row.bytes.data(), record.ids.size() * sizeof(int32_t));
    for (size_t i = 0; i < record.ids.size(); ++i) {
      if (record.ids[i] < 0 || record.ids[i] >= vocab_size_) throw id_error(place, "token", i, record.ids[i]);
    }
    return record;
  }

 private:
  Error id_error(const RowPlace& place, const std::string& name, size_t index, int64_t id) const {
    return place.error(fmt::format("{}[{}] is {}, the vocabulary has {} ids", printable(name), index, id, vocab_size_));
  }

  void require_length(const RowFields& row, std::string_view key, size_t length, size_t num_ids) const {
    if (length == num_ids) return;
    throw row.place().error(fmt::format("\"{}\" has {} entries, \"{}\" has {}", printable(row.path(key)), length,
                                        printable(row.path("input_ids")), num_ids));
  }

  void read_ids(const RowFields& row, std::string_view key, JsonElement value, bool may_be_masked,
                std::vector<int32_t>& out) const {
    const RowPlace& place = row.place();
    for (const JsonElement item : place.list(row.path(key), value)) {
      int64_t id = 0;
      if (place.is_wide_integer(item))
        throw place.error(fmt::format("{}[{}] is {}, the vocabulary has {} ids", printable(row.path(key)), out.size(),
                                      json_line_of(item, true), vocab_size_));
      if (item.get(id)) throw not_integer(row, key, out.size(), item, "an integer");
      const bool masked = may_be_masked && id == kIgnoreLabel;
      if (!masked && (id < 0 || id >= vocab_size_)) {
        throw id_error(place, row.path(key), out.size(), id)
            .hint(may_be_masked ? "-100 masks a label" : "the ids do not belong to this model");
      }
      out.push_back(static_cast<int32_t>(id));
    }
  }

  void require_full(const RowFields& row, JsonElement mask, size_t num_ids) const {
    const std::string path = row.path("attention_mask");
    size_t index = 0;
    for (const JsonElement item : row.place().list(path, mask)) {
      int64_t bit = 0;
      if (item.get(bit) || bit != 1) {
        throw not_integer(row, "attention_mask", index, item, "1")
            .hint("remove the padding from input_ids; the program adds its own");
      }
      ++index;
    }
    require_length(row, "attention_mask", index, num_ids);
  }

  Error not_integer(const RowFields& row, std::string_view key, size_t index, JsonElement value,
                    std::string_view wanted) const {
    return row.place().error(fmt::format("{}[{}] is {}, not {}", printable(row.path(key)), index,
                                         printable(json_line_of(value, row.place().has_wide_integers())), wanted));
  }

  int64_t vocab_size_;
};

class TokenParser final : public JsonRowParser {
 public:
  TokenParser(const DataSetConfig& config, int64_t vocab_size) : JsonRowParser(config), tokens_(vocab_size) {}

 private:
  Record read(const RowFields& row) override { return tokens_.record(row, required(row, "input_ids")); }
  Record read_tokens(const RawRow& row, const RowPlace& place) override { return tokens_.record(row, place); }

  TokenFields tokens_;
};

}  // namespace

TokensRecord tokens_of(const RowFields& row, JsonElement input_ids, int64_t vocab_size) {
  return TokenFields(vocab_size).record(row, input_ids);
}

std::unique_ptr<RowParser> make_token_parser(const DataSetConfig& config, int64_t vocab_size) {
  return std::make_unique<TokenParser>(config, vocab_size);
}

}  // namespace chassis
