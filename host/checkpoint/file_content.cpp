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

void FileContent::add(uint64_t offset, Stretch stretch) {
  if (stretch.num_bytes == 0) return;
  if (offset > num_bytes_ || stretch.num_bytes > num_bytes_ - offset) {
    throw plugin_error("'" + path_ + "' has " + std::to_string(num_bytes_) + " bytes; " +
                       std::to_string(stretch.num_bytes) + " at byte " + std::to_string(offset) +
                       " reach behind its end");
  }
  const auto next = stretches_.lower_bound(offset);
  const bool meets_next = next != stretches_.end() && next->first - offset < stretch.num_bytes;
  const bool meets_last =
      next != stretches_.begin() && offset - std::prev(next)->first < std::prev(next)->second.num_bytes;
  if (meets_next || meets_last) {
    throw plugin_error("'" + path_ + "': " + std::to_string(stretch.num_bytes) + " bytes at byte " +
                       std::to_string(offset) + " lie in the header, in a tensor, or in what was filled before");
  }
  stretches_.emplace(offset, stretch);
}

uint32_t FileContent::checksum(Crc which, uint64_t offset, uint64_t num_bytes) const {
  uint64_t at = offset, end = 0;
  if (__builtin_add_overflow(offset, num_bytes, &end) || end > num_bytes_)
    throw plugin_error("'" + path_ + "' has " + std::to_string(num_bytes_) + " bytes, not " + std::to_string(end));
  if (num_bytes == 0) return 0;
  auto next = stretches_.lower_bound(offset);
  const auto cuts = [&](const std::pair<const uint64_t, Stretch>& s) {
    return s.first < end && s.first + s.second.num_bytes > offset &&
           (s.first < offset || s.first + s.second.num_bytes > end);
  };
  uint32_t crc = 0;
  const auto append = [&](uint32_t more, uint64_t count) {
    crc = crc_combine(which, crc, more, count);
    at += count;
  };
  if (next != stretches_.begin() && cuts(*std::prev(next))) --next;  // refused below
  for (; next != stretches_.end() && next->first < end; ++next) {
    const auto& [begin, stretch] = *next;
    if (cuts(*next)) {
      throw plugin_error("'" + path_ + "': a checksum of bytes " + std::to_string(offset) + " to " +
                         std::to_string(end) + " cuts what lies from byte " + std::to_string(begin) + " on");
    }
    append(crc_of_zeros(which, begin - at), begin - at);
    append(which == Crc::k32c ? stretch.crc32c : stretch.of_format, stretch.num_bytes);
  }
  append(crc_of_zeros(which, end - at), end - at);
  return crc;
}

}  // namespace chassis
