// Reads and writes structs of the other side, which may have another minor: reads into a struct of this side, writes no
// further than the other side's struct_size. chassis/abi.h has the rules.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "chassis/first_sizes.hpp"
#include "chassis/guard.hpp"

CHASSIS_SDK_BEGIN

// False if `theirs` is shorter than its first version. Members that its writer did not know are zero.
template <typename T>
bool read_sized(const T* theirs, T& ours) noexcept {
  uint32_t struct_size = 0;
  std::memcpy(&struct_size, theirs, sizeof struct_size);
  if (struct_size < kFirstSize<T>) return false;
  const auto known = static_cast<uint32_t>(std::min<size_t>(struct_size, sizeof(T)));
  ours = T{};
  std::memcpy(&ours, theirs, known);
  ours.struct_size = known;
  return true;
}
template <typename T>
T read_sized(const T* theirs) {
  T ours;
  if (!read_sized(theirs, ours)) {
    throw Failure(CHASSIS_INVALID_ARGUMENT, "a struct of ", theirs->struct_size, " bytes, expected at least ",
                  kFirstSize<T>);
  }
  return ours;
}

// Writes all members but struct_size, which the reader has set.
template <typename T>
void write_sized(const T& ours, T* theirs) noexcept {
  constexpr size_t kStart = sizeof theirs->struct_size;
  const size_t known = std::min<size_t>(theirs->struct_size, sizeof(T));
  std::memcpy(reinterpret_cast<char*>(theirs) + kStart, reinterpret_cast<const char*>(&ours) + kStart, known - kStart);
}

CHASSIS_SDK_END
