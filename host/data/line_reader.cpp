// Reads blocks of 1 MiB; a line that crosses a block is moved to the front of a buffer that grows with it.
#include "host/data/line_reader.hpp"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "host/base/units.hpp"

namespace chassis {
namespace {

constexpr size_t kBlockBytes = size_t{1} << 20;
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

LineReader::LineReader(File file, std::string name)
    : file_(std::move(file)), name_(std::move(name)), size_(file_.size()) {}

SourcePosition LineReader::position() const { return line_position(name_, line_number_); }

bool LineReader::refill() {
  const size_t num_bytes = static_cast<size_t>(std::min<uint64_t>(kBlockBytes, size_ - read_));
  if (num_bytes == 0) return false;
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (buffer_.size() < end_ + num_bytes) buffer_.resize(std::max(end_ + num_bytes, buffer_.size() * 3 / 2));
  file_.pread_exact(buffer_.data() + end_, num_bytes, read_);
  read_ += num_bytes;
  end_ += num_bytes;
  return true;
}

bool LineReader::next(std::string_view& line) {
  size_t searched = 0;
  const char* newline = nullptr;
  while (true) {
    newline = static_cast<const char*>(std::memchr(buffer_.data() + begin_ + searched, '\n', end_ - begin_ - searched));
    if (newline) break;
    searched = end_ - begin_;
    if (searched > kMaxDocumentBytes) {
      throw Error(ExitCode::kConfig, line_position(name_, line_number_ + 1),
                  fmt::format("the line is longer than {}", bytes_text(kMaxDocumentBytes)));
    }
    if (!refill()) break;
  }
  if (!newline && searched == 0) return false;
  const size_t length = newline ? static_cast<size_t>(newline - (buffer_.data() + begin_)) : searched;
  line = std::string_view(buffer_.data() + begin_, length);
  begin_ += length + (newline ? 1 : 0);
  consumed_ += length + (newline ? 1 : 0);
  ++line_number_;
  if (line_number_ == 1 && line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (!simdjson::validate_utf8(line.data(), line.size())) require_utf8(line, position());
  return true;
}

SourcePosition line_position(std::string name, uint64_t line) {
  constexpr uint64_t kLast = std::numeric_limits<int>::max();
  return {std::move(name), static_cast<int>(std::min(line, kLast)), 0};
}

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n\v\f") == std::string_view::npos; }

void require_utf8(std::string_view text, const SourcePosition& where) {
  if (simdjson::validate_utf8(text.data(), text.size())) return;
  const size_t offset = valid_prefix(text);
  SourcePosition position = where;
  const std::string_view before = text.substr(0, offset);
  position.line += static_cast<int>(std::count(before.begin(), before.end(), '\n'));
  const size_t line_begin = before.rfind('\n');
  position.column = static_cast<int>(line_begin == std::string_view::npos ? offset + 1 : offset - line_begin);
  throw Error(ExitCode::kConfig, position,
              fmt::format("not UTF-8: byte 0x{:02X}", static_cast<unsigned char>(text[offset])))
      .hint("convert the file, for example with iconv -f latin1 -t utf-8");
}

}  // namespace chassis
