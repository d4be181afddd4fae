// Hashes: SHA-256 for identity, CRC32C for checksums of bytes on disk, CRC-32 for formats that use it, XXH64 for keys
// of tables and random streams.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace chassis {

class Sha256 {
 public:
  // portable: does not use the processor's SHA instructions; for tests.
  explicit Sha256(bool portable = false);
  void update(const void* data, size_t num_bytes);
  void update(std::string_view text) { update(text.data(), text.size()); }
  // 64 lower-case hex digits. The object cannot be used afterwards.
  std::string hex();

 private:
  void blocks(const unsigned char* bytes, size_t num_blocks);
  std::array<uint32_t, 8> state_;
  std::array<unsigned char, 64> pending_;
  uint64_t num_bytes_ = 0;
  bool portable_;
};

std::string sha256_hex(std::string_view bytes);
// Reads the file in pieces; throws a storage error if it cannot be read.
std::string sha256_file(const std::string& path);

// CRC32C (Castagnoli). `seed` is the checksum of the preceding bytes, 0 at the start: crc32c(crc32c(0, a), b) is the
// checksum of a followed by b. Uses the processor's instruction if it has one.
uint32_t crc32c(uint32_t seed, const void* data, size_t num_bytes);
// The same from a table, on any processor.
uint32_t crc32c_portable(uint32_t seed, const void* data, size_t num_bytes);
// The checksum of a followed by b, from the checksums of both and the length of b.
uint32_t crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t num_bytes_b);

// The 32-bit checksums: CRC32C, and the CRC-32 of IEEE 802.3, which ZIP files use.
enum class Crc : uint32_t { k32c, k32 };
uint32_t crc_update(Crc which, uint32_t seed, const void* data, size_t num_bytes);
// The remainder of a polynomial over GF(2) after num_bytes zero bytes are appended: the linear part of a checksum.
uint32_t crc_shift(Crc which, uint32_t remainder, uint64_t num_bytes);
uint32_t crc_combine(Crc which, uint32_t crc_a, uint32_t crc_b, uint64_t num_bytes_b);

// XXH64: the same value on every machine and in every version.
uint64_t hash64(std::string_view bytes, uint64_t seed);

}  // namespace chassis
