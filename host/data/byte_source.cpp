// Plain files, gzip with zlib (RFC 1952, several members), and Zstandard (RFC 8878, several frames).
#include "host/data/byte_source.hpp"

#include <fmt/format.h>
#define ZLIB_CONST  // input is const
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/file.hpp"

namespace chassis {
namespace {

constexpr size_t kPackedBytes = size_t{256} << 10;
constexpr std::string_view kGzipMagic = "\x1f\x8b", kZstdMagic = "\x28\xb5\x2f\xfd";

class PlainBytes final : public ByteSource {
 public:
  explicit PlainBytes(File file) : ByteSource(file.path()), file_(std::move(file)), size_(file_.size()) {}

  size_t read(char* data, size_t num_bytes) override {
    poll();
    const auto wanted = static_cast<size_t>(std::min<uint64_t>(num_bytes, size_ - read_));
    file_.pread_exact(data, wanted, read_);
    read_ += wanted;
    return wanted;
  }

  uint64_t num_bytes_read(uint64_t num_unused) const override { return read_ - num_unused; }

 private:
  File file_;
  uint64_t size_, read_ = 0;
};

// Reads the packed file in blocks; a subclass unpacks them.
class PackedBytes : public ByteSource {
 public:
  explicit PackedBytes(File file) : ByteSource(file.path()), file_(std::move(file)), size_(file_.size()) {
    if (size_ == 0) throw Error(ExitCode::kConfig, {path(), 0, 0}, "the file is empty, not even an empty archive");
    packed_.resize(static_cast<size_t>(std::min<uint64_t>(kPackedBytes, size_)));
  }

  uint64_t num_bytes_read(uint64_t) const override { return read_ - pending_.size(); }

 protected:
  // False at the end of the file.
  bool refill() {
    poll();
    const auto wanted = static_cast<size_t>(std::min<uint64_t>(packed_.size(), size_ - read_));
    if (wanted == 0) return false;
    file_.pread_exact(packed_.data(), wanted, read_);
    read_ += wanted;
    pending_ = std::string_view(packed_).substr(0, wanted);
    return true;
  }

  Error truncated() const {
    return Error(ExitCode::kConfig, {path(), 0, 0},
                 fmt::format("the archive is truncated: it ends after {} bytes, in the middle of its data", size_))
        .hint("copy or download the file again");
  }
  Error corrupt(std::string_view why) const {
    return Error(ExitCode::kConfig, {path(), 0, 0},
                 fmt::format("the archive is damaged at byte {} of {}: {}", num_bytes_read(0), size_, why));
  }

  std::string_view pending_;  // read from the file, but not unpacked

 private:
  File file_;
  uint64_t size_, read_ = 0;
  std::string packed_;
};

class GzipBytes final : public PackedBytes {
 public:
  explicit GzipBytes(File file) : PackedBytes(std::move(file)) {
    constexpr int kGzipOnly = 16;
    if (::inflateInit2(&stream_, MAX_WBITS + kGzipOnly) != Z_OK) throw internal_error("zlib cannot be initialised");
  }
  ~GzipBytes() override { ::inflateEnd(&stream_); }

  size_t read(char* data, size_t num_bytes) override {
    poll();
    const size_t wanted = std::min<size_t>(num_bytes, std::numeric_limits<uInt>::max());
    stream_.next_out = reinterpret_cast<Bytef*>(data);
    stream_.avail_out = static_cast<uInt>(wanted);
    while (stream_.avail_out == wanted && begin_member()) unpack();
    return wanted - stream_.avail_out;
  }

 private:
  // False after the last member. Zeros may follow it, as on tapes; gzip accepts them too.
  bool begin_member() {
    while (!in_member_) {
      if (pending_.empty() && !refill()) return false;
      if (num_members_ > 0 && pending_.front() == 0) {
        pending_.remove_prefix(1);
        padded_ = true;
        continue;
      }
      if (padded_) throw corrupt("zeros are followed by other bytes");
      ::inflateReset(&stream_);
      in_member_ = true;
    }
    return true;
  }

  void unpack() {
    if (pending_.empty() && !refill()) throw truncated();
    stream_.next_in = reinterpret_cast<const Bytef*>(pending_.data());
    stream_.avail_in = static_cast<uInt>(pending_.size());
    const int code = ::inflate(&stream_, Z_NO_FLUSH);
    pending_.remove_prefix(pending_.size() - stream_.avail_in);
    if (code == Z_STREAM_END) {
      in_member_ = false;
      ++num_members_;
    } else if (code != Z_OK) {
      throw corrupt(stream_.msg ? stream_.msg : "not gzip");
    }
  }

  z_stream stream_{};
  bool in_member_ = false, padded_ = false;
  uint64_t num_members_ = 0;
};

class ZstdBytes final : public PackedBytes {
 public:
  explicit ZstdBytes(File file) : PackedBytes(std::move(file)), stream_(::ZSTD_createDStream(), &::ZSTD_freeDStream) {
    if (!stream_) throw internal_error("zstd cannot be initialised");
  }

  size_t read(char* data, size_t num_bytes) override {
    poll();
    ZSTD_outBuffer out{data, num_bytes, 0};
    while (out.pos == 0) {
      if (pending_.empty() && !refill() && !flushing_) {
        if (in_frame_) throw truncated();
        return 0;
      }
      ZSTD_inBuffer in{pending_.data(), pending_.size(), 0};
      const size_t left = ::ZSTD_decompressStream(stream_.get(), &out, &in);
      if (::ZSTD_isError(left)) throw error(left);
      pending_.remove_prefix(in.pos);
      in_frame_ = left != 0;
      flushing_ = in_frame_ && out.pos == out.size;  // the decoder may hold more text than fits
    }
    return out.pos;
  }

 private:
  Error error(size_t code) const {
    Error error = corrupt(::ZSTD_getErrorName(code));
    if (::ZSTD_getErrorCode(code) == ZSTD_error_frameParameter_windowTooLarge)
      error.hint("compress the file again without --long or --ultra");
    return error;
  }

  std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream_;
  bool in_frame_ = false, flushing_ = false;
};

void require_plain(const File& file) {
  std::string head(4, '\0');
  head.resize(file.pread_some(head.data(), head.size(), 0));
  const std::string_view packed = head.starts_with(kGzipMagic) ? "gz" : head.starts_with(kZstdMagic) ? "zst" : "";
  if (packed.empty()) return;
  throw Error(ExitCode::kConfig, {file.path(), 0, 0}, "the file is compressed, but its name does not say so")
      .hint(fmt::format("rename it to {}.{}", file.path(), packed));
}

}  // namespace

std::unique_ptr<ByteSource> open_bytes(const std::string& path) {
  File file = File::open_read(path);
  if (path.ends_with(".gz")) return std::make_unique<GzipBytes>(std::move(file));
  if (path.ends_with(".zst")) return std::make_unique<ZstdBytes>(std::move(file));
  require_plain(file);
  return std::make_unique<PlainBytes>(std::move(file));
}

}  // namespace chassis
