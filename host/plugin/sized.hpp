// Structs that grow: reading one that another version of the ABI may have written.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace chassis {

// What the writer knew; the rest reads as zero, whatever lies there.
template <class T>
T read_sized(const T* table) {
  T copy{};
  std::memcpy(&copy, table, std::min<size_t>(table->struct_size, sizeof(T)));
  copy.struct_size = static_cast<uint32_t>(std::min<size_t>(table->struct_size, sizeof(T)));
  return copy;
}

// Item i of an array whose items are as long as the writer's struct.
template <class T>
const T* sized_item(const T* items, uint32_t i) {
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(items) + size_t{items->struct_size} * i);
}

}  // namespace chassis
