// Structs of a plugin, which may be of another minor: read into one of the host's. chassis/abi.h has the rules.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "chassis/first_sizes.hpp"
#include "host/base/error.hpp"

namespace chassis {

// What the writer knew; the rest is zero, whatever lies there. Throws a plugin error that begins with `what` if it is
// NULL or shorter than its first version.
template <class T>
T read_struct(const T* theirs, std::string_view what) {
  uint32_t struct_size = 0;
  if (theirs != nullptr) std::memcpy(&struct_size, theirs, sizeof struct_size);
  if (struct_size < kFirstSize<T>)
    throw plugin_error(fmt::format("{} has {} bytes, expected at least {}", what, struct_size, kFirstSize<T>));
  T ours{};
  ours.struct_size = static_cast<uint32_t>(std::min<size_t>(struct_size, sizeof(T)));
  std::memcpy(reinterpret_cast<char*>(&ours) + sizeof struct_size,
              reinterpret_cast<const char*>(theirs) + sizeof struct_size, ours.struct_size - sizeof struct_size);
  return ours;
}

// Item i of an array whose stride is the struct_size of its items.
template <class T>
const T* sized_item(const T* items, uint32_t i) {
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(items) + size_t{items->struct_size} * i);
}

}  // namespace chassis
