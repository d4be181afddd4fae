// Keeps the segments of a file by offset, and combines their checksums.
#include "host/checkpoint/file_content.hpp"

#include <algorithm>
#include <utility>

#include "host/base/error.hpp"

namespace chassis {
namespace {

uint32_t crc_of_zeros(Crc which, uint64_t num_bytes) { return ~crc_shift(which, ~uint32_t{0}, num_bytes); }

}  // namespace

FileContent::FileContent(std::string path, uint64_t num_bytes, std::string_view header, Crc of_format)
    : path_(std::move(path)), num_bytes_(num_bytes), of_format_(of_format) {
  add(0, {header.size(), crc_update(Crc::k32c, 0, header.data(), header.size()),
          crc_update(of_format, 0, header.data(), header.size())});
}

void FileContent::add_tensor(uint64_t offset, uint64_t num_bytes, uint32_t crc32c, uint32_t of_format) {
  add(offset, {num_bytes, crc32c, of_format});
}

void FileContent::fill(uint64_t offset, std::string bytes) {
  if (bytes.empty()) return;
  add(offset, {bytes.size(), crc_update(Crc::k32c, 0, bytes.data(), bytes.size()),
               crc_update(of_format_, 0, bytes.data(), bytes.size())});
  fills_.emplace(offset, std::move(bytes));
}

void FileContent::add(uint64_t offset, Segment segment) {
  if (segment.num_bytes == 0) return;
  if (offset > num_bytes_ || segment.num_bytes > num_bytes_ - offset) {
    throw plugin_error("'" + path_ + "' has " + std::to_string(num_bytes_) + " bytes; " +
                       std::to_string(segment.num_bytes) + " at byte " + std::to_string(offset) +
                       " extend past its end");
  }
  const auto next = segments_.lower_bound(offset);
  const bool overlaps_next = next != segments_.end() && next->first - offset < segment.num_bytes;
  const bool overlaps_previous =
      next != segments_.begin() && offset - std::prev(next)->first < std::prev(next)->second.num_bytes;
  if (overlaps_next || overlaps_previous) {
    throw plugin_error("'" + path_ + "': " + std::to_string(segment.num_bytes) + " bytes at byte " +
                       std::to_string(offset) + " overlap the header, a tensor, or bytes that were filled before");
  }
  segments_.emplace(offset, segment);
}

uint32_t FileContent::checksum(Crc which, uint64_t offset, uint64_t num_bytes) const {
  uint64_t at = offset, end = 0;
  if (__builtin_add_overflow(offset, num_bytes, &end) || end > num_bytes_)
    throw plugin_error("'" + path_ + "' has " + std::to_string(num_bytes_) + " bytes, not " + std::to_string(end));
  if (num_bytes == 0) return 0;
  auto next = segments_.lower_bound(offset);
  const auto cuts = [&](const std::pair<const uint64_t, Segment>& s) {
    return s.first < end && s.first + s.second.num_bytes > offset &&
           (s.first < offset || s.first + s.second.num_bytes > end);
  };
  uint32_t crc = 0;
  const auto append = [&](uint32_t more, uint64_t count) {
    crc = crc_combine(which, crc, more, count);
    at += count;
  };
  if (next != segments_.begin() && cuts(*std::prev(next))) --next;  // the loop refuses it
  for (; next != segments_.end() && next->first < end; ++next) {
    const auto& [begin, segment] = *next;
    if (cuts(*next)) {
      throw plugin_error("'" + path_ + "': a checksum of bytes " + std::to_string(offset) + " to " +
                         std::to_string(end) + " cuts the part that begins at byte " + std::to_string(begin));
    }
    append(crc_of_zeros(which, begin - at), begin - at);
    append(which == Crc::k32c ? segment.crc32c : segment.of_format, segment.num_bytes);
  }
  append(crc_of_zeros(which, end - at), end - at);
  return crc;
}

}  // namespace chassis
