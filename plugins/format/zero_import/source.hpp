// Types and helpers for reading the untrusted files of a checkpoint.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "chassis/format_source.hpp"

namespace zero_import {

using chassis::FoundTensor;
using chassis::SourceFile;
using Source = chassis::FileSource;
using Sink = chassis::FoundSink;
using Defect = chassis::FormatDefect;
using NotFound = chassis::NotThisFormat;

// A name from a file, for a message: short and printable.
inline std::string shown(std::string_view text) {
  std::string out = "'";
  for (const char c : text.substr(0, 80)) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return out + (text.size() > 80 ? "…'" : "'");
}

// Little-endian.
template <typename T>
T number_at(std::string_view bytes, size_t at) {
  T value = 0;
  for (size_t i = sizeof(T); i-- > 0;) value = static_cast<T>(value << 8 | static_cast<unsigned char>(bytes[at + i]));
  return value;
}

}  // namespace zero_import
