// Reductions over blocks that fit into the first-level cache, by element type.
#include "reduce.hpp"

#include <algorithm>
#include <bit>
#include <type_traits>

#include "chassis/bf16.hpp"
#include "chassis/comm.h"
#include "chassis/dtype.hpp"
#include "chassis/guard.hpp"

namespace comm_gloo {
namespace {

using namespace chassis;

constexpr uint64_t kBlock = 2048;  // elements; accumulators stay in the first-level cache

// The type in which an element is stored, and the type in which sums are computed.
template <typename T>
struct Plain {
  using Stored = T;
  using Sum = T;
  static Sum load(Stored value) { return value; }
  static Stored store(Sum value) { return value; }
};

struct Bf16 {
  using Stored = uint16_t;
  using Sum = float;
  static Sum load(Stored value) { return from_bf16(value); }
  static Stored store(Sum value) { return to_bf16(value); }
};

// Free of branches, so that compilers vectorise loops over it; additions round as the fp32 unit does.
struct F16 {
  using Stored = uint16_t;
  using Sum = float;
  static Sum load(Stored value) {
    const uint32_t magnitude = (value & 0x7fffu) << 13, sign = (value & 0x8000u) << 16;
    const uint32_t infinite = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;
    // A product moves the exponent from bias 15 to 127; it is exact for subnormals, too.
    const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
    return std::bit_cast<float>((std::bit_cast<uint32_t>(scaled) | infinite) | sign);
  }
  static Stored store(Sum value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    const uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    // Subnormal results: adding 0.5 moves the fp16 units to the end of the fraction, rounded to nearest even.
    const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
    const uint32_t normal = (magnitude + 0xc8000fffu + ((magnitude >> 13) & 1u)) >> 13;
    uint32_t half = magnitude < 0x38800000u ? small : normal;
    half = magnitude >= 0x477ff000u ? 0x7c00u : half;  // 65520 and more are infinite
    half = magnitude > 0x7f800000u ? 0x7e00u : half;
    return static_cast<uint16_t>(half | sign);
  }
};

template <typename Sum>
void add(Sum* sums, Sum value, uint64_t i) {
  if constexpr (std::is_integral_v<Sum>) {
    using Wraps = std::make_unsigned_t<Sum>;
    sums[i] = static_cast<Sum>(static_cast<Wraps>(sums[i]) + static_cast<Wraps>(value));
  } else {
    sums[i] += value;
  }
}
template <typename Sum>
void keep_larger(Sum* sums, Sum value, uint64_t i) {
  sums[i] = value > sums[i] || value != value ? value : sums[i];
}

template <typename Element, auto combine>
void reduce_block(std::span<const void* const> sources, typename Element::Stored* out, uint64_t begin, uint64_t count,
                  typename Element::Sum divisor) {
  using Stored = typename Element::Stored;
  alignas(64) typename Element::Sum sums[kBlock];
  const auto* first = static_cast<const Stored*>(sources[0]) + begin;
  for (uint64_t i = 0; i < count; ++i) sums[i] = Element::load(first[i]);
  for (const void* source : sources.subspan(1)) {
    const Stored* values = static_cast<const Stored*>(source) + begin;
    for (uint64_t i = 0; i < count; ++i) combine(sums, Element::load(values[i]), i);
  }
  if (divisor != 1) {
    for (uint64_t i = 0; i < count; ++i) sums[i] /= divisor;
  }
  for (uint64_t i = 0; i < count; ++i) out[begin + i] = Element::store(sums[i]);
}

template <typename Element>
void reduce_as(std::span<const void* const> sources, void* out, uint64_t count, uint32_t reduce) {
  using Sum = typename Element::Sum;
  const auto block =
      reduce == CHASSIS_REDUCE_MAX ? &reduce_block<Element, &keep_larger<Sum>> : &reduce_block<Element, &add<Sum>>;
  const Sum divisor = reduce == CHASSIS_REDUCE_AVG ? static_cast<Sum>(sources.size()) : Sum(1);
  for (uint64_t begin = 0; begin < count; begin += kBlock) {
    block(sources, static_cast<typename Element::Stored*>(out), begin, std::min(kBlock, count - begin), divisor);
  }
}

}  // namespace

void reduce_pieces(std::span<const void* const> sources, void* out, uint64_t count, uint32_t dtype, uint32_t reduce) {
  switch (dtype) {
    case CHASSIS_DTYPE_F32:
      return reduce_as<Plain<float>>(sources, out, count, reduce);
    case CHASSIS_DTYPE_F64:
      return reduce_as<Plain<double>>(sources, out, count, reduce);
    case CHASSIS_DTYPE_BF16:
      return reduce_as<Bf16>(sources, out, count, reduce);
    case CHASSIS_DTYPE_F16:
      return reduce_as<F16>(sources, out, count, reduce);
    case CHASSIS_DTYPE_I32:
      return reduce_as<Plain<int32_t>>(sources, out, count, reduce);
    case CHASSIS_DTYPE_I64:
      return reduce_as<Plain<int64_t>>(sources, out, count, reduce);
  }
  throw Failure(CHASSIS_INVALID_ARGUMENT, "gloo cannot reduce ", dtype_name(dtype));
}

}  // namespace comm_gloo
