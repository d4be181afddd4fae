// Cuts a .json file into the elements of its top-level array. Looks only at the brackets and strings of an element; the
// parser checks that it is JSON.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "host/base/units.hpp"
#include "host/data/line_reader.hpp"
#include "host/data/row_readers.hpp"

namespace chassis {
namespace {

constexpr size_t kReadBytes = size_t{1} << 20;
constexpr int kEnd = -1;

class ArrayRows final : public RowReader {
 public:
  explicit ArrayRows(const std::string& path) : source_(open_bytes(path)), block_(kReadBytes, '\0') {}

  bool next(RawRow& row) override {
    if (ended_) return false;
    const bool first = line_ == 0;
    if (first) begin_array();
    int c = next_solid();
    if (first && c == ']') return end_array();
    if (!first) {
      if (c == ']') return end_array();
      if (c != ',') throw unexpected(c, "\",\" or \"]\" after the element");
      ++pos_;
      c = next_solid();
    }
    if (c == ']' || c == ',' || c == kEnd) throw unexpected(c, "an element of the array");
    read_element(row);
    return true;
  }

  uint64_t num_bytes_read() const override { return source_->num_bytes_read(size_ - pos_); }
  void set_poll(std::function<void()> poll) override { source_->set_poll(std::move(poll)); }

 private:
  bool refill() {
    pos_ = 0;
    size_ = source_->read(block_.data(), block_.size());
    return size_ > 0;
  }

  // Returns the next byte that is not white space, without consuming it.
  int next_solid() {
    while (pos_ < size_ || refill()) {
      const char c = block_[pos_];
      if (c != ' ' && c != '\t' && c != '\r' && c != '\n') return static_cast<unsigned char>(c);
      line_ += c == '\n';
      ++pos_;
    }
    return kEnd;
  }

  void begin_array() {
    line_ = 1;
    refill();
    constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
    if (std::string_view(block_).substr(0, size_).starts_with(kByteOrderMark)) {
      pos_ = kByteOrderMark.size();
      note_byte_order_mark();
    }
    const int c = next_solid();
    if (c == '{') {
      throw error("the file holds a JSON object, not an array")
          .hint(
              "name a file with an object per line .jsonl; if the rows are under a key such as \"data\", write them "
              "to another file: jq -c '.data[]' a.json > a.jsonl; leave out other files by a pattern such as "
              "path = \"data/train-*.json\"");
    }
    if (c == kEnd) throw error("the file is empty; it should hold a JSON array");
    if (c != '[') throw unexpected(c, "\"[\", since the file should hold a JSON array");
    ++pos_;
  }

  bool end_array() {
    ++pos_;
    ended_ = true;
    if (const int c = next_solid(); c != kEnd) throw unexpected(c, "the end of the file after the array");
    return false;
  }

  // Appends bytes up to the end of the element, which is a "," or "]" at the level of the array.
  void read_element(RawRow& row) {
    row.kind = RowKind::kJson;
    row.line = line_;
    row.bytes.clear();
    uint64_t depth = 0;
    bool in_string = false, escaped = false;
    while (pos_ < size_ || refill()) {
      size_t end = pos_;
      bool done = false;
      for (; end < size_ && !done; ++end) {
        const char c = block_[end];
        line_ += c == '\n';
        if (in_string) {
          in_string = escaped || c != '"';
          escaped = !escaped && c == '\\';
        } else if (c == '"') {
          in_string = true;
        } else if (c == '[' || c == '{') {
          ++depth;
        } else if (depth > 0) {
          depth -= c == ']' || c == '}';
        } else if (c == ',' || c == ']') {
          done = true;
          break;
        }
      }
      row.bytes.append(block_, pos_, end - pos_);
      pos_ = end;
      if (row.bytes.size() > kMaxDocumentBytes) throw too_long_error(position(row.line), "element of the array");
      if (done) return require_text(row.bytes, position(row.line));
    }
    throw Error(ExitCode::kConfig, position(row.line), "the file ends in the middle of this element of the array")
        .hint("copy or download the file again");
  }

  SourcePosition position(uint64_t line) const { return line_position(source_->path(), line); }
  Error error(std::string message) const { return Error(ExitCode::kConfig, position(line_), std::move(message)); }
  Error unexpected(int c, std::string_view wanted) const {
    const std::string found = c == kEnd               ? "the file ends"
                              : c < 0x20 || c >= 0x7F ? fmt::format("there is byte 0x{:02X}", c)
                                                      : fmt::format("there is '{}'", static_cast<char>(c));
    return error(fmt::format("not a JSON array: {}, not {}", found, wanted));
  }

  std::unique_ptr<ByteSource> source_;
  std::string block_;
  size_t pos_ = 0, size_ = 0;
  uint64_t line_ = 0;
  bool ended_ = false;
};

}  // namespace

std::unique_ptr<RowReader> open_array_rows(const std::string& path) { return std::make_unique<ArrayRows>(path); }

}  // namespace chassis
