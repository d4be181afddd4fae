// SHA-256 of FIPS 180-4, with the processor's SHA instructions if it has them.
#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "host/base/file.hpp"
#include "host/base/hash.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
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

void portable_block(std::array<uint32_t, 8>& state, const unsigned char* bytes) {
  std::array<uint32_t, 64> w;
  for (size_t i = 0; i < 16; ++i) w[i] = load_big_endian(bytes + 4 * i);
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kSha256Rounds[i] + w[i];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const std::array<uint32_t, 8> worked = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state[i] += worked[i];
}

#if defined(__x86_64__)
bool processor_has_sha() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __builtin_cpu_supports("sse4.1") && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b >> 29 & 1) != 0;
}

__attribute__((target("sha,sse4.1,ssse3"))) void blocks_with_instructions(uint32_t* state, const unsigned char* bytes,
                                                                          size_t num_blocks) {
  const auto load = [](const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); };
  const __m128i swap_bytes = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  // The instructions take the state as (a b e f) and (c d g h).
  const __m128i cdab = _mm_shuffle_epi32(load(state), 0xb1), efgh = _mm_shuffle_epi32(load(state + 4), 0x1b);
  __m128i abef = _mm_alignr_epi8(cdab, efgh, 8), cdgh = _mm_blend_epi16(efgh, cdab, 0xf0);
  for (; num_blocks > 0; --num_blocks, bytes += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];  // the last 16 words of the schedule
    for (int i = 0; i < 16; ++i) {
      __m128i& now = w[i & 3];
      if (i < 4) {
        now = _mm_shuffle_epi8(load(bytes + 16 * i), swap_bytes);
      } else {
        const __m128i last = w[(i + 3) & 3];
        const __m128i sum =
            _mm_add_epi32(_mm_sha256msg1_epu32(now, w[(i + 1) & 3]), _mm_alignr_epi8(last, w[(i + 2) & 3], 4));
        now = _mm_sha256msg2_epu32(sum, last);
      }
      const __m128i keyed = _mm_add_epi32(now, load(&kSha256Rounds[static_cast<size_t>(4 * i)]));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, keyed);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(keyed, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}
#endif

}  // namespace

Sha256::Sha256(bool portable)
    : state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19},
      portable_(portable) {}

void Sha256::blocks(const unsigned char* bytes, size_t num_blocks) {
#if defined(__x86_64__)
  static const bool has_instructions = processor_has_sha();
  if (has_instructions && !portable_) return blocks_with_instructions(state_.data(), bytes, num_blocks);
#endif
  for (; num_blocks > 0; --num_blocks, bytes += 64) portable_block(state_, bytes);
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
    blocks(pending_.data(), 1);
  }
  blocks(bytes, num_bytes / 64);
  bytes += num_bytes / 64 * 64, num_bytes %= 64;
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

}  // namespace chassis
