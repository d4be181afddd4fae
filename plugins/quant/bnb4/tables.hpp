// The two 4-bit codes. Values and thresholds are those of bitsandbytes (Dettmers et al. 2023, "QLoRA"): a scaled value
// takes the code of the first threshold that it does not exceed.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace bnb4 {

enum class Code : uint32_t { kNf4, kFp4 };

namespace bits {
constexpr uint32_t kNf4Values[16] = {0xbf800000, 0xbf3239b1, 0xbf066b30, 0xbeca32a0, 0xbe91a24d, 0xbe3d353f,
                                     0xbdba7871, 0x00000000, 0x3da2faff, 0x3e24cae3, 0x3e7c04dd, 0x3ead033a,
                                     0x3ee1a4b8, 0x3f1007ab, 0x3f3913b3, 0x3f800000};
// Bit 3 is the sign.
constexpr uint32_t kFp4Values[16] = {0x00000000, 0x3baaaaab, 0x3f2aaaab, 0x3f800000, 0x3eaaaaab, 0x3f000000,
                                     0x3e2aaaab, 0x3e800000, 0x00000000, 0xbbaaaaab, 0xbf2aaaab, 0xbf800000,
                                     0xbeaaaaab, 0xbf000000, 0xbe2aaaab, 0xbe800000};

constexpr std::array<float, 16> floats(const uint32_t (&words)[16]) {
  std::array<float, 16> out{};
  for (size_t i = 0; i < 16; ++i) out[i] = std::bit_cast<float>(words[i]);
  return out;
}
}  // namespace bits

inline constexpr std::array<float, 16> kNf4 = bits::floats(bits::kNf4Values), kFp4 = bits::floats(bits::kFp4Values);

// The midpoints of neighbouring values, rounded to fp32.
inline constexpr std::array<float, 15> kNf4Thresholds = [] {
  std::array<float, 15> out{};
  for (size_t i = 0; i < 15; ++i) out[i] = (kNf4[i] + kNf4[i + 1]) / 2.0f;
  return out;
}();

// The thresholds of magnitudes, in ascending order, with the literals of the CUDA kernel, which are up to 14 ulp off
// the midpoints; and the codes of the magnitudes between them.
inline constexpr std::array<float, 7> kFp4Thresholds = {0.00260417f, 0.0859375f, 0.20833333f, 0.29166667f,
                                                        0.4166667f,  0.583333f,  0.8333333f};
inline constexpr std::array<uint32_t, 8> kFp4Order = {0, 1, 6, 7, 4, 5, 2, 3};

constexpr const std::array<float, 16>& values_of(Code code) { return code == Code::kNf4 ? kNf4 : kFp4; }

// A block whose largest magnitude is below this is scaled as if it were this one, whose reciprocal is finite.
inline constexpr float kSmallestScale = 1e-38f;

constexpr int64_t kMinBlock = 32, kMaxBlock = 4096;

}  // namespace bnb4
