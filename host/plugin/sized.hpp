// Reads structs of a plugin, which may have another ABI minor, into the host's own. The rules are in chassis/abi.h.
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

// Copies the members that the writer knew; the rest of the result is zero. Throws a plugin error that begins with
// `what` if `theirs` is NULL or shorter than the first version of the struct.
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
