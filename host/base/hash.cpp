// CRC32C (polynomial 0x1EDC6F41, reflected), CRC-32 (0x04C11DB7, reflected), XXH64 as published.
#include "host/base/hash.hpp"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace chassis {
namespace {

template <class T>
T load(const unsigned char* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

constexpr uint32_t kCrc32cReflected = 0x82f63b78, kCrc32Reflected = 0xedb88320;

// Eight tables: table[k][b] is the effect of byte b followed by k zero bytes.
using CrcTables = std::array<std::array<uint32_t, 256>, 8>;
constexpr CrcTables make_crc_tables(uint32_t reflected) {
  CrcTables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? reflected : 0);
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      tables[k][byte] = (tables[k - 1][byte] >> 8) ^ tables[0][tables[k - 1][byte] & 0xff];
    }
  }
  return tables;
}
constexpr auto kCrc32cTables = make_crc_tables(kCrc32cReflected), kCrc32Tables = make_crc_tables(kCrc32Reflected);

// a · b modulo the polynomial, reflected: bit 31 is the coefficient of x^0.
constexpr uint32_t product(uint32_t a, uint32_t b, uint32_t reflected) {
  uint32_t sum = 0;
  for (; a != 0; a <<= 1) {
    if (a & 0x80000000u) sum ^= b;
    b = (b >> 1) ^ ((b & 1) ? reflected : 0);
  }
  return sum;
}

// x^(8 · 2^k): the effect of 2^k zero bytes.
constexpr std::array<uint32_t, 64> make_zero_bytes(uint32_t reflected) {
  std::array<uint32_t, 64> out{};
  out[0] = 0x80000000u >> 8;
  for (size_t k = 1; k < out.size(); ++k) out[k] = product(out[k - 1], out[k - 1], reflected);
  return out;
}
constexpr auto kCrc32cZeros = make_zero_bytes(kCrc32cReflected), kCrc32Zeros = make_zero_bytes(kCrc32Reflected);

#if defined(__x86_64__)
// The instruction takes three cycles, and one can start in each cycle, so three stretches are processed at a time and
// their remainders combined.
constexpr size_t kStretchLog2 = 13, kStretch = size_t{1} << kStretchLog2;

uint32_t shift_by_stretch(uint64_t remainder) {
  return product(kCrc32cZeros[kStretchLog2], static_cast<uint32_t>(remainder), kCrc32cReflected);
}

__attribute__((target("sse4.2"))) uint32_t crc32c_sse42(uint32_t seed, const unsigned char* p, size_t n) {
  uint64_t crc = static_cast<uint32_t>(~seed);
  for (; n >= 3 * kStretch; n -= 3 * kStretch, p += 3 * kStretch) {
    uint64_t second = 0, third = 0;
    for (size_t i = 0; i < kStretch; i += 8) {
      crc = _mm_crc32_u64(crc, load<uint64_t>(p + i));
      second = _mm_crc32_u64(second, load<uint64_t>(p + kStretch + i));
      third = _mm_crc32_u64(third, load<uint64_t>(p + 2 * kStretch + i));
    }
    crc = shift_by_stretch(shift_by_stretch(crc) ^ second) ^ third;
  }
  for (; n >= 8; n -= 8, p += 8) crc = _mm_crc32_u64(crc, load<uint64_t>(p));
  auto crc32 = static_cast<uint32_t>(crc);
  for (; n > 0; --n, ++p) crc32 = _mm_crc32_u8(crc32, *p);
  return ~crc32;
}
#endif

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87, kPrime2 = 0xC2B2AE3D27D4EB4F, kPrime3 = 0x165667B19E3779F9,
                   kPrime4 = 0x85EBCA77C2B2AE63, kPrime5 = 0x27D4EB2F165667C5;

uint64_t xxh_round(uint64_t accumulator, uint64_t input) {
  return std::rotl(accumulator + input * kPrime2, 31) * kPrime1;
}

uint32_t crc_by_table(const CrcTables& tables, uint32_t seed, const void* data, size_t num_bytes) {
  const auto* p = static_cast<const unsigned char*>(data);
  uint32_t crc = ~seed;
  for (; num_bytes >= 8; num_bytes -= 8, p += 8) {
    const uint64_t word = load<uint64_t>(p) ^ crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= tables[7 - k][(word >> (8 * k)) & 0xff];
  }
  for (; num_bytes > 0; --num_bytes, ++p) crc = (crc >> 8) ^ tables[0][(crc ^ *p) & 0xff];
  return ~crc;
}

}  // namespace

uint32_t crc32c_portable(uint32_t seed, const void* data, size_t num_bytes) {
  return crc_by_table(kCrc32cTables, seed, data, num_bytes);
}

uint32_t crc32c(uint32_t seed, const void* data, size_t num_bytes) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return crc32c_sse42(seed, static_cast<const unsigned char*>(data), num_bytes);
#endif
  return crc32c_portable(seed, data, num_bytes);
}

uint32_t crc_update(Crc which, uint32_t seed, const void* data, size_t num_bytes) {
  return which == Crc::k32c ? crc32c(seed, data, num_bytes) : crc_by_table(kCrc32Tables, seed, data, num_bytes);
}

uint32_t crc_shift(Crc which, uint32_t remainder, uint64_t num_bytes) {
  const auto& zeros = which == Crc::k32c ? kCrc32cZeros : kCrc32Zeros;
  const uint32_t reflected = which == Crc::k32c ? kCrc32cReflected : kCrc32Reflected;
  for (size_t k = 0; num_bytes != 0; ++k, num_bytes >>= 1)
    if (num_bytes & 1) remainder = product(zeros[k], remainder, reflected);
  return remainder;
}

uint32_t crc_combine(Crc which, uint32_t crc_a, uint32_t crc_b, uint64_t num_bytes_b) {
  return crc_shift(which, crc_a, num_bytes_b) ^ crc_b;
}

uint32_t crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t num_bytes_b) {
  return crc_combine(Crc::k32c, crc_a, crc_b, num_bytes_b);
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
