// Reads blocks, and moves the incomplete last line to the front of the next one.
#include "host/report/followed_file.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "host/base/error.hpp"
#include "host/base/file.hpp"

namespace chassis {
namespace {

constexpr size_t kBlockBytes = size_t{4} << 20, kMaxLineBytes = size_t{16} << 20, kPadding = 64;

}  // namespace

FollowedFile::Poll FollowedFile::poll(const std::function<void(std::string_view text, uint64_t number)>& line,
                                      const std::function<void()>& restart) {
  Poll result;
  if (path_kind(path_) == PathKind::kAbsent) return result;
  const File file = File::open_read(path_);
  result.exists = true;
  struct stat about {};
  if (fstat(file.descriptor(), &about) != 0) throw file_error("cannot read", path_, errno);
  const bool is_same = about.st_dev == device_ && about.st_ino == inode_;
  if (offset_ > 0 && (!is_same || file.size() < offset_)) {
    offset_ = num_lines_ = 0;
    result.restarted = true;
    restart();
  }
  device_ = about.st_dev, inode_ = about.st_ino;
  time_ = static_cast<double>(about.st_mtim.tv_sec) + 1e-9 * static_cast<double>(about.st_mtim.tv_nsec);

  std::vector<char> block(std::min<uint64_t>(kBlockBytes, file.size() - std::min(offset_, file.size())) + kPadding);
  size_t held = 0;          // bytes of an incomplete line at the front
  bool is_skipped = false;  // this line is too long, and its beginning was dropped
  for (uint64_t at = offset_;;) {
    if (block.size() - kPadding == held) block.resize(std::min(2 * held, kMaxLineBytes) + kBlockBytes + kPadding);
    const size_t got = file.pread_some(block.data() + held, block.size() - kPadding - held, at);
    if (got == 0) return result;
    at += got;
    const size_t size = held + got;
    size_t begin = 0;
    for (size_t from = held; const void* const found = std::memchr(block.data() + from, '\n', size - from);) {
      const size_t end = static_cast<size_t>(static_cast<const char*>(found) - block.data());
      ++result.num_lines;
      line(is_skipped ? std::string_view() : std::string_view(block.data() + begin, end - begin), ++num_lines_);
      is_skipped = false;
      begin = from = end + 1;
    }
    held = size - begin;
    offset_ = at - held;
    std::memmove(block.data(), block.data() + begin, held);
    if (held > kMaxLineBytes) held = 0, is_skipped = true;
  }
}

}  // namespace chassis
