// Collects what is appended, and writes it in large pieces.
#include "host/data/store_output.hpp"

#include <fmt/format.h>

#include "host/base/error.hpp"
#include "host/base/hash.hpp"

namespace chassis {
namespace {

constexpr size_t kPendingBytes = size_t{1} << 20;

}  // namespace

StoreOutput::StoreOutput(const std::string& path) : file_(File::create_exclusive(path)) {
  pending_.reserve(kPendingBytes);
}

void StoreOutput::append(const void* data, size_t num_bytes) {
  pending_.append(static_cast<const char*>(data), num_bytes);
  if (pending_.size() >= kPendingBytes) flush();
}

void StoreOutput::flush() {
  file_.pwrite_exact(pending_.data(), pending_.size(), written_);
  checksum_ = crc32c(checksum_, pending_.data(), pending_.size());
  written_ += pending_.size();
  pending_.clear();
}

void StoreOutput::finish() {
  flush();
  file_.fsync();
  file_.close();
}

void require_size(const File& file, uint64_t expected) {
  if (const uint64_t size = file.size(); size != expected)
    throw storage_error(fmt::format("{}: has {} bytes, its manifest says {}", file.path(), size, expected));
}

}  // namespace chassis
