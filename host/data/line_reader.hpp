// Lines of a text file, read in blocks: memory is bounded by the longest line, which is itself limited.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "host/base/error.hpp"
#include "host/base/file.hpp"

namespace chassis {

// A document longer than this is refused, so that memory stays bounded.
constexpr uint64_t kMaxDocumentBytes = uint64_t{64} << 20;

class LineReader {
 public:
  // Messages show `name`.
  LineReader(File file, std::string name);

  // The next line without its "\n" or "\r\n", valid until the next call; false at the end. A byte order mark at the
  // start of the file is skipped. Throws if the line is not UTF-8 or too long.
  bool next(std::string_view& line);

  // The number of the line that next() returned last, from 1.
  uint64_t line_number() const { return line_number_; }
  uint64_t num_bytes_read() const { return consumed_; }
  uint64_t num_bytes() const { return size_; }
  SourcePosition position() const;
  const std::string& name() const { return name_; }

 private:
  bool refill();
  File file_;
  std::string name_;
  uint64_t size_;
  uint64_t read_ = 0;      // from the file into the buffer
  uint64_t consumed_ = 0;  // out of the buffer
  uint64_t line_number_ = 0;
  std::string buffer_;
  size_t begin_ = 0, end_ = 0;
};

// A line number that does not fit into a position becomes the largest one that does.
SourcePosition line_position(std::string name, uint64_t line);
// True if the text is empty or has only white space.
bool is_blank(std::string_view text);
// Throws a config error at `where` if the text is not UTF-8.
void require_utf8(std::string_view text, const SourcePosition& where);

}  // namespace chassis
