// The bytes of a data file in order, unpacked if its name ends in .gz or .zst. Memory use does not depend on the file's
// size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace chassis {

// A document longer than this is refused, so that memory stays bounded.
constexpr uint64_t kMaxDocumentBytes = uint64_t{64} << 20;

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // At most num_bytes; 0 at the end. Throws a config error at the file if it is truncated or corrupt.
  virtual size_t read(char* data, size_t num_bytes) = 0;
  // The number of bytes of the file on disk that have been read, if the caller has not yet used the last `num_unused`
  // bytes.
  virtual uint64_t num_bytes_read(uint64_t num_unused) const = 0;
  const std::string& path() const { return path_; }
  // Called for every block; may throw to end a loop over a long file.
  void set_poll(std::function<void()> poll) { poll_ = std::move(poll); }

 protected:
  explicit ByteSource(std::string path) : path_(std::move(path)) {}
  void poll() const {
    if (poll_) poll_();
  }

 private:
  std::string path_;
  std::function<void()> poll_;
};

// Refuses a compressed file whose name does not say so.
std::unique_ptr<ByteSource> open_bytes(const std::string& path);

}  // namespace chassis
