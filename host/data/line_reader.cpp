// Reads blocks of 1 MiB; a line that crosses a block is moved to the front of a buffer that grows with it.
#include "host/data/line_reader.hpp"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "host/base/byte_limit.hpp"

namespace chassis {
namespace {

constexpr size_t kBlockBytes = size_t{1} << 20;
constexpr uint64_t kMaxCountedBytes = uint64_t{1} << 30;  // counted in a line that is too long
constexpr size_t kHeadBytes = 2;                          // enough for the marks of other encodings and of packers
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// Length of the longest valid prefix of a text that is known to be invalid.
size_t valid_prefix(std::string_view text) {
  size_t offset = 0;
  while (offset < text.size()) {
    const auto first = static_cast<unsigned char>(text[offset]);
    const size_t length = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    if (length > text.size() - offset || !simdjson::validate_utf8(text.data() + offset, length)) break;
    offset += length;
  }
  return offset;
}

}  // namespace

LineReader::LineReader(std::unique_ptr<ByteSource> source) : source_(std::move(source)) {}

SourcePosition LineReader::position() const { return line_position(path(), line_number_); }

bool LineReader::refill() {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (buffer_.size() < end_ + kBlockBytes) buffer_.resize(std::max(end_ + kBlockBytes, buffer_.size() * 3 / 2));
  const size_t num_bytes = source_->read(buffer_.data() + end_, kBlockBytes);
  end_ += num_bytes;
  return num_bytes > 0;
}

// Reads on, so that the message has both numbers.
void LineReader::throw_too_long() {
  uint64_t num_bytes = end_ - begin_;
  while (num_bytes < kMaxCountedBytes) {
    const size_t block = source_->read(buffer_.data(), kBlockBytes);
    const void* newline = std::memchr(buffer_.data(), '\n', block);
    num_bytes += newline ? static_cast<size_t>(static_cast<const char*>(newline) - buffer_.data()) : block;
    if (block == 0 || newline) throw too_long_error(line_position(path(), line_number_ + 1), "line", num_bytes);
  }
  throw too_long_error(line_position(path(), line_number_ + 1), "line");
}

bool LineReader::next_with_cr(std::string_view& line) {
  size_t searched = 0;
  const char* newline = nullptr;
  while (true) {
    newline = static_cast<const char*>(std::memchr(buffer_.data() + begin_ + searched, '\n', end_ - begin_ - searched));
    if (newline) break;
    searched = end_ - begin_;
    if (searched > kMaxDocumentBytes) throw_too_long();
    if (!refill()) break;
  }
  if (!newline && searched == 0) return false;
  const size_t length = newline ? static_cast<size_t>(newline - (buffer_.data() + begin_)) : searched;
  if (length > kMaxDocumentBytes) throw too_long_error(line_position(path(), line_number_ + 1), "line", length);
  line = std::string_view(buffer_.data() + begin_, length);
  begin_ += length + (newline ? 1 : 0);
  ++line_number_;
  if (line_number_ == 1 && line.starts_with(kByteOrderMark)) {
    line.remove_prefix(kByteOrderMark.size());
    had_byte_order_mark_ = true;
  }
  require_text(line, position());
  return true;
}

bool LineReader::next(std::string_view& line) {
  if (!next_with_cr(line)) return false;
  if (line.ends_with('\r')) line.remove_suffix(1);
  return true;
}

SourcePosition line_position(std::string name, uint64_t line) {
  constexpr uint64_t kLast = std::numeric_limits<int>::max();
  return {std::move(name), static_cast<int>(std::min(line, kLast)), 0};
}

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n\v\f") == std::string_view::npos; }

Error too_long_error(const SourcePosition& where, std::string_view what, uint64_t num_bytes) {
  const auto [size, limit] = bytes_texts(num_bytes, kMaxDocumentBytes);
  return Error(ExitCode::kConfig, where,
               fmt::format("the {} has {}, but a document may have at most {}", what,
                           num_bytes > 0 ? size : "more than " + limit, limit));
}

void require_text(std::string_view text, const SourcePosition& where) {
  const bool is_utf8 = simdjson::validate_utf8(text.data(), text.size());
  const size_t offset = is_utf8 ? text.find('\0') : valid_prefix(text);
  if (offset == std::string_view::npos) return;
  SourcePosition position = where;
  const std::string_view before = text.substr(0, offset);
  position.line += static_cast<int>(std::count(before.begin(), before.end(), '\n'));
  const size_t line_begin = before.rfind('\n');
  position.column = static_cast<int>(line_begin == std::string_view::npos ? offset + 1 : offset - line_begin);
  if (is_utf8) {
    throw Error(ExitCode::kConfig, position, "a NUL byte: the file is not text, or was not written completely")
        .hint("if it is UTF-16, convert it with iconv -f utf-16 -t utf-8");
  }
  const bool is_begin = where.line <= 1 && offset < kHeadBytes;
  const bool is_utf_16 = is_begin && (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF"));
  const bool is_packed = is_begin && (text.starts_with("\x1F\x8B") || text.starts_with("\x28\xB5\x2F\xFD"));
  throw Error(ExitCode::kConfig, position,
              fmt::format("not UTF-8: byte 0x{:02X}", static_cast<unsigned char>(text[offset])))
      .hint(is_utf_16   ? "it begins as UTF-16 does: convert it with iconv -f utf-16 -t utf-8"
            : is_packed ? "it is compressed twice: unpack it once"
                        : "convert the file, for example with iconv -f latin1 -t utf-8");
}

}  // namespace chassis
