// Lines of a text file, read in blocks: memory is bounded by the longest line, which is itself limited.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "host/base/error.hpp"
#include "host/data/byte_source.hpp"

namespace chassis {

class LineReader {
 public:
  explicit LineReader(std::unique_ptr<ByteSource> source);

  // The next line without its "\n", valid until the next call; false at the end. A byte order mark at the start of the
  // file is skipped. Throws if the line is not UTF-8, has a NUL byte or is too long.
  bool next_with_cr(std::string_view& line);
  // Also without the "\r" of "\r\n".
  bool next(std::string_view& line);

  // The number of the line that next() returned last, from 1.
  uint64_t line_number() const { return line_number_; }
  bool had_byte_order_mark() const { return had_byte_order_mark_; }
  uint64_t num_bytes_read() const { return source_->num_bytes_read(end_ - begin_); }
  SourcePosition position() const;
  const std::string& path() const { return source_->path(); }
  void set_poll(std::function<void()> poll) { source_->set_poll(std::move(poll)); }

 private:
  bool refill();
  [[noreturn]] void throw_too_long();

  std::unique_ptr<ByteSource> source_;
  uint64_t line_number_ = 0;
  bool had_byte_order_mark_ = false;
  std::string buffer_;
  size_t begin_ = 0, end_ = 0;
};

// A line number that does not fit into a position becomes the largest one that does.
SourcePosition line_position(std::string name, uint64_t line);
// True if the text is empty or has only white space.
bool is_blank(std::string_view text);
// A config error: `what` ("line") has more than kMaxDocumentBytes. `num_bytes` is 0 if their number is unknown.
Error too_long_error(const SourcePosition& where, std::string_view what, uint64_t num_bytes = 0);
// Throws a config error at `where` if the text is not UTF-8, or has a NUL byte.
void require_text(std::string_view text, const SourcePosition& where);

}  // namespace chassis
