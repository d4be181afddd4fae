// SHA-256 after FIPS 180-4, CRC32C (polynomial 0x1EDC6F41, reflected), XXH64 after its published specification.
#include "host/base/hash.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "host/base/file.hpp"

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace chassis {
namespace {

constexpr std::array<uint32_t, 64> kSha256Rounds = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t load_big_endian(const unsigned char* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | uint32_t{p[3]};
}

template <class T>
T load(const unsigned char* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

constexpr uint32_t kCrc32cReflected = 0x82f63b78;

// Eight tables: table[k][b] is the effect of byte b followed by k zero bytes.
constexpr std::array<std::array<uint32_t, 256>, 8> make_crc_tables() {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kCrc32cReflected : 0);
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      tables[k][byte] = (tables[k - 1][byte] >> 8) ^ tables[0][tables[k - 1][byte] & 0xff];
    }
  }
  return tables;
}
constexpr auto kCrcTables = make_crc_tables();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t crc32c_sse42(uint32_t seed, const unsigned char* p, size_t n) {
  uint64_t crc = static_cast<uint32_t>(~seed);
  for (; n >= 8; n -= 8, p += 8) crc = _mm_crc32_u64(crc, load<uint64_t>(p));
  auto crc32 = static_cast<uint32_t>(crc);
  for (; n > 0; --n, ++p) crc32 = _mm_crc32_u8(crc32, *p);
  return ~crc32;
}
#endif

uint32_t times(const std::array<uint32_t, 32>& matrix, uint32_t vector) {
  uint32_t sum = 0;
  for (int bit = 0; vector != 0; ++bit, vector >>= 1) {
    if (vector & 1) sum ^= matrix[static_cast<size_t>(bit)];
  }
  return sum;
}

std::array<uint32_t, 32> squared(const std::array<uint32_t, 32>& matrix) {
  std::array<uint32_t, 32> out{};
  for (size_t i = 0; i < 32; ++i) out[i] = times(matrix, matrix[i]);
  return out;
}

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87, kPrime2 = 0xC2B2AE3D27D4EB4F, kPrime3 = 0x165667B19E3779F9,
                   kPrime4 = 0x85EBCA77C2B2AE63, kPrime5 = 0x27D4EB2F165667C5;

uint64_t xxh_round(uint64_t accumulator, uint64_t input) {
  return std::rotl(accumulator + input * kPrime2, 31) * kPrime1;
}

}  // namespace

Sha256::Sha256()
    : state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19} {}

void Sha256::block(const unsigned char* bytes) {
  std::array<uint32_t, 64> w;
  for (size_t i = 0; i < 16; ++i) w[i] = load_big_endian(bytes + 4 * i);
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kSha256Rounds[i] + w[i];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const std::array<uint32_t, 8> worked = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state_[i] += worked[i];
}

void Sha256::update(const void* data, size_t num_bytes) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  size_t filled = num_bytes_ % 64;
  num_bytes_ += num_bytes;
  if (filled > 0) {
    const size_t take = std::min(64 - filled, num_bytes);
    if (take > 0) std::memcpy(pending_.data() + filled, bytes, take);
    bytes += take, num_bytes -= take, filled += take;
    if (filled < 64) return;
    block(pending_.data());
  }
  for (; num_bytes >= 64; num_bytes -= 64, bytes += 64) block(bytes);
  if (num_bytes > 0) std::memcpy(pending_.data(), bytes, num_bytes);
}

std::string Sha256::hex() {
  const uint64_t num_bits = num_bytes_ * 8;
  const unsigned char one = 0x80, zero = 0;
  update(&one, 1);
  while (num_bytes_ % 64 != 56) update(&zero, 1);
  std::array<unsigned char, 8> length;
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<unsigned char>(num_bits >> (56 - 8 * i));
  update(length.data(), length.size());
  std::string out;
  for (uint32_t word : state_) {
    for (int shift = 28; shift >= 0; shift -= 4) out += "0123456789abcdef"[(word >> shift) & 15];
  }
  return out;
}

std::string sha256_hex(std::string_view bytes) {
  Sha256 sha;
  sha.update(bytes);
  return sha.hex();
}

std::string sha256_file(const std::string& path) {
  const File file = File::open_read(path);
  std::vector<char> piece(1 << 20);
  Sha256 sha;
  for (uint64_t offset = 0;;) {
    const size_t got = file.pread_some(piece.data(), piece.size(), offset);
    if (got == 0) return sha.hex();
    sha.update(piece.data(), got);
    offset += got;
  }
}

uint32_t crc32c_portable(uint32_t seed, const void* data, size_t num_bytes) {
  const auto* p = static_cast<const unsigned char*>(data);
  uint32_t crc = ~seed;
  for (; num_bytes >= 8; num_bytes -= 8, p += 8) {
    const uint64_t word = load<uint64_t>(p) ^ crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= kCrcTables[7 - k][(word >> (8 * k)) & 0xff];
  }
  for (; num_bytes > 0; --num_bytes, ++p) crc = (crc >> 8) ^ kCrcTables[0][(crc ^ *p) & 0xff];
  return ~crc;
}

uint32_t crc32c(uint32_t seed, const void* data, size_t num_bytes) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return crc32c_sse42(seed, static_cast<const unsigned char*>(data), num_bytes);
#endif
  return crc32c_portable(seed, data, num_bytes);
}

uint32_t crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t num_bytes_b) {
  // The operator "append one zero bit" as a matrix over GF(2), squared as often as the length needs (after zlib).
  std::array<uint32_t, 32> zero_bits{};
  zero_bits[0] = kCrc32cReflected;
  for (size_t i = 1; i < 32; ++i) zero_bits[i] = 1u << (i - 1);
  auto zero_bytes = squared(squared(squared(zero_bits)));
  for (; num_bytes_b != 0; num_bytes_b >>= 1) {
    if (num_bytes_b & 1) crc_a = times(zero_bytes, crc_a);
    zero_bytes = squared(zero_bytes);
  }
  return crc_a ^ crc_b;
}

uint64_t hash64(std::string_view bytes, uint64_t seed) {
  const auto* p = reinterpret_cast<const unsigned char*>(bytes.data());
  size_t n = bytes.size();
  uint64_t hash;
  if (n >= 32) {
    std::array<uint64_t, 4> lanes = {seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1};
    for (; n >= 32; n -= 32) {
      for (auto& lane : lanes) lane = xxh_round(lane, load<uint64_t>(p)), p += 8;
    }
    hash = std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) + std::rotl(lanes[3], 18);
    for (uint64_t lane : lanes) hash = (hash ^ xxh_round(0, lane)) * kPrime1 + kPrime4;
  } else {
    hash = seed + kPrime5;
  }
  hash += bytes.size();
  for (; n >= 8; n -= 8, p += 8) hash = std::rotl(hash ^ xxh_round(0, load<uint64_t>(p)), 27) * kPrime1 + kPrime4;
  if (n >= 4) {
    hash = std::rotl(hash ^ (load<uint32_t>(p) * kPrime1), 23) * kPrime2 + kPrime3;
    n -= 4, p += 4;
  }
  for (; n > 0; --n, ++p) hash = std::rotl(hash ^ (*p * kPrime5), 11) * kPrime1;
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

}  // namespace chassis
